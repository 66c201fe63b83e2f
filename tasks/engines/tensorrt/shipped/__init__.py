"""TensorRT without the rest of quantgate: consumers get this folder with the engine. It needs numpy and either runtime."""
