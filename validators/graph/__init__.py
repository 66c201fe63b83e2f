"""ONNX graphs: requirements on a source, and the runtimes' rules about quantized graphs."""
