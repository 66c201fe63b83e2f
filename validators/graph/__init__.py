"""ONNX graphs: what a source must be, and the rules of runtimes about quantized ones."""
