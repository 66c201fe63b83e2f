"""The demos' PyTorch modules as a user would run them: eager in float32 and float16, and compiled in float16."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpu.answers import rows_from
from gpu.bundle import Bundle
from gpu.ceilings import first_line
from gpu.modules import build_module
from gpu.turns import block_ms
from validators.samples.datasets import TensorSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

MODES = ("fp32", "fp16", "fp16-compiled")
# The modes take turns, a block each, so that a clock that drifts meets all of them.
BLOCKS, BLOCK_SECONDS, WARM_UPS = 3, 0.15, 10


@dataclass(frozen=True)
class Launch:
    """One process: the median milliseconds of each block by mode, `memory_mb` that its tensors took on the GPU at most."""

    blocks_ms: dict[str, list[float]]
    memory_mb: dict[str, float | None]
    refused: dict[str, str]


def measure_launch(bundle: Bundle, batch_size: int, modes: tuple[str, ...], device: str) -> Launch:
    """Each mode's blocks of requests whose inputs lie on the device, in turn; all in this process."""
    import torch

    launch = Launch({}, {}, {})
    requests: dict[str, Callable[[], None]] = {}
    for mode in modes:
        try:
            before = torch.cuda.memory_allocated() if device == "cuda" else 0
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            requests[mode] = request = _request(bundle, mode, bundle.request(batch_size), device)
            for _ in range(WARM_UPS):
                request()
            launch.memory_mb[mode] = (torch.cuda.max_memory_allocated() - before) / 1e6 if device == "cuda" else None
            launch.blocks_ms[mode] = []
        except Exception as error:  # the compiler raises whatever its passes raise
            launch.refused[mode] = first_line(error)
            requests.pop(mode, None)
    for _ in range(BLOCKS):
        for mode, request in requests.items():
            launch.blocks_ms[mode].append(statistics.median(block_ms(request, BLOCK_SECONDS)))
    return launch


def rows_of_module(bundle: Bundle, mode: str, device: str) -> tuple[NDArray[np.float64], float]:
    """The rows of the bundle's metric from the module in one mode, and its value."""
    import torch

    module = ready_module(bundle, mode, device)

    def outputs() -> Any:
        for batch in bundle.evaluation.batches(bundle.notes.evaluation_batch):
            with torch.inference_mode():
                yield module(*_tensors(batch, device)).float().cpu().numpy()

    return rows_from(outputs(), bundle, TensorSpec(bundle.notes.output, "float32", ()))


def ready_module(bundle: Bundle, mode: str, device: str) -> Callable[..., Tensor]:
    """The module with the bundle's weights on the device, in a mode's precision."""
    import torch

    torch.set_default_device(device)  # the modules make positions and masks as they go
    # As TensorRT and ONNX Runtime compute float32 products unless told otherwise.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    module = build_module(bundle).to(device)
    if mode.startswith("fp16"):
        _halve(module)
    return torch.compile(module) if mode.endswith("compiled") else module


def _halve(module: nn.Module) -> None:
    """float16 throughout, but for root-mean-square norms, whose squares leave its range, as in the usual libraries."""
    import torch

    module.half()

    def cast(kind: torch.dtype) -> Callable[[Any, Any], Any]:
        def convert(_: Any, arguments: Any) -> Any:
            return tuple(one.to(kind) if one.is_floating_point() else one for one in arguments)

        return convert

    for part in module.modules():
        if type(part).__name__ == "RmsNorm":
            part.register_forward_pre_hook(cast(torch.float32))
            part.register_forward_hook(lambda *given: given[-1].half())
        else:
            # Masks and images come as float32, which would widen what they meet.
            part.register_forward_pre_hook(cast(torch.float16))


def _request(bundle: Bundle, mode: str, batch: Mapping[str, NDArray[Any]], device: str) -> Callable[[], None]:
    import torch

    module, tensors = ready_module(bundle, mode, device), _tensors(batch, device)

    def request() -> None:
        with torch.inference_mode():
            module(*tensors)
        if device == "cuda":
            torch.cuda.synchronize()

    return request


def _tensors(batch: Mapping[str, NDArray[Any]], device: str) -> list[Tensor]:
    import torch

    return [torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in batch.values()]
