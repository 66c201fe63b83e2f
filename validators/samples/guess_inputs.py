"""Likely settings of a job: inputs that are no arrays with the samples along axis 0, and the data files with their label."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from validators.errors import DataError
from validators.job.job_data import InputSettings
from validators.plain_text import one_line
from validators.samples.datasets import MASK, TensorSpec, load_samples
from validators.samples.feeds import Feeds
from validators.samples.readers import READERS, read_arrays
from validators.untrusted.s3_uris import SCHEME

# Usual values of constants by the name of the input. Another number is 1, and a float array with several axes, which is most
# likely a state, 0.
USUAL = {"sr": 16000, "sample_rate": 16000, "sampling_rate": 16000}
LABEL = "label"
# Names without suffix of the files that are taken, the first that exists; `valid*` is the validation split of many data sets.
STEMS = {"calibration": ("calibration", "train"), "evaluation": ("evaluation", "test", "valid*")}
# Files that a function of the job reads.
PICTURES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


@dataclass(frozen=True)
class JobData:
    """Data files of a job: their names in it by role, and the reason why one does not fit the model.

    `found` are the roles whose files nobody named. `label` is the array that holds the labels; `others` are the further arrays
    that are no inputs, so that the choice is open. `labels` are those of the evaluation data. `columns` is the input that the
    columns of a table make. `pictures` says that a function has to read the samples; `classes` are the names of their folders.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    found: Collection[str] = ()
    label: str | None = None
    others: Sequence[str] = ()
    labels: NDArray[Any] | None = None
    columns: str | None = None
    pictures: bool = False
    classes: Sequence[str] = ()


def guess_inputs(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> dict[str, InputSettings]:
    """Return the settings by input, of those that need one.

    >>> x, state = TensorSpec("x", "float32", ("n", 512)), TensorSpec("state", "float32", (2, "n", 128))
    >>> outputs = [TensorSpec("output", "float32", ("n", 1)), TensorSpec("stateN", "float32", (2, "n", 128))]
    >>> found = guess_inputs([x, state, TensorSpec("sr", "int64", ())], outputs)
    >>> {name: one.model_dump(exclude_none=True) for name, one in found.items()}
    {'state': {'batch_axis': 1, 'state_from': 'stateN'}, 'sr': {'constant': 16000}}
    """
    settings = {}
    for spec in inputs:
        axis = _batch_axis(spec, inputs)
        source = _state_source(spec, outputs)
        if axis is None:
            settings[spec.name] = InputSettings(constant=_usual_constant(spec))
        elif axis or source:
            settings[spec.name] = InputSettings(batch_axis=axis or None, state_from=source or None)
    return settings


def _batch_axis(spec: TensorSpec, inputs: Sequence[TensorSpec]) -> int | None:
    """Return the axis with the size or name of axis 0 of most inputs; None for an input without samples."""
    firsts = [other.shape[0] for other in inputs if other.shape]
    batch = max(firsts, key=firsts.count) if firsts else None
    found = [axis for axis, size in enumerate(spec.shape) if size == batch]
    if found and (found[0] == 0 or len(found) == 1):
        return found[0]
    return None if all(isinstance(size, int) for size in spec.shape) else 0


def _state_source(spec: TensorSpec, outputs: Sequence[TensorSpec]) -> str:
    """Return the output of the same type, shape and similar name; empty if there is not exactly one."""
    stem = spec.name.lower().removesuffix("_in").removesuffix("0")
    alike = [
        output.name
        for output in outputs
        if output.dtype == spec.dtype and _same_sizes(output, spec) and stem in output.name.lower()
    ]
    return alike[0] if len(alike) == 1 and all(isinstance(size, int) for size in spec.shape[2:]) else ""


def _same_sizes(output: TensorSpec, spec: TensorSpec) -> bool:
    pairs = zip(output.shape, spec.shape, strict=False)
    return len(output.shape) == len(spec.shape) > 1 and all(
        ours == theirs for ours, theirs in pairs if isinstance(ours, int) and isinstance(theirs, int)
    )


def _usual_constant(spec: TensorSpec) -> bool | int | str:
    if spec.dtype == "bool":
        return False
    if spec.dtype in ("str", "string"):
        return ""
    is_state = spec.dtype.startswith("float") and len(spec.shape) > 1
    return USUAL.get(spec.name.lower(), 0 if is_state else 1)


def find_data(folders: Collection[Path]) -> dict[str, str]:
    """Return the data of the folders by role: the first file of each role by name, folder and suffix, or folder of samples."""
    found: dict[str, str] = {}
    for role, stems in STEMS.items():
        paths = (
            path
            for stem in stems
            for folder in folders
            for path in (*sorted(folder.glob(f"{stem}.*")), *sorted(folder.glob(stem)))
        )
        place = next((path for path in paths if _holds_samples(path)), None)
        if place is not None:
            found[role] = str(place)
    return found


def _holds_samples(path: Path) -> bool:
    if path.is_dir():
        return holds_pictures(path) or any(file.suffix in {*READERS, ".npy"} for file in path.iterdir())
    return path.suffix in READERS and path.is_file()


def holds_pictures(folder: Path) -> bool:
    """Return True for a folder with pictures, or with folders of them."""
    return any(file.suffix.lower() in PICTURES for pattern in ("*", "*/*") for file in folder.glob(pattern))


def look_at_data(given: Mapping[str, str], folders: Collection[Path], base: Path, feeds: Feeds) -> JobData:
    """Return the data of a job in the folder `base`: what is given by role, else what is found in `folders`.

    Files on S3 are not looked at.

    Raises:
        DataError: a given file is missing or unreadable.
    """
    places = {**find_data(folders), **given}
    local = {role: Path(place) for role, place in places.items() if not place.startswith(SCHEME)}
    files = {role: os.path.relpath(local[role], base) if role in local else place for role, place in places.items()}
    found = places.keys() - given
    faults: dict[str, str] = {}
    names: dict[str, list[str]] = {}
    pictures = {role: path for role, path in local.items() if path.is_dir() and holds_pictures(path)}
    for role, path in local.items():
        if role in pictures:
            continue
        try:
            names[role] = list(read_arrays(path, role))
        except DataError as error:
            if role in given:
                raise
            faults[role] = one_line(f"{error.found}; {error.fix}")
    # A mask of padding is made if a file has none.
    inputs = {spec.name for spec in feeds.in_files} - {MASK}
    shown = names.get("evaluation", names.get("calibration", []))
    # Without an input the arrays beside it may be its columns, which `load_samples` then names.
    extra = [name for name in shown if name not in {*inputs, MASK} and (name == LABEL or inputs <= set(shown))]
    label = LABEL if LABEL in extra else next(iter(extra), None)
    others = tuple(name for name in extra if name != label)
    # The table of a classifier has a column for each number of its one input.
    missing = [name for name in inputs if name not in shown]
    columns = missing[0] if len(missing) == 1 and names else None
    labels, unfit = _load({role: local[role] for role in names}, feeds, label or LABEL, others, columns)
    if columns and unfit:
        columns = None
        labels, unfit = _load({role: local[role] for role in names}, feeds, label or LABEL, others, None)
    classes = _folders_of_classes(pictures.values())
    if classes:
        label, labels = LABEL, np.arange(len(classes))
    return JobData(files, faults | unfit, found, label, others, labels, columns, bool(pictures), classes)


def _folders_of_classes(folders: Collection[Path]) -> tuple[str, ...]:
    """Return the names of folders that sort pictures by class; empty if a table has the labels."""
    if any(path for folder in folders for path in folder.glob("metadata.*")):
        return ()
    return tuple(sorted({path.parent.name for folder in folders for path in folder.glob("[!._]*/*")}))


def _load(
    files: Mapping[str, Path], feeds: Feeds, label: str, ignore: tuple[str, ...], columns: str | None
) -> tuple[NDArray[Any] | None, dict[str, str]]:
    """Return the labels of the evaluation data, and by role why a file does not fit."""
    labels, faults = None, {}
    for role, path in files.items():
        try:
            samples = load_samples(path, feeds, label=label, role=role, ignore=ignore, columns=columns)
        except DataError as error:
            faults[role] = one_line(f"{error.found}; {error.fix}")
        else:
            labels = samples.labels if role == "evaluation" else labels
    return labels, faults
