"""Error texts for unusable data files: the kind of a foreign file, and how to fit an array to an input."""

from __future__ import annotations

import codecs
import json
import math
import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Magic bytes of file formats that users pass as data.
MAGIC = (
    (b"PK\x03\x04", "a zip archive"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"\x93NUMPY", "one array as numpy.save writes it (.npy)"),
    (b"PAR1", "a Parquet file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x1f\x8b", "a gzip file"),
    (b"ARROW1", "an Arrow file"),
    (b"\xff\xff\xff\xff", "an Arrow stream"),
    (b"\x80", "a pickle"),
)
HEAD_BYTES = 4096
# A zip archive ends with its directory record, followed by a comment of at most 64 KiB.
END_BYTES = 22
TAIL_BYTES = (1 << 16) + END_BYTES
# Limits of lists of names in an error.
MOST_NAMES, SHOWN_NAMES = 12, 5
# By the kind of a numpy dtype.
ADVICE = {
    "c": "prepare real numbers as for the model in production; .astype would lose the imaginary parts",
    "V": "write each field as an array of its own",
    "M": "prepare the dates as for the model in production, as the numbers that it was trained on",
    "m": "prepare the durations as for the model in production, as the numbers that it was trained on",
}
# Columns of the index that pandas writes into CSV and Parquet; read again, the first is called "Unnamed: 0".
INDEX_NAMES = ("", "__index_level_0__")
# Limits the search over permutations.
MOST_AXES = 6


def yaml_line(keys: Mapping[str, Any]) -> str:
    """Return keys and values as one line of YAML, with quotes around each name that YAML would read as something else.

    >>> yaml_line({"ignore": ["", "Unnamed: 0", "no", "row_id"]})
    "ignore: ['', 'Unnamed: 0', 'no', row_id]"
    """
    import yaml  # the measurement of a GPU reads data without it

    text: str = yaml.safe_dump(dict(keys), default_flow_style=True, width=math.inf, allow_unicode=True, sort_keys=False)
    return text.strip()[1:-1]


def kind_of_file(path: Path) -> str:
    """Describe the kind of a file, from its first bytes."""
    with path.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
    if not head:
        return "an empty file"
    for magic, kind in MAGIC:
        if head.startswith(magic):
            return kind
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "a text file in UTF-16"
    # The end of the head may split a multi-byte character.
    if b"\0" not in head and "\ufffd" not in head.decode("utf-8", errors="replace")[:-1]:
        return "a JSON file" if _begins_json(head.decode("utf-8", errors="replace")) else "a text file"
    if not any(byte < 32 and byte not in b"\t\r\n" for byte in head):
        return "a text file that is not in UTF-8"
    return "a file of an unknown kind"


def _begins_json(head: str) -> bool:
    """Return True if a text is an array or object of JSON, or the begin of one: a column of a CSV may be called `[a]`.

    >>> [_begins_json(head) for head in ('[1, 2]', '[{"a": 1}, {"b', '{"a": 1}\\n{"a": 2}', '[a],b', '[1],[2]', 'a,b')]
    [True, True, True, False, False, False]
    """
    text = head.strip()
    if text[:1] not in ("[", "{"):
        return False
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError as error:
        # A head that was cut off ends inside of a value.
        return "Unterminated" in error.msg or (len(head) >= HEAD_BYTES and error.pos > len(text) - 32)
    return end == len(text) or text[end] == "\n"


def is_cut(path: Path) -> bool:
    """Return True if a file begins like a zip archive or a Parquet file but does not end like one."""
    with path.open("rb") as stream:
        head = stream.read(4)
        stream.seek(-min(path.stat().st_size, TAIL_BYTES), os.SEEK_END)
        tail = stream.read()
    if head == b"PAR1":
        return len(tail) < 12 or not tail.endswith(head)
    end = tail.rfind(b"PK\x05\x06")
    return head.startswith(b"PK") and (end < 0 or len(tail) - end < END_BYTES)


def _holds(array: NDArray[Any], dtype: str) -> bool:
    """Return True if the finite values of an array are inside the range of a dtype."""
    if not array.size:
        return True
    if array.dtype.kind == "f":
        finite = array[np.isfinite(array)]
        return not finite.size or float(np.abs(finite).max()) <= float(np.finfo(dtype).max)
    bounds = np.iinfo(dtype)
    return int(array.min()) >= bounds.min and int(array.max()) <= bounds.max


def listed(names: Sequence[str]) -> str:
    """Return names as a list; of many, the first and the number of all.

    >>> listed(["a", "b"]), listed([f"x.{number}" for number in range(64)])
    ("['a', 'b']", "['x.0', 'x.1', 'x.2', 'x.3', 'x.4', ...] (64)")
    """
    if len(names) <= MOST_NAMES:
        return str(list(names))
    return f"[{', '.join(repr(name) for name in names[:SHOWN_NAMES])}, ...] ({len(names)})"


def name_advice(missing: Sequence[str], extra: Sequence[str], label: str | None) -> str:
    """Return advice on arrays that are missing, or that the model does not have; `label` is the name of missing labels.

    >>> name_advice(["image"], ["images"], None)
    "rename 'images' to 'image' if it holds that input"
    >>> name_advice([], ["labels"], "label")
    'set `label: labels` in `data` if it holds the labels'
    """
    for name in missing:
        numbers = sorted(
            int(end) for start, _, end in (one.rpartition(".") for one in extra) if start == name and end.isdecimal()
        )
        gap = next((number for number in range(len(numbers)) if numbers[number] != number), None)
        if gap is not None:
            first = "number the columns from 0" if gap == 0 else f"add the column '{name}.{gap}'"
            return f"{first}: the columns '{name}.0', '{name}.1', ... without a gap make the array {name!r}"
    for name in missing:
        lower = {one.lower(): one for one in extra}
        close = get_close_matches(name.lower(), lower, 1) or (list(lower) if len(missing) == len(extra) == 1 else [])
        if close:
            return f"rename {lower[close[0]]!r} to {name!r} if it holds that input"
    if missing:
        return "name the arrays like the model's inputs"
    found = get_close_matches(label, extra, 1) if label else []
    if found:
        return f"set `{yaml_line({'label': found[0]})}` in `data` if it holds the labels"
    return (
        f"add `{yaml_line({'ignore': list(extra)})}` to `data`, or name labels in `data.label` and groups in "
        "`data.slices` or `data.groups`"
    )


def columns_advice(name: str, width: int, columns: Sequence[str]) -> str:
    """Return advice on columns of numbers that could make the missing input `name` of `width` numbers; empty for too few.

    >>> columns_advice("x", 2, ["", "age", "dose"])
    "add `columns: x` and `ignore: ['']` to `data`: that makes 'x' of ['age', 'dose'], in this order"
    """
    index = [column for column in columns if column in INDEX_NAMES or column.startswith("Unnamed: ")]
    for left_out in ([], index):
        rest = [column for column in columns if column not in left_out]
        if len(rest) == width:
            ignore = f" and `{yaml_line({'ignore': left_out})}`" if left_out else ""
            key = yaml_line({"columns": name})
            return f"add `{key}`{ignore} to `data`: that makes {name!r} of {listed(rest)}, in this order"
    if len(columns) < width:
        return ""
    return (
        f"add `{yaml_line({'columns': name})}` to `data`, and name there the other {len(columns) - width} as `label`, "
        "`slices`, `groups` or `ignore`"
    )


def class_advice(labels: NDArray[Any], label: str) -> tuple[str, str]:
    """Return what is wrong with labels that are no class indices, in a few words or none, and advice.

    >>> class_advice(np.array([0.0, 1.5]), "label")[0]
    ', with values such as 1.5'
    >>> class_advice(np.array([[0], [1]]), "label")[1]
    'write the one column as one axis, label[:, 0]'
    """
    if labels.ndim == 2 and labels.shape[1] == 1:
        return "", f"write the one column as one axis, {label}[:, 0]"
    if labels.ndim == 2 and labels.dtype.kind in "iubf" and _is_one_hot(labels):
        return ", one-hot", f"write the index of each sample's class, numpy.argmax({label}, axis=1)"
    if labels.ndim != 1:
        return "", "write one class index per sample, as a one-dimensional array of integers"
    if labels.dtype.kind == "f":
        if unknown := int(np.isnan(labels).sum()):
            return f", NaN for {unknown} samples", "label these samples; a conversion to integers would invent labels"
        odd = labels[labels % 1 != 0] if np.isfinite(labels).all() else labels[~np.isfinite(labels)]
        if len(odd):
            return f", with values such as {odd[0]}", "correct `data.label` or `metric`: these are no class indices"
        return ", all whole numbers", "convert the labels with .astype('int64')"
    if labels.dtype.kind == "b":
        return "", "convert the labels with .astype('int64') if True is class 1 of the model"
    return "", "write for each sample the index of its class, in the order of the model's outputs"


def _is_one_hot(labels: NDArray[Any]) -> bool:
    return bool(np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all())


def dtype_advice(array: NDArray[Any], dtype: str) -> str:
    """Return advice on converting an array to the dtype of an input.

    >>> dtype_advice(np.zeros(2), "float32")
    "convert the array with .astype('float32')"
    """
    given, wanted = array.dtype.kind, np.dtype(dtype).kind
    if given == "O" and not any(isinstance(value, str | bytes) for value in array.flat):
        return "write the values as numbers, prepared as for the model in production, not as Python objects"
    if given in "USO":
        return "encode the text as for the model in production, with its tokenizer or its category numbers"
    if given in ADVICE:
        return ADVICE[given]
    if given in "iuf" and given == wanted.replace("u", given) and not _holds(array, dtype):
        return f"prepare the values as for the model in production: some are outside the range of {dtype}"
    if given in "iu" and wanted == "f":
        return (
            "prepare the values as for the model in production (pixels are usually scaled, such as x / 255, and normalized),"
            f" then convert with .astype({dtype!r}), which alone does not scale"
        )
    if given == "f" and wanted in "iub":
        return (
            "undo the scaling that the model in production does not have (pixels are usually multiplied by 255 and rounded),"
            f" then convert with .astype({dtype!r}), which alone truncates fractions"
        )
    return f"convert the array with .astype({dtype!r})"


def shape_advice(shape: tuple[int, ...], wanted: tuple[int | str | None, ...]) -> str:
    """Return advice on fitting an array of this shape to an input of shape `wanted`, samples along axis 0.

    >>> shape_advice((8, 32, 32, 3), ("batch", 3, 32, 32))
    'transpose the array with .transpose(0, 3, 1, 2); a reshape would scramble it'
    >>> shape_advice((8, 5), ("batch", 3))
    'write the array with the axes of the input, or export the model with dynamic axes'
    """
    order = _order(shape, wanted)
    if order:
        return f"transpose the array with .transpose({', '.join(map(str, order))}); a reshape would scramble it"
    if len(shape) == len(wanted) + 1 and 1 in shape[1:]:
        axis = shape.index(1, 1)
        if fits_axes(shape[:axis] + shape[axis + 1 :], wanted):
            return f"remove the axis of size 1 with .squeeze({axis})"
    if len(shape) + 1 == len(wanted) and 1 in wanted[1:]:
        axis = wanted.index(1, 1)
        if fits_axes(shape, wanted[:axis] + wanted[axis + 1 :]):
            return f"add the axis of size 1 with numpy.expand_dims(array, {axis})"
    return "write the array with the axes of the input, or export the model with dynamic axes"


def _order(shape: tuple[int, ...], wanted: tuple[int | str | None, ...]) -> tuple[int, ...]:
    """Return the axis permutation that makes the shape fit, keeping axis 0; empty if there is none."""
    if len(shape) != len(wanted) or len(shape) > MOST_AXES:
        return ()
    orders = ((0, *rest) for rest in permutations(range(1, len(shape))))
    return next((order for order in orders if fits_axes(tuple(shape[axis] for axis in order), wanted)), ())


def fits_axes(shape: tuple[int, ...], wanted: tuple[int | str | None, ...]) -> bool:
    """Return True if the shape fits an input from axis 1 on."""
    if len(shape) != len(wanted):
        return False
    return all(not isinstance(axis, int) or axis == size for axis, size in zip(wanted[1:], shape[1:], strict=True))
