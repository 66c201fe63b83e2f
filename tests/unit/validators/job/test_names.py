"""Names of models, data, groups and files are hostile: none leads to another path, and none is obeyed where it is shown."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.evidence.resolve_source import MODEL_URI
from tasks.records.result_document import conclude_error
from tasks.reporting.markdown import artifact_rows, terminal_rows, verdict_markdown
from tasks.reporting.page import render_page
from tasks.run.clock import Clock
from tasks.storage.locks import FolderLocks
from tasks.storage.product import Product
from tasks.storage.store import Store
from validators.errors import JobError, QuantgateError
from validators.job.candidate_name import decode
from validators.job.read_job import parse_job, read_job
from validators.plain_text import as_markdown, plain
from validators.untrusted.bounded_yaml import load_yaml

NASTY = st.one_of(
    st.text(max_size=40),
    st.lists(
        st.sampled_from(["..", "/", "\\", "~", ".", "\0", "%2f", "\n", "a", ":", "@", " ", "\x1b[2J"]), max_size=8
    ).map("".join),
)
OBEYED = ["\x1b]0;owned\x07", "\x1b[2J", "a\rb", "\u202egnp.exe", "\x9b31m", "x\x08y"]
WHOLE = {"data": {"calibration": "c.npz", "evaluation": "e.npz"}}


@given(NASTY, NASTY)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_the_store_keeps_to_its_folder(tmp_path: Path, name: str, other: str) -> None:
    """Whatever keys are made of, entries lie two folders deep."""
    store = Store(tmp_path / "store")
    store.make(Product("source", (name, other), str, lambda _: "made"))
    outside = [path for path in tmp_path.iterdir() if path.name != "store"]
    assert outside == [] and all(len(path.name) == 64 for path in (tmp_path / "store" / "source").iterdir())


@given(NASTY)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_locks_keep_to_their_folder(tmp_path: Path, name: str) -> None:
    """One file a name, directly in the folder."""
    with FolderLocks(tmp_path / "locks").hold(name, wait_seconds=1):
        assert [path.name for path in tmp_path.iterdir()] == ["locks"]
    assert all(path.is_file() for path in (tmp_path / "locks").iterdir())


@given(NASTY, NASTY)
def test_a_registrys_address_has_plain_parts(name: str, alias: str) -> None:
    """A name with a slash or an at sign would be another address."""
    for uri in (f"models:/{name}/1", f"models:/{name}@{alias}"):
        if found := MODEL_URI.fullmatch(uri):
            assert not set(found["name"]) & set("/@")
            assert not set(found["alias"] or "") & set("/@")


@given(NASTY)
def test_a_candidates_name_is_one_that_decodes(name: str) -> None:
    with contextlib.suppress(JobError):
        assert decode(name).name == name and not set(name) & set("/\\\0\n")


@pytest.mark.parametrize("name", OBEYED)
def test_nothing_is_obeyed_where_it_is_shown(name: str) -> None:
    """By a terminal, in errors and what is made of them."""
    error = QuantgateError(found=f"model {name}", expected=name, fix=name)
    shown = [str(error), error.found, plain(name), as_markdown(name)]
    result = conclude_error(None, error, Clock())
    shown += [verdict_markdown(result), result.reason, *(cell for row in terminal_rows(result) for cell in row)]
    assert not any(character in text for text in shown for character in "\x1b\x07\r\u202e\x9b\x08")
    assert plain("tab\tand\nline, ö, 模型") == "tab\tand\nline, ö, 模型"


HTML = "<script>alert(1)</script><img src=x onerror=alert(1)>[click](javascript:alert(1))|`x`"


def test_markup_is_shown_and_not_obeyed() -> None:
    """On the page, and in Prefect's artifacts."""
    error = QuantgateError(found=f"{HTML}\n| a | b |", expected=HTML, fix=HTML)
    result = conclude_error(None, error, Clock())
    page = render_page(result, parse_job(WHOLE | {"source": HTML}, base=Path("/x")))
    assert "<script>alert" not in page and "<img src=x" not in page
    text = verdict_markdown(result)
    assert "](javascript" not in text.replace("\\]", "") and "<script" not in text.replace("\\<", "")
    assert "\n| a" not in text
    assert artifact_rows(result) == []


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS,
        "a: &a [*a]\n",
        "a: &a {b: *a}\n",
        "- " * 3000 + "x",
        "[" * 100_000,
        "x" * 1_000_001,
        "!!python/object/apply:os.getcwd []",
    ],
    ids=["laughs", "itself", "itself in a mapping", "deep", "deeper", "long", "python"],
)
def test_yaml_that_explodes_is_refused(text: str, tmp_path: Path) -> None:
    """With a message, and before anything walks through it."""
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(JobError) as caught:
        read_job(tmp_path / "job.yaml")
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1:30", "1:30"), ("1:1.5", "1:1.5"), ("-190:20:30", "-190:20:30"), ("0", 0), ("-12", -12), ("1_000", 1000)),
        *(
            ("0x1F", 31),
            ("0b101", 5),
            ("017", 15),
            ("08", "08"),
            ("1.5", 1.5),
            ("-.5", -0.5),
            ("1.", 1.0),
            ("1.5e+3", 1500.0),
        ),
        *(("1e3", "1e3"), (".inf", float("inf")), ("-.INF", -float("inf")), ("!!float 3", 3.0), ("!!int '7'", 7)),
        *(("-", [None]), ("+", "+"), (".", "."), ("v1.2", "v1.2"), (str(2**63), 2**63)),
    ],
)
def test_numbers_are_read_without_base_60(text: str, value: object) -> None:
    found = load_yaml(text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "!!int ''",
        "!!float '-'",
        "!!int 1:30",
        "!!float 1:1.5",
        "9" * 68,
        "0x" + "f" * 66,
        "!!bool x",
        "!!set [a]",
        "2024-99-99",
    ],
)
def test_a_value_that_does_not_fit_its_tag_is_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        load_yaml(text)


@pytest.mark.parametrize("text", [LAUGHS, "a: &a [*a]\n", "a: &a {b: *a}\n"])
def test_aliases_are_counted_as_often_as_they_repeat(text: str) -> None:
    """A hundred million values in eight lines, or no end of them."""
    with pytest.raises(yaml.YAMLError, match="values with all aliases expanded"):
        load_yaml(text)


def test_aliases_in_reason_are_fine() -> None:
    assert load_yaml("a: &a [1, 2]\nb: *a\nc: {<<: {d: 1}}\n") == {"a": [1, 2], "b": [1, 2], "c": {"d": 1}}
    assert load_yaml("") is None
    assert os.sep == "/"
