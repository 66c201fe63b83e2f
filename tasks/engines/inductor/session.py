"""TorchInductor: what it needs here, and packages opened as runners or refused."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata, util
from pathlib import Path

from tasks.runtimes.ort import failures_refused
from tasks.runtimes.runner import ModelRunner
from validators.errors import CandidateRefused, Missing
from validators.records.run import SessionSettings
from validators.samples.datasets import TensorSpec

# Distribution of the quantizer; it supports x86-64 alone.
QUANTIZER = "torchao"


def installed_version() -> str:
    """Return the version of torch, without its build."""
    return metadata.version("torch").partition("+")[0]


def compiler() -> str | None:
    """Return the path of the C++ compiler that Inductor calls: `CXX`, or g++."""
    return shutil.which(os.environ.get("CXX", "g++"))


def why_missing() -> Missing | None:
    """Return why no package can be compiled here; None if one can. An existing package needs torch alone."""
    if compiler() is None:
        return Missing(
            f"no C++ compiler ({os.environ.get('CXX', 'g++')})",
            "one: TorchInductor compiles the code that it generates",
            "install g++, or set CXX to a compiler",
        )
    return None


def why_no_gpu() -> Missing | None:
    """Return why torch computes on no GPU here; None if it does."""
    # `doctor` asks this everywhere, and torch takes seconds to import.
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Missing("no NVIDIA driver (libcuda.so.1)", "an NVIDIA GPU and its driver", "run on a machine with a GPU")
    import torch

    if torch.version.cuda is None:
        return Missing(
            f"torch {torch.__version__}, a build without CUDA", "a build with CUDA", "install torch from its CUDA index"
        )
    if not torch.cuda.is_available():
        return Missing("torch finds no NVIDIA GPU", "an NVIDIA GPU and its driver", "run on a machine with a GPU")
    return None


def why_no_int8() -> Missing | None:
    """Return why no INT8 package can be made here; None if one can."""
    if platform.machine() != "x86_64":
        return Missing(f"a processor {platform.machine()}", "x86-64, which the quantizer is for", "take fp32-fused")
    if util.find_spec(QUANTIZER) is None:
        return Missing(f"{QUANTIZER} is not installed", f"{QUANTIZER} with its quantizer for x86", "install `inductor`")
    return None


@contextmanager
def open_model(package: Path, settings: SessionSettings) -> Iterator[ModelRunner]:
    """Load a package that quantgate compiled.

    Raises:
        CandidateRefused: `invalid`: torch does not load it.
    """
    from tasks.engines.inductor.shipped.model import InductorModel

    try:
        model = InductorModel(package, settings.threads)
    except Exception as error:  # torch raises RuntimeError, OSError and KeyError alike
        raise CandidateRefused(
            kind="invalid",
            found=f"torch {installed_version()} does not load {package.name}: {str(error).splitlines()[0][:300]}",
            expected="a package compiled on this kind of machine, by this version of torch",
            fix="compile it again here",
        ) from error
    inputs, outputs = (
        [
            TensorSpec(name, dtype, tuple(axis if isinstance(axis, int) else None for axis in shape))
            for name, dtype, shape in model.about[side]
        ]
        for side in ("inputs", "outputs")
    )
    yield ModelRunner(model, inputs, outputs, partial(failures_refused, "TorchInductor"))
