"""TensorRT engines: built in a process of their own, opened, read."""
