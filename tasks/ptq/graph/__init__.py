"""Queries and edits of ONNX graphs that several passes share."""
