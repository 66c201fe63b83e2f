"""Decoders in onnxruntime-genai (`ort-genai`)."""
