"""TensorRT alone, with nothing of quantgate: consumers get this folder with the engine. Needs numpy, and either runtime."""
