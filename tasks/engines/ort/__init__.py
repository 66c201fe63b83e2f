"""ONNX Runtime: its CPU provider (`ort-cpu`) and its CUDA provider (`ort-cuda`). The session itself is in `tasks/runtimes`."""
