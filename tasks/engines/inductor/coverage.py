"""Coverage of a compiled package, read from the primitives that oneDNN executed, or from the calls that the package records.

For a processor, TorchInductor calls oneDNN for all products in INT8 and bfloat16. Multiply-accumulates of the program that
nothing accounts for ran in other kernels of torch, or in code that Inductor generated; they count as float.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np
import sympy  # type: ignore[import-untyped,unused-ignore]  # no stubs

from tasks.engines.inductor.onednn import Primitive, products_in
from tasks.engines.inductor.profile_process import ABOUT, DONE, REQUEST
from tasks.engines.inductor.recorded import Call, ProgramProduct, matched, named
from tasks.runtimes.confined import module_environment, run_module
from tasks.runtimes.kernels import PROFILED, WARM_UP, Kernel, write_kernels
from validators.errors import CandidateRefused
from validators.records.measurements import Coverage, KernelTime, MultipliedNode
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays

# Kernel of products that no primitive of oneDNN computed.
OTHER = "float kernels of torch"
# Time of a request outside the products of oneDNN.
BETWEEN = "generated code and other kernels of torch"
_PATIENCE_SECONDS = 600.0

Timed = TypeVar("Timed", Primitive, Call)


def measure(package: Path, settings: SessionSettings, batch: Arrays, folder: Path | None) -> Coverage:
    """Return the coverage of a request: multiply-accumulates of the program's products, by the kernel that ran for each.

    Of equal products, in number of multiply-accumulates, the first to run is the first of the program. The list of all
    kernels is written into `folder`.

    Raises:
        CandidateRefused: `invalid`: the package does not run, or computes in bfloat16 where float32 was asked for.
    """
    about, requests, total_us = _profile(package, settings, batch)
    if about["records_kernels"]:
        ran, nodes = _recorded(about, requests, batch)
    else:
        ran = _typical([products_in(lines) for lines in requests])
        nodes = attribute([(product.name, product.macs) for product in _counted(about, batch)], ran)
    _refuse_unasked(ran, settings)
    by_kernel, times = Counter[str](), Counter[str]()
    for one in ran:
        by_kernel[one.kernel.name] += one.macs
        times[one.kernel.name] += one.microseconds  # type: ignore[assignment]  # a counter of floats
    by_kernel[OTHER] = max(0, sum(node.macs for node in nodes) - sum(by_kernel.values()))
    times[BETWEEN] = max(0.0, total_us - sum(times.values()))  # type: ignore[assignment]  # likewise
    kinds = {one.kernel.name: one.kernel for one in ran}
    in_float = [node for node in nodes if node.kernel not in kinds or not (kinds[node.kernel].is_low_precision)]
    in_half = [node for node in in_float if node.kernel in kinds and kinds[node.kernel].is_half]
    kernels = [
        KernelTime(str(index), one.kernel.name, settings.provider, one.microseconds) for index, one in enumerate(ran)
    ]
    return Coverage(
        macs_by_kernel={name: macs for name, macs in by_kernel.items() if macs},
        low_precision=tuple(sorted(name for name, kernel in kinds.items() if kernel.is_low_precision)),
        half_precision=tuple(sorted(name for name, kernel in kinds.items() if kernel.is_half)),
        float_nodes=_names(node for node in in_float if node not in in_half),
        half_nodes=_names(in_half),
        providers=(settings.provider,),
        us_by_kernel=dict(times),
        kernels_path=write_kernels(folder, kernels),
        products=tuple(nodes),
    )


def _recorded(
    about: dict[str, Any], requests: Sequence[Sequence[str]], batch: Arrays
) -> tuple[list[Primitive], list[MultipliedNode]]:
    """Return the products that ran, and each product of the program with its kernel, from records of equal requests."""
    by_request = [[Call(**json.loads(line)) for line in lines if line.startswith("{")] for lines in requests]
    ran, nodes = [], []
    for product, call in matched(_counted(about, batch), _typical(by_request)):
        if call is None:
            nodes.append(MultipliedNode(product.name, OTHER, product.macs))
            continue
        kernel = Kernel(*named(product, call))
        ran.append(Primitive(kernel, product.macs, call.microseconds))
        nodes.append(MultipliedNode(product.name, kernel.name, product.macs))
    return ran, nodes


def attribute(products: Sequence[tuple[str, int]], ran: Sequence[Primitive]) -> list[MultipliedNode]:
    """Return the products of a program with the kernel that ran for each: the next primitive of the same size, or `OTHER`.

    >>> from tasks.runtimes.kernels import Kernel
    >>> ran = [Primitive(Kernel("matmul u8 x s8", is_low_precision=True), 64, 1.0)]
    >>> [node.kernel for node in attribute([("first", 64), ("second", 64)], ran)]
    ['matmul u8 x s8', 'float kernels of torch']
    """
    left = list(ran)
    found = []
    for name, macs in products:
        taken = next((one for one in left if one.macs == macs), None)
        if taken is not None:
            left.remove(taken)
        found.append(MultipliedNode(name, taken.kernel.name if taken else OTHER, macs))
    return found


def _refuse_unasked(ran: Sequence[Primitive], settings: SessionSettings) -> None:
    unasked = [one.kernel.name for one in ran if one.kernel.is_half]
    if unasked and settings.provider_options.get("precision") not in ("bf16", "fp16"):
        raise CandidateRefused(
            kind="invalid",
            found=f"{len(unasked)} products in 16 bits, such as {unasked[0]}",
            expected="float32, as the candidate asks, wherever it is not INT8",
            fix="unset the environment variables of oneDNN and torch that lower the precision, or take bf16",
        )


def _counted(about: dict[str, Any], batch: Arrays) -> list[ProgramProduct]:
    """Return the products with their multiply-accumulates at the shapes of a batch, in the order of the program."""
    from torch.utils._sympy import functions

    sizes = {
        symbol: size
        for name, _, shape in about["inputs"]
        for symbol, size in zip(shape, batch[name].shape, strict=True)
        if isinstance(symbol, str)
    }
    known = vars(functions) | sizes
    # Of quantgate's own making: the package's digest was checked, or it was just compiled.
    return [
        ProgramProduct(name, int(sympy.sympify(macs, locals=known)), *rest) for name, macs, *rest in about["products"]
    ]


def _typical(requests: Sequence[Sequence[Timed]]) -> list[Timed]:
    """Return what ran in a request, each with the median of its times in all of them."""
    return [
        replace(same[0], microseconds=median(one.microseconds for one in same)) for same in zip(*requests, strict=True)
    ]


def _profile(package: Path, settings: SessionSettings, batch: Arrays) -> tuple[dict[str, Any], list[list[str]], float]:
    """Return the metadata of a package, the profile's lines of each request, and the microseconds of one outside it."""
    with tempfile.TemporaryDirectory(prefix="quantgate-") as folder:
        path = Path(folder, "batch.npz")
        np.savez(path, **batch)  # type: ignore[arg-type]  # numpy's stub takes any keyword for allow_pickle
        config = {
            "package": str(package),
            "batch": str(path),
            "threads": settings.threads,
            "warm_up": WARM_UP,
            "requests": PROFILED - WARM_UP,
        }
        module = "tasks.engines.inductor.profile_process"
        done = run_module(module, json.dumps(config), env=module_environment(), timeout=_PATIENCE_SECONDS)
    lines = done.stdout.splitlines()
    ended = next((line for line in lines if line.startswith(DONE)), None)
    if done.returncode or ended is None:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise CandidateRefused(
            kind="invalid",
            found=f"{package.name} does not run: {last[:300]}",
            expected="a package that runs on every batch",
            fix="take another candidate",
        )
    about = json.loads(next(line for line in lines if line.startswith(ABOUT)).removeprefix(ABOUT))
    starts = [index for index, line in enumerate(lines) if line == REQUEST]
    requests = [lines[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]
    return about, requests, float(ended.removeprefix(DONE))


def _names(nodes: Iterable[MultipliedNode]) -> tuple[str, ...]:
    return tuple(node.name for node in sorted(nodes, key=lambda node: -node.macs))
