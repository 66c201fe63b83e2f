"""Greedy answers beside the baseline's: the share before the first other token, by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tasks.measure import continuations
from tasks.measure.continuations import agreement_of, make_continuations, prompt_rows
from validators.records.run import SessionSettings, Variant


@pytest.mark.parametrize(
    ("answers", "shares"),
    [
        ([[1, 2, 3, 4]], (1.0,)),
        ([[1, 2, 9, 4]], (0.5,)),
        # What is equal again after the first other token counts no more.
        ([[9, 2, 3, 4]], (0.0,)),
        ([[1, 2, 3, 9]], (0.75,)),
    ],
)
def test_an_answer_counts_up_to_its_first_other_token(answers: list[list[int]], shares: tuple[float, ...]) -> None:
    found = agreement_of(((1, 2, 3, 4),), tuple(map(tuple, answers)))
    assert found.new_tokens == 4 and found.shares == shares


class Counter:
    """A model whose answer counts up from the last token of the prompt."""

    asked: list[int]

    def __init__(self) -> None:
        self.asked = []

    def generate(self, tokens: NDArray[Any], new_tokens: int) -> NDArray[np.int32]:
        self.asked.append(len(tokens))
        return (tokens[:, -1:] + np.arange(1, new_tokens + 1)).astype(np.int32)


def test_prompts_are_answered_in_batches_and_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = Counter()

    @contextmanager
    def opened(*_: Any) -> Iterator[Counter]:
        yield model

    monkeypatch.setattr(continuations, "open_runner", opened)
    variant = Variant("int8-g32-rtn@ort-genai", tmp_path / "m.onnx", "digest", 1, SessionSettings("any", 1))
    found = make_continuations(variant, np.arange(40).reshape(20, 2), 3, tmp_path)
    assert model.asked == [8, 8, 4]
    assert found == tuple((last + 1, last + 2, last + 3) for last in range(1, 40, 2))


def test_prompts_are_drawn_across_documents() -> None:
    """Of ten documents of eight windows each, 15 prompts: one window of each, and a second one of five."""
    documents = np.repeat(np.arange(10), 8)
    kept = np.tile([True, False], 40)
    rows = prompt_rows(~kept, documents, 15, seed=3)
    assert sorted(np.bincount(documents[rows]).tolist()) == [1] * 5 + [2] * 5
    assert not kept[rows].any() and rows.tolist() == sorted(set(rows.tolist()))
    again, other = (prompt_rows(~kept, documents, 15, seed=seed).tolist() for seed in (3, 4))
    assert rows.tolist() == again != other
    assert prompt_rows(kept, documents, 99, seed=3).tolist() == np.flatnonzero(kept).tolist()
    free = prompt_rows(~kept, None, 15, seed=3)
    assert len(free) == 15 and not kept[free].any() and free.max() > 40
