"""Data files of the job that `quantgate init` writes: given, or found beside the job or the model, and their label."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from numpy.typing import NDArray

from validators.errors import DataError
from validators.plain_text import one_line
from validators.samples.data_advice import listed
from validators.samples.datasets import MASK, load_samples
from validators.samples.feeds import Feeds
from validators.samples.readers import READERS, read_arrays
from validators.untrusted.s3_uris import SCHEME

LABEL = "label"
# Text that needs no quotes in YAML, unless it reads as another value, such as `no`.
_PLAIN = re.compile(r"(models:)?[A-Za-z0-9_./@+-]+")
# Names without suffix of the files that are taken, the first that exists; `valid*` is the validation split of many data sets.
STEMS = {"calibration": ("calibration", "train"), "evaluation": ("evaluation", "test", "valid*")}


@dataclass(frozen=True)
class JobData:
    """Data files of a job: their names in it by role, and the reason why one does not fit the model.

    `found` are the roles whose files nobody named. `label` is the array that holds the labels; `others` are the further arrays
    that are no inputs, so that the choice is open. `labels` are those of the evaluation data.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    found: Collection[str] = ()
    label: str | None = None
    others: Sequence[str] = ()
    labels: NDArray[Any] | None = None


def quoted(text: str) -> str:
    """Return the text as YAML reads it back, in quotes only where they are needed.

    >>> quoted("models:/fraud/3"), quoted("no"), quoted("a b")
    ('models:/fraud/3', '"no"', '"a b"')
    """
    return text if _PLAIN.fullmatch(text) and yaml.safe_load(text) == text else json.dumps(text)


def find_data(folders: Collection[Path]) -> dict[str, str]:
    """Return the data files of the folders by role: the first of each role by name, folder and suffix."""
    found: dict[str, str] = {}
    for role, stems in STEMS.items():
        paths = (path for stem in stems for folder in folders for path in sorted(folder.glob(f"{stem}.*")))
        place = next((path for path in paths if path.suffix in READERS and path.is_file()), None)
        if place is not None:
            found[role] = str(place)
    return found


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
    for role, path in local.items():
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
    labels = None
    for role in names:
        try:
            samples = load_samples(local[role], feeds, label=label or LABEL, role=role, ignore=others)
        except DataError as error:
            faults[role] = one_line(f"{error.found}; {error.fix}")
        else:
            labels = samples.labels if role == "evaluation" else labels
    return JobData(files, faults, found, label, others, labels)


def data_lines(data: JobData, *, labelled: bool) -> list[str]:
    """Return the lines of the job for the two files and the label; a line that is not certain is marked CHECK."""
    lines = []
    for role in STEMS:
        name = data.files.get(role, f"{role}.npz")
        mark = "  # found beside the job or the model" if role in data.found else ""
        mark = "  # CHECK" if role not in data.files else mark
        mark = f"  # CHECK: {data.faults[role]}" if role in data.faults else mark
        lines.append(f"  {role}: {quoted(name)}{mark}")
    if data.label is None and labelled:
        lines.append(f"  label: {LABEL}  # CHECK: the name of the array that holds the labels")
    elif data.label is not None and (labelled or data.label != LABEL):
        choice = (
            f"  # CHECK: or one of {one_line(listed(data.others))}; name the rest in `ignore`, `slices` or `groups`"
        )
        lines.append(f"  label: {quoted(data.label)}{choice if data.others else ''}")
    return lines
