"""INT8 and FP8 quantization: static with Q/DQ pairs, dynamic, and the graph passes that prepare for either."""
