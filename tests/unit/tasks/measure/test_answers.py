"""Prompts cut out of evaluation windows, and the texts that answer them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tasks.measure.continuations import Reader, answer_windows, expected_texts, prompt_lengths
from validators.errors import DataError
from validators.records.run import DataFile
from validators.samples.datasets import Samples

END, PAD, NONE = 9, 0, -100


class Letters:
    """A tokenizer of one letter for each token."""

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join("abcdefghi"[token] for token in tokens)


READER = Reader(Letters(), frozenset({END}))


class Counting:
    """A decoder that counts on from the last token of a prompt, ends its text after 8, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[NDArray[Any]] = []

    def generate(self, tokens: NDArray[Any], new_tokens: int, *, past_end: bool = True) -> NDArray[np.int32]:
        assert not past_end
        self.asked.append(tokens)
        found = tokens[:, -1:] + np.arange(1, new_tokens + 1)
        return np.where(found > END, PAD, found).astype(np.int32)


def samples(labels: list[list[int]] | None) -> Samples:
    windows = np.array([[1, 2, 3, 4], [5, 6, 3, 4], [1, 7, 3, 4], [1, 2, 3, 7]])
    given = None if labels is None else np.array(labels)
    return Samples(DataFile(Path("ev.npz"), "digest", len(windows)), {"input_ids": windows}, given)


LABELS = [[NONE, NONE, 3, 4], [NONE, NONE, 7, END], [NONE, NONE, 8, NONE], [NONE, NONE, NONE, 8]]


def test_a_prompt_ends_where_the_labels_start() -> None:
    decoder = Counting()
    found = np.concatenate([*answer_windows(decoder, samples(LABELS), READER, 3)])
    # Nothing after the end of a text, whatever the decoder fills up with.
    assert found.tolist() == ["def", "hi", "i", "efg"]
    assert [rows.tolist() for rows in decoder.asked] == [[[1, 2], [5, 6], [1, 7]], [[1, 2, 3]]]
    assert expected_texts(np.array(LABELS), READER).tolist() == ["de", "h", "i", "i"]


def test_without_labels_the_whole_window_is_the_prompt() -> None:
    assert prompt_lengths(samples(None)) == [4] * 4
    found = np.concatenate([*answer_windows(Counting(), samples(None), READER, 2)])
    assert found.tolist() == ["fg", "fg", "fg", "i"]


@pytest.mark.parametrize("row", [[3, NONE, NONE, NONE], [NONE] * 4])
def test_a_window_without_prompt_or_label_is_refused(row: list[int]) -> None:
    with pytest.raises(DataError, match="window 2 has no prompt or no label"):
        prompt_lengths(samples([*LABELS[:2], row, LABELS[3]]))
