"""Availability of a target on this machine, and the command that installs missing packages."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from importlib import metadata, util

from packaging.requirements import Requirement

from validators.errors import Missing
from validators.records.run import Gpu

NO_GPU = Missing(
    "the driver reports no NVIDIA GPU",
    "an NVIDIA GPU and its driver",
    "run on a machine with a GPU, with `nvidia-ml-py` installed (extra `gpu`)",
)


@dataclass(frozen=True)
class Availability:
    """Availability of a target on this machine: the reason, and the fix, a command where one exists."""

    is_here: bool
    why: str
    mend: str = ""


def describe_missing(missing: Missing) -> str:
    """Return the missing package or device as one line."""
    return f"{missing.found}; expected {missing.expected}"


def mend_on_gpu(gpu: Gpu | None, command: str) -> str:
    """Return the command; without a GPU here, say that it is for another machine."""
    return command if gpu else f"on a machine with an NVIDIA GPU and its driver: {command}"


def install(extra: str, *, instead_of: str | None = None) -> str:
    """Return the command that installs the packages of an extra here, and uninstalls `instead_of` first.

    It leaves quantgate itself as it was installed.
    """
    wanted = [Requirement(text) for text in metadata.requires("quantgate") or ()]
    packages = [f"{one.name}{one.specifier}" for one in wanted if one.marker and one.marker.evaluate({"extra": extra})]
    if not packages:
        return f"nothing here: the extra `{extra}` has no packages for this platform"
    # Environments that uv makes have no pip.
    pip = ["-m", "pip"] if util.find_spec("pip") else []
    tool = [sys.executable, *pip] if pip else ["uv", "pip"]
    here = [] if pip else ["--python", sys.executable]
    remove = [*tool, "uninstall", *(["-y"] if pip else []), *here, instead_of] if instead_of else []
    add = shlex.join([*tool, "install", *here, *packages])
    return f"{shlex.join(remove)} && {add}" if remove else add
