"""TensorRT and TensorRT-RTX (`tensorrt`): building, inspecting and running engines."""
