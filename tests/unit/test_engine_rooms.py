"""Engines stay in their rooms: no other file of the product names one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from validators import target_facts
from validators.targets import ENGINES

ROOT = Path(__file__).parents[2]
ROOMS = {module.removesuffix(".facts") for module in ENGINES.values()}
PROVIDERS = {name: value for name, value in vars(target_facts).items() if name.isupper() and isinstance(value, str)}
NAMES = {*ENGINES, *PROVIDERS.values()}
# ONNX Runtime computes references for all engines; a demo has a job of its own; the last two are the catalogue of names.
EXEMPT = ("tasks/runtimes/", "tasks/demo/", "validators/targets.py", "validators/target_facts.py")
# Checks of the files of a version, which each package that goes with one has for itself.
SHARED = {"tasks/champion/readback.py": {"tasks.engines.tensorrt.shipped.files"}}


def named(text: str) -> set[str]:
    """Engines that a source names: a text that is a name of one, a constant of a provider, or an import from a room."""
    return set(_named(ast.parse(text)))


def _named(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in NAMES:
            yield str(node.value)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if any(f"{node.module}.".startswith(f"{room}.") for room in ROOMS):
                yield node.module
            if node.module == "validators.target_facts":
                yield from (alias.name for alias in node.names if alias.name in PROVIDERS)


@pytest.mark.parametrize(
    "text",
    [
        'if target == "openvino":\n    pass',
        "from validators.target_facts import TENSORRT",
        "from tasks.engines.ort.pairs import PAIRS",
        'def f():\n    return ["CPUExecutionProvider"]',
    ],
)
def test_a_file_that_names_an_engine_is_seen(text: str) -> None:
    assert named(text)


def test_no_file_outside_of_the_rooms_names_an_engine() -> None:
    found = {}
    for folder in ("flows", "tasks", "validators"):
        for file in (ROOT / folder).rglob("*.py"):
            name = str(file.relative_to(ROOT))
            rooms = tuple(f"{room.replace('.', '/')}/" for room in ROOMS)
            if not name.startswith((*rooms, *EXEMPT)):
                found[name] = named(file.read_text(encoding="utf-8")) - SHARED.get(name, set())
    assert len(found) > 300
    assert {name: names for name, names in found.items() if names} == {}
