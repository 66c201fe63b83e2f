"""What runs a model: ONNX Runtime's execution providers by the names it gives them, and TensorRT itself."""

from __future__ import annotations

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"
# Of ONNX Runtime, over TensorRT 10; the target `tensorrt` is the runtime itself, in another version.
ORT_TENSORRT_PROVIDER = "TensorrtExecutionProvider"
OPENVINO_PROVIDER = "OpenVINOExecutionProvider"
TENSORRT = "TensorRT"

GPU_PROVIDERS = frozenset({CUDA_PROVIDER, ORT_TENSORRT_PROVIDER, TENSORRT})
