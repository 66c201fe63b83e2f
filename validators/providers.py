"""Names of the providers that run a model: ONNX Runtime's execution providers, and engines of their own."""

from __future__ import annotations

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"
TENSORRT = "TensorRT"
OPENVINO = "OpenVINO"
INDUCTOR = "TorchInductor"
INDUCTOR_CUDA = "TorchInductorCUDA"
# ONNX Runtime's library for decoders, with the cache, the sampling and the tokenizer.
GENAI = "OnnxRuntimeGenAI"
OPENVINO_DECODER = "OpenVINODecoder"

# Packages of TorchInductor.
INDUCTORS = frozenset({INDUCTOR, INDUCTOR_CUDA})
# A request is a prompt with the tokens that follow.
GENERATORS = frozenset({GENAI, OPENVINO_DECODER})
GPU_PROVIDERS = frozenset({CUDA_PROVIDER, TENSORRT, INDUCTOR_CUDA})
