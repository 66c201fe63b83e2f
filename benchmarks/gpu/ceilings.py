"""Limits of the device, measured by PyTorch: bytes of a copy, operations of large matrix products, the cost of a kernel."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

# Larger than any cache, and so large that starting a kernel takes no part of the time; small for a rehearsal on a processor.
COPY_BYTES, SIDE = 1 << 30, 8192
SMALL_COPY_BYTES, SMALL_SIDE = 64 << 20, 128
WARM_UPS, TIMED = 5, 30
# Kernels of one element, whose time is that of starting them.
KERNELS = 1000


def measure_ceilings(device: str) -> dict[str, dict[str, Any]]:
    """GB/s (10^9 bytes read and written) of a device-to-device copy, TFLOP/s of products by type, microseconds of a kernel.

    All are medians of 30. What PyTorch does not have on the device is there as its refusal. A product of two N x N matrices
    counts 2 N^3 operations. `kernel` is one of a thousand that are launched one by one, `graph_kernel` one of a thousand in a
    CUDA graph.
    """
    import torch

    on_gpu = device == "cuda"
    size, side = (COPY_BYTES, SIDE) if on_gpu else (SMALL_COPY_BYTES, SMALL_SIDE)
    torch.manual_seed(0)
    ceilings = {"copy": _figure(lambda: _copy(torch, device, size), device, 2 * size / 1e9, "gb_per_s", bytes=size)}
    for name, prepare in _PRODUCTS.items():
        product = partial(prepare, torch, device, side)
        ceilings[name] = _figure(product, device, 2 * side**3 / 1e12, "tflop_per_s", side=side)
    for name, kernels in (("kernel", _kernels), ("graph_kernel", _graph)):
        found = _figure(partial(kernels, torch, device), device, KERNELS, "kernels_per_s")
        if "kernels_per_s" in found:
            found["us"] = 1e6 / found.pop("kernels_per_s")
        ceilings[name] = found
    return ceilings


def times_ms(work: Callable[[], Any], device: str, count: int) -> list[float]:
    """Milliseconds of each call: by events of the stream on a GPU, by the clock elsewhere."""
    import torch

    if device != "cuda":
        found = []
        for _ in range(count):
            start = time.perf_counter_ns()
            work()
            found.append((time.perf_counter_ns() - start) / 1e6)
        return found
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    for start_event, end_event in events:
        start_event.record()
        work()
        end_event.record()
    torch.cuda.synchronize()
    return [float(start_event.elapsed_time(end_event)) for start_event, end_event in events]


def _figure(
    prepare: Callable[[], Callable[[], Any]], device: str, amount: float, unit: str, **about: int
) -> dict[str, Any]:
    """`amount` a second from the median time, or why there is none."""
    try:
        work = prepare()
        times_ms(work, device, WARM_UPS)
        milliseconds = statistics.median(times_ms(work, device, TIMED))
    except Exception as error:  # PyTorch raises a dozen classes for a type that the device does not have
        return {"refused": {"kind": "unsupported", "reason": first_line(error)}}
    return {unit: amount / (milliseconds / 1e3), "median_ms": milliseconds, "count": TIMED, **about}


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its class."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def _copy(torch: Any, device: str, size: int) -> Callable[[], Any]:
    source = torch.empty(size, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _float(kind: str, *, tf32: bool = False) -> Callable[[Any, str, int], Callable[[], Any]]:
    def prepare(torch: Any, device: str, side: int) -> Callable[[], Any]:
        if tf32 and device != "cuda":
            raise RuntimeError("TF32 is a format of GPUs")
        left, right = (torch.randn(side, side, device=device).to(getattr(torch, kind)) for _ in range(2))

        def multiply() -> None:
            torch.backends.cuda.matmul.allow_tf32 = tf32
            left @ right

        return multiply

    return prepare


def _fp8(torch: Any, device: str, side: int) -> Callable[[], Any]:
    left, right = (torch.randn(side, side, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=device)
    # cuBLASLt takes the right operand by columns.
    return lambda: torch._scaled_mm(left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _int8(torch: Any, device: str, side: int) -> Callable[[], Any]:
    left, right = (torch.randint(-128, 128, (side, side), dtype=torch.int8, device=device) for _ in range(2))
    return lambda: torch._int_mm(left, right.t())


def _kernels(torch: Any, device: str) -> Callable[[], Any]:
    one = torch.zeros(1, device=device)

    def launch() -> None:
        for _ in range(KERNELS):
            one.add_(1.0)

    return launch


def _graph(torch: Any, device: str) -> Callable[[], Any]:
    launch = _kernels(torch, device)
    if device != "cuda":
        raise RuntimeError("graphs are captured on GPUs")
    graph = torch.cuda.CUDAGraph()
    launch()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        launch()
    return graph.replay  # type: ignore[no-any-return]  # torch has no types for it


_PRODUCTS: dict[str, Callable[[Any, str, int], Callable[[], Any]]] = {
    "float32": _float("float32"),
    "tf32": _float("float32", tf32=True),
    "float16": _float("float16"),
    "bfloat16": _float("bfloat16"),
    "fp8": _fp8,
    "int8": _int8,
}
