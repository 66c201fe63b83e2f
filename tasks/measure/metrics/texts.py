"""Metrics of text: word and character error rate, exact match, BLEU and ROUGE-L, and the decoding of outputs and labels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import jiwer
import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import LCSseq

from tasks.measure.metrics.chance import of_frequent_classes
from tasks.measure.metrics.metric import (
    Labels,
    Metric,
    Outputs,
    Rows,
    Vector,
    Wrong,
    as_rows,
    mean_of_ratios,
    mean_of_scores,
    misfit,
    ratios_without,
)
from validators.digests import digest_file, digest_values
from validators.errors import JobError
from validators.job.job_data import TextDecoding
from validators.samples.datasets import TensorSpec
from validators.samples.labels import IGNORED, LabelSpec

# Text of a sample whose scores are not finite: every word of its label then counts as an error.
_NOTHING = ""
_ORDERS = 4
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Decoder:
    """Decoder of token ids to text: `tokens[id]` is the token; with `tokens` None, the id itself names the token."""

    settings: TextDecoding
    tokens: tuple[str, ...] | None
    digest: str

    def text_of(self, ids: NDArray[np.int64]) -> str:
        """Return the text of token ids, int64 `(tokens,)`, from one label or from `ids_of` one output.

        Raises:
            JobError: an id has no token.
        """
        kept = [int(one) for one in ids if one != IGNORED and int(one) not in self.settings.skip]
        if self.tokens is None:
            return " ".join(map(str, kept))
        wrong = [one for one in kept if not 0 <= one < len(self.tokens)]
        if wrong:
            raise JobError(
                found=f"token id {wrong[0]} in the output or the labels",
                expected=f"ids from 0 to {len(self.tokens) - 1}: `text.vocabulary` has {len(self.tokens)} lines",
                fix="write the model's whole vocabulary, one token per line in the order of ids",
            )
        text = self.settings.separator.join(self.tokens[one] for one in kept)
        return text.replace(self.settings.space, " ") if self.settings.space else text

    def ids_of(self, output: NDArray[Any]) -> NDArray[np.int64]:
        """Return the token ids of one output, int64 `(tokens,)`.

        The output holds float scores `(tokens, vocabulary)`, of which the best id is taken, or ids `(tokens,)`.

        CTC merges runs of one id, then drops the blank (A. Graves et al., "Connectionist Temporal Classification", ICML 2006,
        section 3.1; the best path of section 3.2).
        """
        ids = output.argmax(axis=-1) if output.dtype.kind == "f" else output
        if self.settings.decoding == "ctc":
            ids = np.array([one for one, _ in groupby(ids.tolist()) if one != self.settings.blank], np.int64)
        return np.asarray(ids, np.int64)


def make_decoder(settings: TextDecoding) -> Decoder:
    """Return the decoder of a job, with its vocabulary file read.

    Raises:
        JobError: the vocabulary cannot be read, or the blank is not in it.
    """
    path = settings.vocabulary
    if path is None:
        return Decoder(settings, None, digest_values(settings.model_dump(mode="json")))
    tokens = _read_tokens(path)
    if settings.decoding == "ctc" and settings.blank >= len(tokens):
        raise JobError(
            found=f"`text.blank: {settings.blank}` with {len(tokens)} tokens in {path.name}",
            expected="the id of the CTC blank, which also has a line in `text.vocabulary`",
            fix="correct the id, or add the missing lines",
        )
    return Decoder(settings, tokens, digest_values(settings.model_dump(mode="json"), digest_file(path)))


def _read_tokens(path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(
            found=f"`text.vocabulary` {path}: {error.strerror if isinstance(error, OSError) else 'not UTF-8 text'}",
            expected="a text file with one token per line, in the order of ids from 0",
            fix="correct the path, or write the file from the model's tokenizer",
        ) from error
    # Not splitlines: a token may be another line-ending character, such as U+2028.
    return tuple(line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines))


def error_rate(name: Literal["wer", "cer"], decoder: Decoder) -> Metric:
    """Return the metric of edits between the texts of output and label, per word (`wer`) or character (`cer`) of the labels.

    Rows are (errors, length of the label's text). The metric is the ratio of their sums, which may exceed 1.
    """

    def rows(outputs: Outputs, labels: Labels | None, _: Outputs | None) -> Rows:
        pairs = _texts_of(outputs, labels, decoder)
        return np.array([count_errors(meant, said, by=name) for said, meant in pairs], np.float64)

    return Metric(
        name,
        rows,
        mean_of_ratios,
        partial(_expected_text, name, decoder),
        lambda rows: rows[:, 0],
        higher_is_better=False,
        version=decoder.digest,
        without=ratios_without,
        wrong=_all_wrong,
    )


def _texts_of(outputs: Outputs, labels: Labels | None, decoder: Decoder) -> Iterator[tuple[str, str]]:
    """Yield the text of each output with that of its label, both with samples along axis 0."""
    assert labels is not None
    for output, label in zip(outputs, labels, strict=True):
        if isinstance(output, str):
            said = output
        else:
            said = decoder.text_of(decoder.ids_of(output)) if _is_finite(output) else _NOTHING
        yield said, label if isinstance(label, str) else decoder.text_of(label)


def count_errors(meant: str, said: str, *, by: Literal["wer", "cer"]) -> tuple[int, int]:
    """Return the edit distance (insertions, deletions, substitutions) of two texts, and the length of `meant`.

    >>> count_errors("the cat sat", "the hat", by="wer"), count_errors("cat", "hat", by="cer")
    ((2, 3), (1, 3))
    """
    done = jiwer.process_words(meant, said) if by == "wer" else jiwer.process_characters(meant, said)
    errors = done.substitutions + done.deletions + done.insertions
    return errors, done.hits + done.substitutions + done.deletions


def _all_wrong(rows: Rows) -> Wrong:
    """Return rows with as many errors as the label is long."""
    return Wrong(as_rows(rows[:, 1], rows[:, 1]), np.zeros(len(rows), np.intp))


def _is_finite(output: NDArray[Any]) -> bool:
    """Return whether scores have no NaN or +inf, so that each position has a best token; masked scores may be -inf."""
    return output.dtype.kind != "f" or not (np.isnan(output) | np.isposinf(output)).any()


def _expected_text(name: str, decoder: Decoder, output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
    """Return the labels for outputs that are texts, token ids or scores of tokens; raise JobError for others."""
    is_text, is_ids = output.dtype == "str" and len(shape) == 1, "int" in output.dtype and len(shape) == 2
    if not (is_text or is_ids or (output.dtype.startswith("float") and len(shape) == 3)):
        expected = "text (samples,), token ids (samples, tokens) or scores (samples, tokens, vocabulary)"
        raise misfit(name, output, shape, expected)
    if name == "cer" and not is_text and decoder.tokens is None:
        raise misfit(name, output, shape, "`text.vocabulary`, without which token ids have no characters")
    if len(shape) == 3 and decoder.tokens is not None and shape[2] != len(decoder.tokens):
        raise misfit(
            name, output, shape, f"scores of {len(decoder.tokens)} tokens: `text.vocabulary` has that many lines"
        )
    return LabelSpec("text", classes=len(decoder.tokens or ()))


def text_score(name: Literal["exact_match", "rouge"], decoder: Decoder) -> Metric:
    """Return the metric of one score per text: `exact_match` is 1 for equal texts; `rouge` is `rouge_l`."""

    def rows(outputs: Outputs, labels: Labels | None, _: Outputs | None) -> Rows:
        score = str.__eq__ if name == "exact_match" else rouge_l
        return as_rows(np.array([score(said, meant) for said, meant in _texts_of(outputs, labels, decoder)]))

    metric = Metric(name, rows, mean_of_scores, partial(_expected_text, name, decoder), version=decoder.digest)
    return replace(metric, is_right_or_wrong=True, chance=of_frequent_classes(1)) if name == "exact_match" else metric


def rouge_l(said: str, meant: str) -> float:
    """Return ROUGE-L's F1: twice the longest common subsequence of words over the number of words in both; 0 without words.

    Words are runs of letters and digits in lower case, unstemmed (C.-Y. Lin, "ROUGE: a package for automatic evaluation of
    summaries", 2004; tokens as in the package rouge-score, whose letters are those of ASCII alone).

    >>> rouge_l("The cat sat.", "the cat was sitting"), rouge_l("", "")
    (0.5714285714285714, 0.0)
    """
    first, second = _WORD.findall(said.lower()), _WORD.findall(meant.lower())
    if not (first and second):
        return 0.0
    return 2 * LCSseq.similarity(first, second) / (len(first) + len(second))


def bleu(decoder: Decoder) -> Metric:
    """Return corpus BLEU as sacrebleu computes it with its defaults (13a tokens, 4-grams, exponential smoothing), over 100.

    Rows are the counts of a text that BLEU adds up: matched n-grams of orders 1 to 4, n-grams of the output, words of the
    output, words of the label (M. Post, "A call for clarity in reporting BLEU scores", WMT 2018).
    """

    def rows(outputs: Outputs, labels: Labels | None, _: Outputs | None) -> Rows:
        from sacrebleu.metrics.bleu import BLEU

        counter = BLEU(effective_order=True)
        found = [counter.sentence_score(said, [meant]) for said, meant in _texts_of(outputs, labels, decoder)]
        return np.array([[*one.counts, *one.totals, one.sys_len, one.ref_len] for one in found], np.float64)

    def expects(output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
        if not _installed():
            raise JobError(
                found="the metric 'bleu' without the package sacrebleu",
                expected="sacrebleu, which counts the n-grams",
                fix="pip install sacrebleu, or use the metric `rouge`",
            )
        return _expected_text("bleu", decoder, output, shape)

    return Metric(
        "bleu", rows, _bleu, expects, _missed_words, version=f"{decoder.digest} {_installed()}", wrong=_unmatched
    )


def _bleu(rows: Rows) -> float:
    from sacrebleu.metrics.bleu import BLEU

    *counts, said, meant = rows.sum(axis=0).astype(int).tolist()
    found = BLEU.compute_bleu(counts[:_ORDERS], counts[_ORDERS:], said, meant, smooth_method="exp")
    return float(found.score) / 100


def _unmatched(rows: Rows) -> Wrong:
    """Return rows without a matched n-gram."""
    counts = np.zeros((len(rows), _ORDERS))
    return Wrong(as_rows(counts, rows[:, _ORDERS:]), np.zeros(len(rows), np.intp))


def _missed_words(rows: Rows) -> Vector:
    """Return how many words of the longer text were not matched."""
    return np.asarray(rows[:, -2:].max(axis=1) - rows[:, 0], np.float64)


def _installed() -> str:
    try:
        return metadata.version("sacrebleu")
    except metadata.PackageNotFoundError:
        return ""
