"""Loader of versions in onnxruntime-genai. Runs and measuring processes import it; consumers get this folder alone."""
