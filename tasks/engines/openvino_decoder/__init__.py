"""Decoders in OpenVINO (`openvino-decoder`)."""
