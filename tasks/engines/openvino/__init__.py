"""OpenVINO on processors (`openvino`)."""
