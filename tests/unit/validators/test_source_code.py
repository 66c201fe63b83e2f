"""Which files belong to the code of a module: everything that it imports of ours, and nothing else."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from validators.source_code import OURS, SourceTree, references_of

FILES = {
    "tasks/__init__.py": '"""Steps."""\n',
    "tasks/top.py": "import json\nimport numpy as np\nfrom tasks.room import inner\n",
    "tasks/room/__init__.py": '"""A room."""\nfrom tasks.room.registry import ALL\n',
    "tasks/room/inner.py": "def late():\n    if True:\n        from validators.deep import DEEP\n    return DEEP\n",
    "tasks/room/registry.py": "ALL = 1\n",
    "tasks/beside.py": "from .room import registry\n",
    "tasks/typed.py": "if TYPE_CHECKING:\n    import tasks.unused\nelse:\n    import tasks.used\n",
    "tasks/starts.py": 'COMMAND = ["-m", "tasks.used"]\nWORKER = Path(__file__).with_name("unused.py")\n',
    "tasks/tried.py": "try:\n    import tasks.used\nexcept ImportError:\n    import tasks.unused\n",
    "tasks/used.py": "A = 1\n",
    "tasks/unused.py": "B = 1\n",
    "validators/deep.py": "DEEP = 1\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def closure(root: Path, module: str, *cuts: str) -> set[str]:
    """The modules of a closure, without the module itself."""
    tree = SourceTree(root)
    return set(tree.closure(tree.modules[module], cuts)) - {module}


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        # Through a package with code, and inside a function; a package that only has a docstring is left out.
        ("tasks.top", {"tasks.room", "tasks.room.inner", "tasks.room.registry", "validators.deep"}),
        ("tasks.beside", {"tasks.room", "tasks.room.registry"}),
        ("tasks.typed", {"tasks.used"}),
        ("tasks.starts", {"tasks.used", "tasks.unused"}),
        ("tasks.tried", {"tasks.used", "tasks.unused"}),
        ("tasks.used", set()),
    ],
)
def test_closure_follows_every_form_of_import(root: Path, module: str, expected: set[str]) -> None:
    assert closure(root, module) == expected


def test_cut_removes_a_module_and_all_below_it(root: Path) -> None:
    """A cut names whole modules: `tasks.room.reg` cuts nothing."""
    assert closure(root, "tasks.top", "tasks.room") == set()
    assert closure(root, "tasks.top", "tasks.room.inner") == {"tasks.room", "tasks.room.registry"}
    assert "tasks.room.registry" in closure(root, "tasks.top", "tasks.room.reg")
    # The code of a module that is cut elsewhere still has a digest.
    assert closure(root, "tasks.room.inner", "tasks.room") == {"validators.deep"}


def test_digest_changes_with_any_file_of_the_closure(root: Path) -> None:
    def digest() -> str:
        tree = SourceTree(root)
        return tree.digest(tree.modules["tasks.top"])

    before = digest()
    (root / "tasks" / "unused.py").write_text("B = 2\n")
    assert digest() == before
    (root / "validators" / "deep.py").write_text("DEEP = 2\n")
    assert digest() != before


def test_moving_code_between_files_changes_the_digest(root: Path) -> None:
    """Two files that swap their content are other code."""
    tree = SourceTree(root)
    before = tree.digest(tree.modules["tasks.tried"])
    (root / "tasks" / "used.py").write_text(FILES["tasks/unused.py"])
    (root / "tasks" / "unused.py").write_text(FILES["tasks/used.py"])
    assert SourceTree(root).digest(tree.modules["tasks.tried"]) != before


def test_processes_started_by_name_are_in_the_closure() -> None:
    """In this project: a module that is run with `-m`, and a script that lies beside its caller."""
    assert "tasks.evidence.torch_export_process" in OURS.closure(OURS.modules["tasks.evidence.torch_export"])
    assert "tasks.measure.latency.worker" in OURS.closure(OURS.modules["tasks.measure.latency.process"])
    assert "tasks.engines.tensorrt.build_process_child" in OURS.closure(OURS.modules["tasks.engines.tensorrt.build"])


@pytest.fixture
def hasty_collector() -> Iterator[None]:
    """A garbage collector that runs often, and lets other threads run meanwhile, as libraries with callbacks do."""

    def let_others_run(*_: object) -> None:
        time.sleep(0)

    thresholds = gc.get_threshold()
    gc.set_threshold(20)
    gc.callbacks.append(let_others_run)
    yield
    gc.callbacks.remove(let_others_run)
    gc.set_threshold(*thresholds)


def test_files_are_parsed_in_several_threads(hasty_collector: None) -> None:
    """Two candidates at a time ask for the digest of their code."""
    texts = [f"{Path(__file__).read_text(encoding='utf-8')}# {number}" for number in range(60)]
    with ThreadPoolExecutor(4) as threads:
        assert len({references.imports for references in threads.map(references_of, texts)}) == 1
