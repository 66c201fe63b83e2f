"""ONNX Runtime's providers on an NVIDIA GPU: their requirements, their session options, and their engine caches.

CUDA       runs every node that has a kernel; others, such as shape computations, go to the CPU provider
TensorRT   runs subgraphs that TensorRT 10 compiles when the session opens; the rest goes to CUDA, then to the CPU

Without the flags `trt_fp16_enable` and `trt_int8_enable` the TensorRT provider builds strongly typed networks with the types of
the file, as on the target `tensorrt` (onnxruntime pull request 18707). With these flags it would silently choose others.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import tempfile
from collections.abc import Collection
from functools import cache
from importlib import util
from pathlib import Path
from typing import Any

from tasks.runtimes.missing import Missing
from validators.digests import digest_model, digest_values
from validators.errors import CandidateRefused
from validators.providers import CUDA_PROVIDER, ORT_TENSORRT_PROVIDER
from validators.records.run import SessionSettings

# Provider option with the base folder of engines and timing caches (ONNX Runtime documentation, "TensorRT Execution
# Provider"). Without it, each session builds its engines again, which takes minutes.
ENGINE_CACHE = "trt_engine_cache_path"
DEVICE = "device_id"
# Options that override the types in the file.
UNTYPED = ("trt_fp16_enable", "trt_bf16_enable", "trt_int8_enable")
_EXTRAS = {
    CUDA_PROVIDER: "install the extra `gpu` in place of `cpu`, on a machine with an NVIDIA GPU",
    ORT_TENSORRT_PROVIDER: "install the extras `gpu` and `ort-tensorrt`, without `tensorrt`, on a machine with an NVIDIA GPU",
}


def why_missing(provider: str, available: Collection[str]) -> Missing | None:
    """Return why a GPU provider is not available here; None if it is available or not a GPU provider.

    >>> why_missing("CUDAExecutionProvider", ["CPUExecutionProvider"]).found
    'no CUDAExecutionProvider here'
    >>> why_missing("CPUExecutionProvider", [])
    """
    if provider in available or provider not in _EXTRAS:
        return None
    return Missing(f"no {provider} here", f"ONNX Runtime with {provider}, and a GPU", _EXTRAS[provider])


def device_of(settings: SessionSettings) -> int:
    """Return the index of the GPU among those visible to the process."""
    return int(settings.provider_options.get(DEVICE, "0"))


def gpu_providers(
    settings: SessionSettings, model: Path, content: bytes | None = None
) -> list[tuple[str, dict[str, str]]]:
    """Return the providers with their options, in order, for a session of a model file, or of `content` in its place.

    ONNX Runtime adds the CPU provider itself. Each model has its own engine folder below the job's: the provider names engines
    by the graph, not by the weights, and would otherwise load those of another variant.

    Raises:
        CandidateRefused: `invalid`: an option lets TensorRT choose other types than those of the file.
    """
    options = dict(settings.provider_options)
    if settings.provider == CUDA_PROVIDER:
        return [(CUDA_PROVIDER, options)]
    wrong = [name for name in UNTYPED if options.get(name, "0").lower() not in ("0", "false")]
    if wrong:
        raise CandidateRefused(
            kind="invalid",
            found=f"provider options {wrong}",
            expected="no option that changes types, so that a candidate runs in the types that its name states",
            fix="remove them; use the candidate fp16@ort-tensorrt for float16",
        )
    base = options.pop(ENGINE_CACHE, None)
    if base is not None:
        of_content = hashlib.sha256(content or b"").hexdigest()
        folder = Path(base) / digest_values(digest_model(model), of_content, settings.optimization, options)
        folder.mkdir(parents=True, exist_ok=True)
        options |= {"trt_engine_cache_enable": "1", ENGINE_CACHE: str(folder)}
        options |= {"trt_timing_cache_enable": "1", "trt_timing_cache_path": str(base)}
    # Nodes that TensorRT does not take run on the same GPU.
    return [(ORT_TENSORRT_PROVIDER, options), (CUDA_PROVIDER, {DEVICE: str(device_of(settings))})]


@cache
def load_libraries(provider: str) -> str:
    """Load the libraries of CUDA, cuDNN and TensorRT from Python packages, which are on no library search path.

    They are loaded once per process. Return the runtime's messages about missing libraries on one line; the runtime prints
    them and does not raise.
    """
    ort: Any = importlib.import_module("onnxruntime")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        ort.preload_dlls()
    if provider == ORT_TENSORRT_PROVIDER and util.find_spec("tensorrt"):
        importlib.import_module("tensorrt")
    return "; ".join(line for line in said.getvalue().splitlines() if line.startswith("Failed to load"))


def probe(provider: str) -> Missing | None:
    """Return why no session can be opened with a provider here, by opening one with a single Relu; None if one can.

    Raises:
        InfrastructureError: no ONNX Runtime is installed.
    """
    from onnx import TensorProto, helper, save

    from tasks.runtimes.ort import open_session

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="relu")], "probe", ends[:1], ends[1:])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "probe.onnx")
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
        try:
            with open_session(path, SessionSettings(provider, 1)):
                return None
        except CandidateRefused as error:
            return Missing(error.found, error.expected, error.fix)
