"""The wheels that a check needs on a machine with PyTorch and no network, for its Python: fetched, and cut into parts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpu.parts import split
from validators.errors import InfrastructureError

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
# pip takes each of these names literally, and no newer one for an older: all that may run with a C library of 2.28.
PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)), "manylinux2014_x86_64")


def download(folder: Path, python: str, part_bytes: int) -> list[Path]:
    """Fetch wheels for a Linux on x86-64 into the folder, and cut those larger than `part_bytes`; 0 leaves them whole.

    Raises:
        InfrastructureError: pip does not bring them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-input", "--quiet", "--only-binary=:all:"]
    command += ["--implementation=cp", f"--python-version={python}", f"--dest={folder}", "-r", str(REQUIREMENTS)]
    command += [f"--platform={platform}" for platform in PLATFORMS]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        said = [line for line in run.stderr.splitlines() if line.startswith("ERROR")] or run.stderr.splitlines()[-3:]
        raise InfrastructureError(
            found=f"pip could not download the wheels: {' '.join(said)}",
            expected="a package index with wheels for that Python",
            fix="check pip's configuration, or take another --python",
        )
    parts: list[Path] = []
    for wheel in sorted(folder.glob("*.whl")):
        parts += split(wheel, part_bytes) if part_bytes else [wheel]
    return parts
