"""Loader of versions in ONNX Runtime. Runs and measuring processes import it; consumers get this folder alone."""
