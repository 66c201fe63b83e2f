"""Labels of evaluation data: the labels that a metric accepts, and their check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from validators.errors import DataError
from validators.samples.data_advice import class_advice

# Token id to ignore, as in PyTorch's cross_entropy and the language models of Hugging Face.
IGNORED = -100

LabelKind = Literal["any", "classes", "numbers", "text", "class_maps", "multi_hot", "groups", "boxes"]


@dataclass(frozen=True)
class LabelSpec:
    """The labels that a metric accepts, by `kind`.

    - `any`: labels are not checked.
    - `classes`: one index below `classes` per sample, int `(n,)`.
    - `numbers`: finite numbers, `size` per sample; `without_zeros`, none of them 0.
    - `class_maps`: class indices `(n, ...)`, IGNORED at cells that do not count; each of `maps` is an accepted shape of one
      sample with the number of classes (0: no bound).
    - `multi_hot`: 0 or 1 for each of `classes` labels, `(n, classes)`.
    - `groups`: integers or text `(n,)`, equal for samples that are relevant to each other, or int `(n, 2)` of group and role: 1
      for a query, 0 for a document.
    - `boxes`: floats `(n, boxes, 5)` of x1, y1, x2, y2, class; unused places at the end of a sample are NaN.
    - `text`: strings `(n,)`, or token ids `(n, length)` below `classes` (0: no bound), IGNORED at positions that do not count.

    At least `distinct` different labels are required. With `in_pairs`, samples 2i and 2i + 1 are a pair with the same label.
    """

    kind: LabelKind
    required: bool = True
    classes: int = 0
    size: int = 1
    distinct: int = 1
    in_pairs: bool = False
    without_zeros: bool = False
    maps: tuple[tuple[tuple[int, ...], int], ...] = ()


def check_labels(labels: NDArray[Any], spec: LabelSpec, *, data: str, label: str, metric: str) -> None:
    """Check that the labels (shape `(n, ...)`) fit the metric; `data` and `label` name their file and array in errors.

    Raises:
        DataError: the labels have the wrong kind or size, are out of bounds, are too few distinct ones, or are not in pairs.
    """
    where = f"evaluation data {data}: {label!r}"
    if spec.kind == "classes":
        check_class_type(labels, where, label)
        _check_class_range(labels, spec.classes, where)
    elif spec.kind == "numbers":
        _check_numbers(labels, spec.size, where, metric)
        if spec.without_zeros and (labels == 0).any():
            raise DataError(
                found=f"{where} has {int((labels == 0).sum())} zeros",
                expected=f"labels that are not 0, since the metric {metric!r} divides by them",
                fix="leave these samples out, or use the metric 'mae'",
            )
    elif spec.kind == "text":
        _check_text(labels, spec.classes, where)
    elif spec.kind == "class_maps":
        _check_class_maps(labels, spec.maps, where)
    elif spec.kind == "multi_hot":
        _check_multi_hot(labels, spec.classes, where)
    elif spec.kind == "groups":
        _check_groups(labels, where)
    elif spec.kind == "boxes":
        _check_boxes(labels, where)
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


def check_class_type(labels: NDArray[Any], where: str, label: str) -> None:
    """Check that there is one integer per sample; `where` names the file and the array `label` in errors.

    Raises:
        DataError: the labels have another type or shape.
    """
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        found, fix = class_advice(labels, label)
        raise DataError(
            found=f"{where} is {labels.dtype} of shape {labels.shape}{found}",
            expected="one integer class index per sample",
            fix=fix,
        )


def _check_class_range(labels: NDArray[Any], classes: int, where: str) -> None:
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        raise DataError(
            found=f"{where} has {int(outside.sum())} labels outside the outputs, such as {labels[outside][0]}",
            expected=f"class indices from 0 to {classes - 1}",
            fix="label the samples with negative labels, and map the labels to the model's class order"
            if labels.min() < 0
            else f"subtract 1 if the labels 1 to {classes} are the model's outputs 0 to {classes - 1}, in this order"
            if labels.min() == 1 and labels.max() == classes
            else "map the labels to the model's class order",
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


def _check_class_maps(labels: NDArray[Any], maps: tuple[tuple[tuple[int, ...], int], ...], where: str) -> None:
    fitting = [classes for shape, classes in maps if shape == labels.shape[1:]]
    if not fitting or labels.dtype.kind not in "iub":
        shapes = " or ".join(str((len(labels), *shape)) for shape, _ in maps)
        raise DataError(
            found=f"{where} is {labels.dtype} of shape {labels.shape}",
            expected=f"integers of shape {shapes}, {IGNORED} at cells that do not count",
            fix="write one class index per cell of the output, or name another `output`",
        )
    outside = ((labels < 0) | ((labels >= fitting[0]) if fitting[0] else False)) & (labels != IGNORED)
    if outside.any():
        raise DataError(
            found=f"{where} has {int(outside.sum())} cells outside the classes, such as {labels[outside][0]}",
            expected=f"class indices from 0{f' to {fitting[0] - 1}' if fitting[0] else ''}, or {IGNORED} for ignored cells",
            fix=f"map the labels to the model's class order, and ignored cells (often 255) to {IGNORED}",
        )
    if (labels == IGNORED).all():
        raise DataError(
            found=f"{where} is {IGNORED} everywhere",
            expected="at least one cell that counts",
            fix="write the class of each cell",
        )


def _check_multi_hot(labels: NDArray[Any], classes: int, where: str) -> None:
    if labels.shape[1:] != (classes,) or labels.dtype.kind not in "iubf" or not np.isin(labels, (0, 1)).all():
        raise DataError(
            found=f"{where} is {labels.dtype} of shape {labels.shape}, or has values other than 0 and 1",
            expected=f"0 or 1 for each of {classes} labels of a sample",
            fix="write labels as an array of 0 and 1 with one column for each column of the output",
        )


def _check_groups(labels: NDArray[Any], where: str) -> None:
    with_roles = labels.ndim == 2 and labels.shape[1] == 2 and labels.dtype.kind in "iu"
    if not with_roles and (labels.ndim != 1 or labels.dtype.kind not in "iuU"):
        raise DataError(
            found=f"{where} is {labels.dtype} of shape {labels.shape}",
            expected="one integer or text per sample, or two integers: group, and role (1 for a query, 0 for a document)",
            fix="give samples that are relevant to each other the same label",
        )
    if with_roles and not np.isin(labels[:, 1], (0, 1)).all():
        raise DataError(
            found=f"{where} has the roles {np.unique(labels[:, 1])[:5].tolist()}",
            expected="1 for a query, 0 for a document",
            fix="write the roles into the second column, or write groups alone, so that every sample is a query",
        )
    groups, is_query = (labels[:, 0], labels[:, 1] == 1) if with_roles else (labels, np.ones(len(labels), np.bool_))
    documents = groups[~is_query] if with_roles else groups
    keys, counts = np.unique(documents, return_counts=True)
    if not np.isin(groups[is_query], keys[counts > (0 if with_roles else 1)]).any():
        raise DataError(
            found=f"{where} gives no query a relevant sample",
            expected="at least one label that two samples share" + (", a query and a document" if with_roles else ""),
            fix="give samples that are relevant to each other the same label",
        )


def _check_boxes(labels: NDArray[Any], where: str) -> None:
    if labels.ndim != 3 or labels.shape[2] != 5 or labels.dtype.kind != "f":
        raise DataError(
            found=f"{where} is {labels.dtype} of shape {labels.shape}",
            expected="floats of shape (samples, boxes, 5): x1, y1, x2, y2, class",
            fix="write the boxes of a sample one after the other, and fill up with NaN",
        )
    used = ~np.isnan(labels)
    boxes = labels[used.all(axis=2)]
    partly = (used.any(axis=2) != used.all(axis=2)).any()
    if partly or not len(boxes) or not np.isfinite(boxes).all():
        raise DataError(
            found=f"{where} has {'boxes with some values NaN' if partly else 'no box, or an infinite value'}",
            expected="five finite numbers per box, or five NaN for none",
            fix="repair the boxes",
        )
    wrong = (boxes[:, 2:4] < boxes[:, :2]).any(axis=1) | (boxes[:, 4] < 0) | (boxes[:, 4] % 1 != 0)
    if wrong.any():
        raise DataError(
            found=f"{where} has {int(wrong.sum())} boxes such as {boxes[wrong][0].tolist()}",
            expected="x1, y1, x2, y2, class with x1 <= x2, y1 <= y2 and a whole class from 0",
            fix="write corners rather than a corner or centre with width and height",
        )
