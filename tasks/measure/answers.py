"""Texts that a decoder answers to the prompts of evaluation windows, for the metric of a user."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.measure.continuations import PROMPTS_AT_ONCE, Generator
from validators.errors import DataError
from validators.samples.datasets import Samples
from validators.samples.labels import IGNORED

TOKENS = "input_ids"

Texts = NDArray[np.str_]


@dataclass(frozen=True)
class Reader:
    """Tokenizer of a decoder, and the tokens that end a text."""

    tokenizer: Any
    ends: frozenset[int]

    def text(self, tokens: NDArray[Any]) -> str:
        """Return the text of tokens up to the first that ends it, without special tokens."""
        ending = np.flatnonzero(np.isin(tokens, list(self.ends)))
        kept = tokens[: ending[0]] if len(ending) else tokens
        return str(self.tokenizer.decode(kept.tolist(), skip_special_tokens=True))


def read_tokenizer(folder: Path) -> Reader:
    """Return the tokenizer beside the graph of a decoder."""
    # Comes with transformers, which converted the source.
    from tokenizers import Tokenizer

    config = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))["model"]
    ends = frozenset(map(int, np.ravel(config["eos_token_id"])))
    return Reader(Tokenizer.from_file(str(folder / "tokenizer.json")), ends)


def answer_windows(generator: Generator, samples: Samples, reader: Reader, new_tokens: int) -> Iterator[Texts]:
    """Yield the answers to the prompts of all windows, in order, in batches of `(n,)`.

    A prompt is what stands before a window's first label, or the whole window where the data has no labels. An answer has at
    most `new_tokens` tokens, chosen greedily.

    Raises:
        DataError: a window has no prompt, or no label.
    """
    tokens = samples.inputs[TOKENS]
    for length, rows in groupby(range(len(samples)), key=prompt_lengths(samples).__getitem__):
        alike = list(rows)
        for start in range(0, len(alike), PROMPTS_AT_ONCE):
            chosen = alike[start : start + PROMPTS_AT_ONCE]
            answers = generator.generate(tokens[chosen, :length], new_tokens, past_end=False)
            yield np.array([reader.text(answer) for answer in answers], str)


def expected_texts(labels: NDArray[Any], reader: Reader) -> Texts:
    """Return the text of each window's labels, `(n,)`."""
    return np.array([reader.text(row[row != IGNORED]) for row in labels], str)


def prompt_lengths(samples: Samples) -> list[int]:
    """Return the number of tokens of each window's prompt.

    Raises:
        DataError: a window has no prompt, or no label.
    """
    if samples.labels is None:
        return [samples.inputs[TOKENS].shape[1]] * len(samples)
    labelled = samples.labels != IGNORED
    lengths = np.where(labelled.any(axis=1), labelled.argmax(axis=1), 0)
    if not lengths.all():
        raise DataError(
            found=f"evaluation data {samples.file.path.name}: window {int(lengths.argmin())} has no prompt or no label",
            expected=f"labels after the prompt, {IGNORED} elsewhere",
            fix="write the tokens of the expected answer behind those of the prompt, as for `metric: greedy_match`",
        )
    return [int(length) for length in lengths]
