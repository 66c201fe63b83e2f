"""Metrics of one kind of task each: maps and tokens, probabilities, retrieval, generated text, detection."""
