"""Disk space of an installation: the package with one extra, in an environment of its own, by `uv pip install`.

PyTorch is the CPU build: from the folders of `PIP_FIND_LINKS` if that is set, else by uv's `--torch-backend cpu`.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from figures import save

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
# `cpu` or `gpu` is the runtime of every installation; the others come beside `cpu`. `tensorrt` is left out: its libraries come
# from the vendor's own index; and so is what is for tests alone.
BESIDE_CPU = [extra for extra in EXTRAS if extra not in ("cpu", "gpu", "tensorrt", "receivers", "dev")]
SETS = ("cpu", "gpu", *(f"cpu,{extra}" for extra in BESIDE_CPU), "cpu,openvino,demo")
LARGEST = 6


def torch_source() -> list[str]:
    links = os.environ.get("PIP_FIND_LINKS", "").split()
    return [word for link in links for word in ("--find-links", link)] or ["--torch-backend", "cpu"]


def measured(extras: str, folder: Path) -> dict[str, Any]:
    """Install one set and measure it: megabytes, files, distributions, the largest distributions."""
    environment = folder / extras
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run([*uv, *torch_source(), f"{ROOT}[{extras}]"], check=True)
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)
    sizes = {}
    for one in metadata.distributions(path=[str(next(environment.glob("lib/python3*/site-packages")))]):
        paths = {Path(str(file.locate())) for file in one.files or ()}
        sizes[one.metadata["Name"].lower()] = sum(path.stat().st_size for path in paths if path.is_file())
    largest = sorted(sizes, key=lambda name: -sizes[name])[:LARGEST]
    return {
        "size_mb": round(sum(sizes.values()) / 1e6),
        "packages": len(sizes),
        "largest_mb": {name: round(sizes[name] / 1e6) for name in largest},
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        sets = {extras: measured(extras, Path(folder)) for extras in SETS}
    figures = {"machine": platform.machine(), "torch": "CPU build", "sets": sets}
    save("install_sizes", figures)
