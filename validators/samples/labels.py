"""Labels of evaluation data: the labels that a metric accepts, and their check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from validators.errors import DataError

# Token id to ignore, as in PyTorch's cross_entropy and the language models of Hugging Face.
IGNORED = -100

LabelKind = Literal["any", "classes", "numbers", "text"]


@dataclass(frozen=True)
class LabelSpec:
    """The labels that a metric accepts, by `kind`.

    - `any`: labels are not checked.
    - `classes`: one index below `classes` per sample, int `(n,)`.
    - `numbers`: finite numbers, `size` per sample.
    - `text`: strings `(n,)`, or token ids `(n, length)` below `classes` (0: no bound), IGNORED at positions that do not count.

    At least `distinct` different labels are required. With `in_pairs`, samples 2i and 2i + 1 are a pair with the same label.
    """

    kind: LabelKind
    required: bool = True
    classes: int = 0
    size: int = 1
    distinct: int = 1
    in_pairs: bool = False


def check_labels(labels: NDArray[Any], spec: LabelSpec, *, data: str, label: str, metric: str) -> None:
    """Check that the labels (shape `(n, ...)`) fit the metric; `data` and `label` name their file and array in errors.

    Raises:
        DataError: the labels have the wrong kind or size, are out of bounds, are too few distinct ones, or are not in pairs.
    """
    where = f"evaluation data {data}: {label!r}"
    if spec.kind == "classes":
        _check_classes(labels, spec.classes, where)
    elif spec.kind == "numbers":
        _check_numbers(labels, spec.size, where, metric)
    elif spec.kind == "text":
        _check_text(labels, spec.classes, where)
    if spec.in_pairs and (len(labels) % 2 or (labels[::2] != labels[1::2]).any()):
        raise DataError(
            found=f"{where} has {len(labels)} values that are not equal in pairs",
            expected=f"an even number of samples for the metric {metric!r} on embeddings: 2i and 2i + 1 are a pair, and both "
            "have its gold similarity as label",
            fix="write the two texts of a pair one after the other, each with the label of the pair",
        )
    if spec.distinct > 1 and len(np.unique(labels)) < spec.distinct:
        raise DataError(
            found=f"{where} is {labels.reshape(-1)[0]} for every sample",
            expected=f"at least {spec.distinct} different labels, without which the metric {metric!r} has no value",
            fix="add samples with other labels, or use another `metric`",
        )


def _check_classes(labels: NDArray[Any], classes: int, where: str) -> None:
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise DataError(
            found=f"{where} is {labels.dtype} of shape {labels.shape}",
            expected="one integer class index per sample",
            fix="write class indices as a one-dimensional integer array",
        )
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        raise DataError(
            found=f"{where} has {int(outside.sum())} labels outside the outputs, such as {labels[outside][0]}",
            expected=f"class indices from 0 to {classes - 1}",
            fix="map the labels to the model's class order",
        )


def _check_numbers(labels: NDArray[Any], size: int, where: str, metric: str) -> None:
    if labels.dtype.kind not in "fiu" or not np.isfinite(labels.astype(np.float64)).all():
        raise DataError(
            found=f"{where} is {labels.dtype}, not all finite numbers",
            expected=f"finite numbers for the metric {metric!r}",
            fix="repair the labels",
        )
    if int(np.prod(labels.shape[1:], dtype=int)) != size:
        raise DataError(
            found=f"{where} has shape {labels.shape}",
            expected=f"{size} number{'s' if size > 1 else ''} per sample for the metric {metric!r} on this output",
            fix="write labels that fit the output, or name another `output`",
        )


def _check_text(labels: NDArray[Any], vocabulary: int, where: str) -> None:
    if labels.ndim == 1 and labels.dtype.kind == "U":
        return
    if labels.ndim != 2 or labels.dtype.kind not in "iu":
        raise DataError(
            found=f"{where} is {labels.dtype} of shape {labels.shape}",
            expected=f"one text per sample, or its token ids, {IGNORED} for ignored positions",
            fix="write texts as a one-dimensional array of strings, or token ids as a two-dimensional one of integers",
        )
    outside = ((labels < 0) | ((labels >= vocabulary) if vocabulary else False)) & (labels != IGNORED)
    if outside.any():
        raise DataError(
            found=f"{where} has {int(outside.sum())} token ids outside the vocabulary, such as {labels[outside][0]}",
            expected=f"ids from 0{f' to {vocabulary - 1}' if vocabulary else ''}, or {IGNORED} for ignored positions",
            fix="encode the texts with the model's own tokenizer, and name its tokens in `text.vocabulary`",
        )
