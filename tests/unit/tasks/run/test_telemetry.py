"""The engines that report their use to their makers by default stay quiet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("module", ["tasks.runtimes.ort", "tasks.engines.openvino.shipped.model"])
def test_an_engine_leaves_no_identifier_in_the_home_folder(module: str, tmp_path: Path) -> None:
    """Both libraries write a random identifier of the machine there before they send anything."""
    pytest.importorskip("openvino", reason="OpenVINO is an extra")
    code = f"import {module}, os, sys; print(os.environ['ORT_DISABLE_TELEMETRY'], sys.modules['openvino_telemetry'])"
    dropped = {"ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME", "CI"}
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    env |= {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["1", "None"]), done.stderr
    assert [str(path) for path in tmp_path.rglob("*")] == []
