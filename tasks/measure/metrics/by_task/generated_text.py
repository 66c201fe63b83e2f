"""Metrics of generated text against one reference text: exact match, BLEU and ROUGE-L."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import metadata
from typing import Literal

import numpy as np
from rapidfuzz.distance import LCSseq

from tasks.measure.metrics.chance import of_frequent_classes
from tasks.measure.metrics.metric import Labels, Metric, Outputs, Rows, Vector, Wrong, as_rows, mean_of_scores
from tasks.measure.metrics.text_errors import Decoder, check_text_output, texts_of
from validators.errors import JobError
from validators.samples.datasets import TensorSpec
from validators.samples.labels import LabelSpec

TextName = Literal["exact_match", "rouge"]
_ORDERS = 4
_WORD = re.compile(r"[^\W_]+")


def text_score(name: TextName, decoder: Decoder) -> Metric:
    """Return the metric of one score per text: `exact_match` is 1 for equal texts; `rouge` is `rouge_l`."""

    def rows(outputs: Outputs, labels: Labels | None, _: Outputs | None) -> Rows:
        assert labels is not None
        pairs = zip(*texts_of(outputs, labels, decoder), strict=True)
        if name == "exact_match":
            return as_rows(np.array([said == meant for said, meant in pairs]))
        return as_rows(np.array([rouge_l(said, meant) for said, meant in pairs]))

    def expects(output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
        return _expected_text(name, output, shape, decoder)

    score = Metric(name, rows, mean_of_scores, expects, version=decoder.digest)
    return replace(score, is_right_or_wrong=True, chance=of_frequent_classes(1)) if name == "exact_match" else score


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

        assert labels is not None
        counter = BLEU(effective_order=True)
        pairs = zip(*texts_of(outputs, labels, decoder), strict=True)
        found = [counter.sentence_score(said, [meant]) for said, meant in pairs]
        return np.array([[*one.counts, *one.totals, one.sys_len, one.ref_len] for one in found], np.float64)

    def expects(output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
        if not _installed():
            raise JobError(
                found="the metric 'bleu' without the package sacrebleu",
                expected="sacrebleu, which counts the n-grams",
                fix="pip install sacrebleu, or use the metric `rouge`",
            )
        return _expected_text("bleu", output, shape, decoder)

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


def _expected_text(name: str, output: TensorSpec, shape: tuple[int, ...], decoder: Decoder) -> LabelSpec:
    check_text_output(name, output, shape, decoder)
    return LabelSpec("text", classes=len(decoder.tokens or ()))


def _installed() -> str:
    try:
        return metadata.version("sacrebleu")
    except metadata.PackageNotFoundError:
        return ""
