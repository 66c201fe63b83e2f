"""Functions of the user's: found beside the job or installed, loaded without a trace, faulty ones named."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.measure.metrics.user_code import load_function
from validators.errors import JobError
from validators.source_code import digest_user_code


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever these tests load; that nothing else is loaded is test_allowed.py's."""
    files = [f"{name}:*" for name in ("mine", "json", "tasks", "numpy", "package.mine")]
    folders = [tmp_path, *(tmp_path / name for name in ("one", "other", *"abcde"))]
    installed = ["statistics:fmean", "absent_of_mine:score", "absent_of_mine.deeper:score"]
    listed = [*installed, *(f"{file}@{folder}" for file in files for folder in folders), "mine:score"]
    monkeypatch.setenv("QUANTGATE_ALLOWED_HOOKS", ",".join(listed))


def test_a_file_beside_the_job(tmp_path: Path) -> None:
    """It works as a module does: records and neighbours and all. The path is as before, and so are the modules."""
    write(tmp_path / "neighbour_of_mine.py", "FACTOR = 3\n")
    write(
        tmp_path / "mine.py",
        "from dataclasses import dataclass\nfrom neighbour_of_mine import FACTOR\n"
        "@dataclass\nclass Pair:\n    a: 'int'\ndef score(x):\n    return Pair(x * FACTOR).a\n",
    )
    path, modules = list(sys.path), set(sys.modules)
    found = load_function("mine:score", tmp_path, key="metric")
    assert found.function(2) == 6 and found.name == "mine:score"
    assert sys.path == path
    assert all(name.startswith("_quantgate_user_") for name in set(sys.modules) - modules)


@pytest.mark.parametrize("name", ["json", "tasks", "numpy"])
def test_a_file_shadows_nothing(name: str, tmp_path: Path) -> None:
    """A file named like a library or like ours is found by the job, and by nobody else."""
    write(tmp_path / f"{name}.py", "import json\ndef score():\n    return json.dumps([1])\n")
    before = sys.modules.get(name)
    assert load_function(f"{name}:score", tmp_path, key="metric").function() == "[1]"
    assert sys.modules.get(name) is before


def test_a_neighbour_shadows_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one that nobody has imported yet: its own folder stands last on the path."""
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    write(tmp_path / "colorsys.py", "")
    write(tmp_path / "mine.py", "import colorsys\ndef where():\n    return colorsys.__file__\n")
    found = Path(load_function("mine:where", tmp_path, key="metric").function())
    assert not found.is_relative_to(tmp_path)


def test_jobs_do_not_share_neighbours(tmp_path: Path) -> None:
    """Two folders with files of the same names each have their own."""
    for which in ("one", "other"):
        write(tmp_path / which / "helpers_of_mine.py", f"NAME = {which!r}\n")
        write(tmp_path / which / "mine.py", "import helpers_of_mine as h\ndef name():\n    return h.NAME\n")
    names = [load_function("mine:name", tmp_path / which, key="step").function() for which in ("one", "other")]
    assert names == ["one", "other"]


def test_a_module_in_a_folder(tmp_path: Path) -> None:
    write(tmp_path / "package" / "mine.py", "def score():\n    return 5\n")
    assert load_function("package.mine:score", tmp_path, key="metric").function() == 5


def test_an_installed_module(tmp_path: Path) -> None:
    import statistics

    found = load_function("statistics:fmean", tmp_path, key="metric")
    assert found.function([1.0, 2.0]) == 1.5 and found.function.__wrapped__ is statistics.fmean  # type: ignore[attr-defined]  # of functools.wraps
    assert len(found.digest) == 64


def test_exit_in_a_function_is_its_error(tmp_path: Path) -> None:
    """It would end the run with the exit code of a success."""
    write(tmp_path / "mine.py", "def score():\n    raise SystemExit(0)\n")
    with pytest.raises(RuntimeError, match="SystemExit: 0"):
        load_function("mine:score", tmp_path, key="metric").function()


def test_the_digest_is_that_of_file_and_neighbours(tmp_path: Path) -> None:
    """A change in either is another function; the same text elsewhere is the same."""

    def digest(folder: str, factor: int, comment: str = "") -> str:
        write(tmp_path / folder / "factor_of_mine.py", f"FACTOR = {factor}\n")
        text = f"from factor_of_mine import FACTOR{comment}\ndef score():\n    return FACTOR\n"
        write(tmp_path / folder / "mine.py", text)
        return load_function("mine:score", tmp_path / folder, key="metric").digest

    assert digest("a", 1) == digest("b", 1)
    assert len({digest("c", 1), digest("d", 2), digest("e", 1, "  # changed")}) == 3


def install(site: Path, name: str, version: str, *, editable: bool = False, **files: str) -> None:
    """A distribution of one package, as pip leaves it; `files` are its modules."""
    for module, text in ({"__init__": ""} | files).items():
        write(site / name / f"{module}.py", text)
    about = site / f"{name}-{version}.dist-info"
    write(about / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    write(about / "top_level.txt", name)
    write(about / "direct_url.json", json.dumps({"url": "file:///x", "dir_info": {"editable": editable}}))


IMPORTED = """
def score(outputs, labels):
    from theirs_of_mine import rounded
    from .deep import FACTOR
    return outputs * FACTOR
"""


@pytest.mark.parametrize(
    ("change", "is_seen"),
    [
        ({}, False),
        ({"deepest": "FACTOR = 0.1\n"}, True),
        ({"unused": "FACTOR = 0.1\n"}, False),
        ({"version": "1.1"}, True),
        ({"theirs": "2.1"}, True),
        ({"theirs_text": "def rounded(): return 0\n"}, False),
        ({"theirs_text": "def rounded(): return 0\n", "editable": True}, True),
        ({"costs": "[10]"}, True),
        ({"other_data": "[10]"}, False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_installed_function_is_its_distribution_and_imports(
    change: dict[str, Any], is_seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of its own distribution, quoted data, versions of others; a file of another one only if it is editable."""

    def digest(folder: str, **parts: Any) -> str:
        site = tmp_path / folder
        editable = bool(change.get("editable"))
        own = {
            "metric": IMPORTED,
            "deep": "from ours_of_mine.inner.deepest import FACTOR\nCOSTS = open('costs.json')\n",
        }
        # A folder without __init__.py is a package, too.
        own |= {"inner/deepest": parts.get("deepest", "FACTOR = 1\n"), "unused": parts.get("unused", "")}
        install(site, "ours_of_mine", parts.get("version", "1.0"), **own)
        text = parts.get("theirs_text", "def rounded(): return 1\n")
        install(site, "theirs_of_mine", parts.get("theirs", "2.0"), editable=editable, __init__=text)
        write(site / "ours_of_mine" / "costs.json", parts.get("costs", "[1]"))
        write(site / "ours_of_mine" / "other.json", parts.get("other_data", "[1]"))
        with monkeypatch.context() as patch:
            patch.syspath_prepend(site)
            return digest_user_code("ours_of_mine.metric")

    assert (digest("before") != digest("after", **change)) == is_seen


def test_file_function_is_its_data_and_the_code_that_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table beside it whose name stands in it, and a module that no distribution installed."""

    def digest(folder: str, *, cost: int = 1, factor: int = 1) -> str:
        place = tmp_path / folder
        write(place / "costs.json", json.dumps([cost]))
        write(tmp_path / f"path-{folder}" / "shared_of_mine" / "factor.py", f"FACTOR = {factor}\n")
        text = "import json\nfrom pathlib import Path\nfrom shared_of_mine.factor import FACTOR\n"
        text += "def score():\n    return json.loads(Path(__file__).with_name('costs.json').read_text())[0] * FACTOR\n"
        write(place / "mine.py", text)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(tmp_path / f"path-{folder}")
            found = load_function("mine:score", place, key="metric")
            assert found.function() == cost * factor
            for name in ("shared_of_mine.factor", "shared_of_mine"):
                sys.modules.pop(name)
            return found.digest

    assert digest("a") == digest("b") != digest("c", cost=2)
    assert digest("d", factor=3) not in (digest("e"), digest("one", cost=3))


def test_a_file_is_loaded_once(tmp_path: Path) -> None:
    """What a run measures does not change half-way, nor does the digest that stands for it."""
    file = write(tmp_path / "mine.py", "def score():\n    return 1\n")
    before = load_function("mine:score", tmp_path, key="metric")
    write(file, "def score():\n    return 2\n")
    after = load_function("mine:score", tmp_path, key="metric")
    assert after.function() == 1 and after.digest == before.digest


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        (None, "absent_of_mine:score", "neither a file"),
        (None, "absent_of_mine.deeper:score", "neither a file"),
        ("def other(): ...\n", "mine:score", "no function 'score'"),
        ("score = 3\n", "mine:score", "no function 'score'"),
        ("1 / 0\n", "mine:score", "raises ZeroDivisionError when imported"),
        ("def score(:\n", "mine:score", "raises SyntaxError when imported"),
        ("import absent_of_mine\n", "mine:score", "raises ModuleNotFoundError when imported"),
        ("raise SystemExit(3)\n", "mine:score", "raises SystemExit when imported"),
    ],
)
def test_faults_are_named(text: str | None, name: str, found: str, tmp_path: Path) -> None:
    if text is not None:
        write(tmp_path / "mine.py", text)
    modules = set(sys.modules)
    with pytest.raises(JobError) as caught:
        load_function(name, tmp_path, key="metric")
    assert found in caught.value.found and f"`metric: {name}`" in caught.value.found
    if "no function" not in found:
        assert not {module for module in set(sys.modules) - modules if "user" in module}, "nothing half-loaded stays"
    if text and "def other" in text:
        assert "other" in caught.value.expected
