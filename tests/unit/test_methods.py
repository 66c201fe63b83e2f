"""Methods have their facts in one row: no other file of the product names one, and each has its functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.ptq.calibrate.range_methods import METHODS as RANGE_FUNCTIONS
from tasks.ptq.eight_bit.int8_weights import METHODS as INT8_FUNCTIONS
from tasks.ptq.weight_only.roundings import BLOCKS
from validators.errors import JobError
from validators.job.candidate_name import Candidate, decode
from validators.job.methods import FLAGS, NEAREST, RANGES, ROUNDINGS

ROOT = Path(__file__).parents[2]
# The catalogue, and the functions by their words.
CATALOGUE = ("validators/job/methods.py",)
TABLES = tuple(
    f"tasks/ptq/{name}.py" for name in ("weight_only/roundings", "eight_bit/int8_weights", "calibrate/range_methods")
)
# A step's own module, and names that mean something else there: a precision, a metric, a setting of another tool.
ELSEWHERE = {
    "tasks/ptq/eight_bit/smoothed_graph.py": {"smooth"},
    "tasks/ptq/graph/rotate.py": {"rot"},
    "tasks/measure/metrics/catalog.py": {"mse"},
    "tasks/measure/metrics/values.py": {"mse"},
    "validators/job/metric_facts.py": {"mse"},
    "tasks/evidence/given/adapters/with_optimum_intel.py": {"awq"},
}
# Words of English, of which a text may have any, and those that are a text of its own elsewhere.
ENGLISH = {"all", "fast", "learned", "smooth", "percentile", "entropy", "mse", "bf16"}
COMMON = {"all", "bf16"}
WORDS = {*ROUNDINGS, *RANGES, *(flag.word for flag in FLAGS)}


def pattern_of(word: str) -> re.Pattern[str]:
    """A text that is the word, or has it, after a dash if it is English, apart from names of candidates."""
    whole = "(?!)" if word in COMMON else rf"\A{re.escape(word)}\Z"
    dash = "-" if word in ENGLISH else "-?"
    return re.compile(rf"{whole}|(?<![\w.-]){dash}(?i:{re.escape(word)})(?![\w@-])")


PATTERNS = {word: pattern_of(word) for word in WORDS}


def named(text: str) -> set[str]:
    """Methods that a source names in texts, but for docstrings and whole names of candidates."""
    return set(_named(ast.parse(text)))


def _named(tree: ast.Module) -> Iterator[str]:
    expressions = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings among them
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in expressions:
            found = [word for word, pattern in PATTERNS.items() if pattern.search(node.value)]
            if found and not _is_candidate(node.value):
                yield from found


def _is_candidate(text: str) -> bool:
    for name in (text, f"{text}@ort-cpu"):
        try:
            return bool(decode(name))
        except JobError:
            continue
    return False


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('if candidate.weight_method == "gptq":\n    pass', "gptq"),
        ('SCALED = ("awq", "hqq")', "awq"),
        ('fix = f"take {size} by HQQ"', "hqq"),
        ('"the docstring"\n\nfix = "leave out -learned"', "learned"),
        ('def f():\n    return {"minmax": 1, "p99.9": 2}', "p99.9"),
        ('fix = "take the candidate without -fast, which is the same"', "fast"),
    ],
)
def test_a_file_that_names_a_method_is_seen(text: str, word: str) -> None:
    assert word in named(text)


@pytest.mark.parametrize(
    "text",
    ['"""By gptq."""', 'DEFAULT = ("int4-g32-gptq-asym@ort-genai", "int8-static-mse-pc-learned")', 'x = "all is fast"'],
)
def test_docstrings_and_names_of_candidates_are_let_through(text: str) -> None:
    assert named(text) == set()


def test_no_other_file_names_a_method() -> None:
    found = {}
    for folder in ("flows", "tasks", "validators"):
        for file in (ROOT / folder).rglob("*.py"):
            name = str(file.relative_to(ROOT))
            if name not in (*CATALOGUE, *TABLES):
                found[name] = named(file.read_text(encoding="utf-8")) - ELSEWHERE.get(name, set())
    assert len(found) > 500
    assert {name: words for name, words in found.items() if words} == {}


def test_every_exemption_is_one_that_is_needed() -> None:
    for name, words in ELSEWHERE.items():
        assert words <= named((ROOT / name).read_text(encoding="utf-8")), name


def test_every_row_has_a_function_and_every_function_a_row() -> None:
    by_precision = {
        precision: {word for word, row in ROUNDINGS.items() if precision in row.precisions}
        for precision in ("int4", "int8", "int8-weights")
    }
    assert by_precision["int4"] == set(BLOCKS)
    # INT8 without a word is rounded to nearest, and so are its blocks, which no function rounds.
    assert by_precision["int8"] | {NEAREST.word} == set(INT8_FUNCTIONS)
    assert by_precision["int8-weights"] == {NEAREST.word}
    assert set(RANGES) == set(RANGE_FUNCTIONS)


def test_every_step_sets_a_field_of_candidates() -> None:
    assert {flag.field for flag in FLAGS} <= set(Candidate.__dataclass_fields__)
