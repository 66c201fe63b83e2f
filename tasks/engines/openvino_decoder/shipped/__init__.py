"""Decoders in OpenVINO: the graph of onnxruntime-genai's model builder with its caches as states, and greedy generation.

MLflow copies this folder beside promoted versions and puts it on the path as a package. It imports numpy, openvino and itself.
"""
