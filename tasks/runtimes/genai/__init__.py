"""Decoders run by onnxruntime-genai: the folder that it loads, greedy generation, and scores through the cache."""
