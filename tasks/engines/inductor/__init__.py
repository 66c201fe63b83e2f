"""PyTorch programs compiled by TorchInductor, for processors (`torch-inductor`) and NVIDIA GPUs (`torch-cuda`)."""
