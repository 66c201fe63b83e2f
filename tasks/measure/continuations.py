"""Greedy answers of a decoder to prompts from the evaluation data: how long they equal the baseline's, and their texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from tasks.runtimes.runner import open_runner
from validators.errors import DataError
from validators.records.measurements import Agreement
from validators.records.run import Variant
from validators.samples.datasets import Samples
from validators.samples.labels import IGNORED

# Prompts of one batch: the library answers them together.
PROMPTS_AT_ONCE = 8
TOKENS = "input_ids"

Texts = NDArray[np.str_]


class Generator(Protocol):
    """A runner of a target that generates."""

    def generate(self, tokens: NDArray[Any], new_tokens: int, *, past_end: bool = True) -> NDArray[np.int32]:
        """Return the tokens after prompts `(rows, length)`, chosen greedily, int32 `(rows, new_tokens)`.

        Without `past_end`, what follows a token that ends the text is no answer, and there may be fewer tokens.
        """


# Answers to the prompts, in order: the ids of their tokens.
Continuations = tuple[tuple[int, ...], ...]


def prompt_rows(
    windows: NDArray[np.bool_], clusters: NDArray[np.intp] | None, count: int, seed: int
) -> NDArray[np.intp]:
    """Draw rows of at most `count` of the evaluation windows that `windows` marks, from as many clusters as there are.

    `windows` and `clusters` have shape `(n,)`. Each cluster gives one window before any gives two: windows of one document
    resemble each other, and neighbours in a file often are of one document.

    >>> documents = np.array([0, 0, 0, 0, 1, 1, 2])
    >>> documents[prompt_rows(np.ones(7, bool), documents, 3, seed=0)].tolist()
    [0, 1, 2]
    """
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(windows))
    if clusters is not None:
        order = np.argsort(clusters[rows], kind="stable")
        _, starts, sizes = np.unique(clusters[rows][order], return_index=True, return_counts=True)
        turns = np.empty(len(rows), np.intp)
        turns[order] = np.arange(len(rows)) - np.repeat(starts, sizes)
        rows = rows[np.argsort(turns, kind="stable")]
    return np.sort(rows[:count])


def make_continuations(variant: Variant, prompts: NDArray[Any], new_tokens: int, _: Path) -> Continuations:
    """Answer prompts, int64 `(prompts, length)`, with `new_tokens` tokens each, also past the end of the text.

    Raises:
        CandidateRefused: the runtime does not load or run the model.
    """
    # Another candidate's session may run at the same time; spinning threads would compete with its threads.
    with open_runner(variant.loaded, variant.session.without_spinning()) as runner:
        generator = cast(Generator, runner)
        starts = range(0, len(prompts), PROMPTS_AT_ONCE)
        found = [generator.generate(prompts[start : start + PROMPTS_AT_ONCE], new_tokens) for start in starts]
    return tuple(tuple(map(int, row)) for rows in found for row in rows)


def agreement_of(baseline: Continuations, variant: Continuations, clusters: tuple[int, ...] = ()) -> Agreement:
    """Return the share of each answer's tokens before the first that is not the baseline's.

    `clusters` has the cluster of each prompt; it is empty where prompts are independent.

    >>> agreement_of(((5, 6, 7, 8), (1, 2, 3, 4)), ((5, 6, 9, 8), (1, 2, 3, 4))).shares
    (0.5, 1.0)
    """
    ours, theirs = np.array(variant), np.array(baseline)
    # A column of differences at the end: an answer without one agrees to its end.
    differs = np.pad(ours != theirs, ((0, 0), (0, 1)), constant_values=True)
    new_tokens = ours.shape[1]
    return Agreement(new_tokens, tuple(float(first) / new_tokens for first in differs.argmax(axis=1)), clusters)


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
