"""The wheel: an environment that it is installed into needs no checkout."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from docs_pages import ROOT
from driving import environment

pytestmark = pytest.mark.slow
PACKAGES = ("flows", "tasks", "validators")
# Files that commands read beside the packages.
BESIDE = ("examples/*.yaml", "infra/prefect.yaml", "infra/receiver/*.py")
# Where the installed packages look for them.
ASK = """
import json, flows
from flows.cli.demo import EXAMPLES
from flows.service.serve import RECEIVER
from tasks.run.settings import beside_the_packages
found = {"examples": EXAMPLES, "infra/receiver": RECEIVER, "infra": beside_the_packages("infra/prefect.yaml").parent}
print(json.dumps({name: str(path) for name, path in found.items()} | {"flows": flows.__file__}))
"""


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel of this checkout, made without a network."""
    root = tmp_path_factory.mktemp("package")
    source, made = root / "source", root / "environment"
    leave_out = shutil.ignore_patterns("__pycache__")
    for name in (*PACKAGES, "examples", "infra"):
        shutil.copytree(ROOT / name, source / name, ignore=leave_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    no_index = ["--no-index", "--no-deps", "--quiet"]
    pip = [sys.executable, "-m", "pip"]
    for command in (
        [*pip, "wheel", *no_index, "--no-build-isolation", "--wheel-dir", str(root / "dist"), str(source)],
        [sys.executable, "-m", "venv", "--without-pip", str(made)],
    ):
        subprocess.run(command, check=True, capture_output=True)
    (wheel,) = (root / "dist").iterdir()
    # A checkout on PYTHONPATH counts as installed.
    install = [*pip, "--python", str(made), "install", *no_index, "--ignore-installed", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    return made


def installed(prefix: Path, *command: str) -> str:
    """The output of a program of the environment, away from the checkout; its libraries are those of the tests."""
    env = environment(prefix.parent / "state", PYTHONPATH=sysconfig.get_path("purelib"))
    done = subprocess.run(
        [str(prefix / "bin" / command[0]), *command[1:]],
        env=env,
        cwd=prefix.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def files_of(root: Path, patterns: tuple[str, ...]) -> dict[str, bytes]:
    found = [path for pattern in patterns for path in root.glob(pattern) if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in found if "__pycache__" not in path.parts}


def test_the_wheel_has_every_file_of_the_packages(prefix: Path) -> None:
    """Templates, scripts and style sheets too."""
    (site,) = prefix.glob("lib/python3*/site-packages")
    patterns = tuple(f"{name}/**/*" for name in PACKAGES)
    wanted = files_of(ROOT, patterns)
    assert len(wanted) > 400 and files_of(site, patterns) == wanted


def test_commands_find_files_beside_the_packages(prefix: Path) -> None:
    """The demos' jobs, the deployments and the receiver, where the installed code looks for them."""
    said = json.loads(installed(prefix, "python", "-c", ASK))
    assert all(Path(path).is_relative_to(prefix) for path in said.values()), said
    wanted = files_of(ROOT, BESIDE)
    assert len(wanted) >= 8
    assert {name: (Path(said[name.rpartition("/")[0]]) / Path(name).name).read_bytes() for name in wanted} == wanted


def test_the_installed_command_runs(prefix: Path) -> None:
    assert installed(prefix, "quantgate", "--version").startswith("quantgate 0.")
    job = Path(json.loads(installed(prefix, "python", "-c", ASK))["examples"]) / "text.yaml"
    assert "int8-dynamic-pc+fused@ort-cpu" in installed(prefix, "quantgate", "candidates", str(job))
