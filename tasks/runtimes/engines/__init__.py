"""TensorRT engines: built in a child process, opened, inspected."""
