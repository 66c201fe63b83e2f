"""Word and character error rate, and the decoding of outputs and labels to text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import jiwer
import numpy as np
from numpy.typing import NDArray

from tasks.measure.metrics.metric import Labels, Metric, Outputs, Rows, Vector, Wrong, as_rows, misfit, ratios_without
from validators.digests import digest_file, digest_values
from validators.errors import JobError
from validators.job.job_data import TextDecoding
from validators.samples.datasets import TensorSpec
from validators.samples.labels import IGNORED, LabelSpec

# Text of a sample whose scores are not finite: every word of its label then counts as an error.
_NOTHING = ""


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
        assert labels is not None
        pairs = zip(*texts_of(outputs, labels, decoder), strict=True)
        return np.array([count_errors(meant, said, by=name) for said, meant in pairs], np.float64)

    def expects(output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
        check_text_output(name, output, shape, decoder)
        return LabelSpec("text", classes=len(decoder.tokens or ()))

    return Metric(
        name,
        rows,
        _rate,
        expects,
        _errors,
        higher_is_better=False,
        version=decoder.digest,
        without=ratios_without,
        wrong=_all_wrong,
    )


def texts_of(outputs: Outputs, labels: Labels, decoder: Decoder) -> tuple[list[str], list[str]]:
    """Return the texts of outputs and of labels, both with samples along axis 0."""
    said = [
        text if isinstance(text, str) else decoder.text_of(decoder.ids_of(text)) if _is_finite(text) else _NOTHING
        for text in outputs
    ]
    return said, [text if isinstance(text, str) else decoder.text_of(text) for text in labels]


def count_errors(meant: str, said: str, *, by: Literal["wer", "cer"]) -> tuple[int, int]:
    """Return the edit distance (insertions, deletions, substitutions) of two texts, and the length of `meant`.

    >>> count_errors("the cat sat", "the hat", by="wer"), count_errors("cat", "hat", by="cer")
    ((2, 3), (1, 3))
    """
    done = jiwer.process_words(meant, said) if by == "wer" else jiwer.process_characters(meant, said)
    errors = done.substitutions + done.deletions + done.insertions
    return errors, done.hits + done.substitutions + done.deletions


def _rate(rows: Rows) -> float:
    errors, length = rows.sum(axis=0)
    return float(errors / length) if length else math.nan


def _all_wrong(rows: Rows) -> Wrong:
    """Return rows with as many errors as the label is long."""
    return Wrong(as_rows(rows[:, 1], rows[:, 1]), np.zeros(len(rows), np.intp))


def _errors(rows: Rows) -> Vector:
    return rows[:, 0]


def _is_finite(output: NDArray[Any]) -> bool:
    """Return whether scores have no NaN or +inf, so that each position has a best token; masked scores may be -inf."""
    return output.dtype.kind != "f" or not (np.isnan(output) | np.isposinf(output)).any()


def check_text_output(name: str, output: TensorSpec, shape: tuple[int, ...], decoder: Decoder) -> None:
    """Raise JobError if outputs of this shape are neither texts, token ids nor scores of tokens."""
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
