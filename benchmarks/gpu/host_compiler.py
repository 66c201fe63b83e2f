"""The C++ compiler whose code runs in this Python: on a borrowed machine CXX may name one with a C++ library of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# As in the constructor of a compiled package, which crashes where the libraries differ.
_PROBE = """
#include <regex>
extern "C" int probe() { return std::regex_match(std::string("cuda:0"), std::regex("(cpu|cuda)(:([0-9]+))?")) ? 0 : 1; }
"""
_PATIENCE_SECONDS = 120.0
SYSTEM = "/usr/bin/g++"


def choose_compiler() -> str | None:
    """Set CXX to the first compiler whose code runs beside torch, the system's before that of CXX; return it.

    None, and CXX as it was, if there is no such compiler.
    """
    known = [shutil.which(name) for name in (SYSTEM, os.environ.get("CXX", "g++"), "g++") if name]
    for compiler in dict.fromkeys(one for one in known if one):
        if _works(compiler):
            os.environ["CXX"] = compiler
            return compiler
    return None


def _works(compiler: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="quantgate-") as folder:
        source, library = Path(folder, "probe.cpp"), Path(folder, "probe.so")
        source.write_text(_PROBE, encoding="utf-8")
        load = f"import ctypes, sys, torch; sys.exit(ctypes.CDLL({str(library)!r}).probe())"
        steps = ([compiler, "-shared", "-fPIC", "-O1", str(source), "-o", str(library)], [sys.executable, "-c", load])
        try:
            return all(
                subprocess.run(step, capture_output=True, check=False, timeout=_PATIENCE_SECONDS).returncode == 0
                for step in steps
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
