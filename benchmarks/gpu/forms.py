"""The forms of `torch-cuda`: recipes, exported programs, packages and what runs in them, by PyTorch alone.

It imports neither ONNX nor pydantic nor scipy, so that it runs on a machine that has PyTorch and nothing else of quantgate's.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpu.apart import apart
from gpu.session import described_coverage
from tasks.engines.inductor.compiler import run_compiler
from tasks.engines.inductor.coverage import measure
from tasks.measure.inventory import usable_cores
from tasks.runtimes.confined import WRITTEN_BYTES, WRITTEN_SIZES
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays
from validators.target_facts import INDUCTOR, INDUCTOR_CUDA

TARGET = "torch-cuda"
OUTPUT = "logits"
_PLAIN = {"dynamic": False, "granularity": None, "block_size": None, "weight_method": None, "asymmetric": False}


def _recipe(precision: str, **fields: Any) -> dict[str, Any]:
    return _PLAIN | {"precision": precision} | fields


# The default candidates without GPTQ, which needs SciPy; their grammar needs pydantic.
RECIPES: Mapping[str, dict[str, Any]] = {
    "fp16": _recipe("fp16"),
    "fp32-fused": _recipe("fp32"),
    "bf16": _recipe("bf16"),
    "int8-dynamic-pc": _recipe("int8", dynamic=True, granularity="pc"),
    "fp8-amax-pc": _recipe("fp8", granularity="pc"),
    "fp8-amax-pt": _recipe("fp8", granularity="pt"),
    "int4-g128-rtn": _recipe("int4", block_size=128, weight_method="rtn"),
    "int4-g64-hqq-asym": _recipe("int4", block_size=64, weight_method="hqq", asymmetric=True),
}


def export_program(build: Callable[[], Any], request: Arrays, dynamic: Collection[str], path: Path) -> None:
    """Write the program of a module; the batch of each input is dynamic, and axis 1 of those that `dynamic` names."""
    apart(_export, build, request, tuple(dynamic), path, seconds=600.0)


def _export(build: Callable[[], Any], request: Arrays, dynamic: tuple[str, ...], path: Path) -> None:
    import torch

    inputs = [torch.from_numpy(array) for array in request.values()]
    any_size = torch.export.Dim.DYNAMIC
    shapes = [{0: any_size} | ({1: any_size} if name in dynamic else {}) for name in request]
    partial = path.with_name(f"partial-{path.name}")
    with torch.no_grad():
        torch.export.save(torch.export.export(build(), tuple(inputs), dynamic_shapes=tuple(shapes)), partial)
    partial.rename(path)


def compile_form(label: str, program: Path, request: Arrays, folder: Path, device: str) -> dict[str, Any]:
    """Write the package `folder/<label>.pt2` of a program; return the compiler's answer, `seconds` and `changes`.

    Raises:
        CandidateRefused: torch does not compile it.
    """
    scratch = folder / f"compile-{label}"
    # Of a compilation that was killed, its answer would be taken for this one's.
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    batch = scratch / "batch.npz"
    np.savez(batch, **request)  # type: ignore[arg-type]  # numpy's stub takes any keyword for allow_pickle
    order = {
        "folder": str(scratch),
        "program": str(program),
        "package": str(scratch / "model.pt2"),
        "recipe": RECIPES[label],
        "device": device,
        "for_gpu": True,
        "weight_bits": 8,
        "threads": usable_cores(),
        "batches": [str(batch)],
        "inputs": list(request),
        "outputs": [OUTPUT],
        "written_bytes": program.stat().st_size * WRITTEN_SIZES + WRITTEN_BYTES,
    }
    told = run_compiler(order, scratch, module="gpu.compiler")
    (scratch / "model.pt2").rename(folder / f"{label}.pt2")
    return told


def settings_of(device: str, label: str) -> SessionSettings:
    """Return the settings that a package of the form is opened with."""
    precision = {"fp32-fused": "f32", "fp16": "fp16"}.get(label, "bf16")
    provider = INDUCTOR if device == "cpu" else INDUCTOR_CUDA
    return SessionSettings(provider, usable_cores(), provider_options={"precision": precision})


def describe_package(label: str, package: Path, request: Arrays, device: str) -> dict[str, Any]:
    """Return the size of a package, its coverage and the multiply-accumulates of a sample."""
    coverage = measure(package, settings_of(device, label), request, None)
    samples = len(next(iter(request.values())))
    return {
        "size_bytes": package.stat().st_size,
        "macs_a_sample": sum(coverage.macs_by_kernel.values()) // samples,
        "coverage": described_coverage(coverage),
    }


def relative_error(build: Callable[[], Any], package: Path, request: Arrays, device: str) -> float:
    """Return ||y - z|| / ||z|| of a package's answers y to the float32 module's z on the same device, without TF32."""
    import torch

    from tasks.engines.inductor.shipped.model import InductorModel

    torch.set_default_device(device)  # a module may make positions as it goes
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with torch.inference_mode():
        expected = build().to(device)(*(torch.from_numpy(array).to(device) for array in request.values()))
    found = InductorModel(package, usable_cores()).run(request)[0].astype(np.float64)
    wanted = expected.cpu().numpy().astype(np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
