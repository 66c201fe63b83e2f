"""How a version is opened in ONNX Runtime: in a run, in the measuring process, and at consumers, who get this folder alone."""
