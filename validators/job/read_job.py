"""Reading and checking of job files; errors name every fault."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from validators.errors import JobError
from validators.job.job import Job
from validators.untrusted.bounded_yaml import MOST_BYTES, load_yaml, read_yaml

# Faults of a job that an error lists, and characters of a value.
MOST_FAULTS, MOST_CHARACTERS = 20, 200


def read_job(path: Path, changes: Sequence[str] = ()) -> Job:
    """Read a job file and make `changes` to it; relative paths in both are resolved against its folder.

    Raises:
        JobError: the file is missing, unreadable, not YAML, or not a job; or a change is none, see `changed`.
    """
    return parse_job(changed(_content(path), changes), base=path.resolve().parent, origin=str(path))


def changed(raw: Any, changes: Sequence[str]) -> Any:
    """Return the content of a job with changes, each `KEY=VALUE`: dots lead into a mapping, and the value is YAML.

    Raises:
        JobError: a change has no such form, or leads into what is no mapping.

    >>> changed({"gates": {"max_drop": 0.1}}, ["gates.max_drop=0.01", "measurement.batch_sizes=[1, 8]"])
    {'gates': {'max_drop': 0.01}, 'measurement': {'batch_sizes': [1, 8]}}
    """
    for change in changes:
        key, is_given, value = change.partition("=")
        try:
            if not is_given:
                raise ValueError("no value")
            if not isinstance(raw, dict):
                return raw  # which is told with its type when it is checked
            here = raw = dict(raw)
            *path, last = key.strip().split(".")
            for name in path:
                here[name] = dict(here.get(name) or {})
                here = here[name]
            here[last] = load_yaml(value)
        except (TypeError, ValueError, yaml.YAMLError) as error:
            raise JobError(
                found=f"the change {change[:MOST_CHARACTERS]!r}",
                expected="KEY=VALUE with a key of the job and a value as in YAML, such as gates.max_drop=0.01",
                fix="correct --set; docs/job.schema.json lists the keys",
            ) from error
    return raw


def _content(path: Path) -> Any:
    try:
        return read_yaml(path)
    except (OSError, ValueError) as error:  # ValueError for a null character in the path
        raise JobError(
            found=f"job file {path}: {getattr(error, 'strerror', None) or error}",
            expected=f"a readable YAML file of at most {MOST_BYTES:,} bytes",
            fix="check the path; examples/text.yaml is an example",
        ) from error
    except yaml.YAMLError as error:
        raise JobError(
            found=f"job file {path}: {' '.join(str(error).split())}",
            expected="a YAML file of a job, such as examples/text.yaml",
            fix="correct the file there",
        ) from error


def parse_job(raw: Any, *, base: Path, origin: str = "the job") -> Job:
    """Check the content of a job file and resolve its paths against `base`.

    Raises:
        JobError: a key is unknown or missing, or a value is out of bounds; the error names every fault.
    """
    if not isinstance(raw, dict):
        raise JobError(
            found=f"{origin} holds a value of type {type(raw).__name__}",
            expected="a mapping with `source` and `data`",
            fix="see examples/text.yaml",
        )
    try:
        job = Job.model_validate(raw)
    except ValidationError as error:
        faults = _told(error.errors())
        raise JobError(
            found=f"{origin}: {_listed([_describe(fault) for fault in faults], '; ')}",
            expected="the keys and bounds of docs/job.schema.json",
            fix="correct " + _listed([*dict.fromkeys(f"`{_place(fault['loc'])}`" for fault in faults)], ", "),
        ) from error
    files = {name: getattr(job.data, name) for name in ("calibration", "evaluation", "traffic")}
    data = job.data.model_copy(update={name: base / path for name, path in files.items() if isinstance(path, Path)})
    source = str(base / job.source) if job.source_is_file else job.source
    libraries = tuple(
        library.model_copy(update={"file": base / library.file}) if library.file else library
        for library in job.operator_libraries
    )
    vocabulary = base / job.text.vocabulary if job.text.vocabulary else None
    paths = {
        "data": data,
        "given": tuple(one.below(base) for one in job.given),
        "source": source,
        "operator_libraries": libraries,
        "code": base / job.code,
        "text": job.text.model_copy(update={"vocabulary": vocabulary}),
        "watch": job.watch.below(base) if job.watch else None,
    }
    return job.model_copy(update=paths)


def _place(location: tuple[int | str, ...]) -> str:
    # Where a key takes one of several types, pydantic ends the location with the type that it tried.
    return ".".join(str(part) for part in location if not re.search(r"\[|^constrained-", str(part))) or "job"


def _told(faults: list[Any]) -> list[Any]:
    """Return the faults, without those of the union member that the value was not meant for.

    The union is of a name from a list and `module:function`; a value with a colon is meant as a function.
    """
    listed, functions = (
        {_place(fault["loc"]) for fault in faults if fault["type"] == kind}
        for kind in ("literal_error", "string_pattern_mismatch")
    )

    def unmeant(fault: Any) -> bool:
        is_function = isinstance(fault["input"], str) and ":" in fault["input"]
        return bool(fault["type"] == ("literal_error" if is_function else "string_pattern_mismatch"))

    return [fault for fault in faults if not (_place(fault["loc"]) in listed & functions and unmeant(fault))]


def _listed(texts: list[str], mark: str) -> str:
    """Return the first texts, and the number of the others."""
    rest = len(texts) - MOST_FAULTS
    return mark.join(texts[:MOST_FAULTS]) + (f"{mark}{rest} more" if rest > 0 else "")


def _suggest(given: object, choices: list[str]) -> str:
    """Return a hint with the closest choice; empty if none is close.

    >>> _suggest("acuracy", ["accuracy", "mse"])
    "; did you mean 'accuracy'?"
    """
    close = get_close_matches(str(given), choices, 1)
    return f"; did you mean {close[0]!r}?" if close else ""


@functools.cache
def _known_keys() -> list[str]:
    schema = Job.model_json_schema()
    return [key for part in (schema, *schema["$defs"].values()) for key in part.get("properties", {})]


def _describe(fault: Any) -> str:
    if fault["type"] == "extra_forbidden":
        return f"unknown key `{_place(fault['loc'])}`{_suggest(fault['loc'][-1], _known_keys())}"
    if fault["type"] == "literal_error":
        choices = re.findall(r"'([^']+)'", fault["ctx"]["expected"])
        hint = _suggest(fault["input"], choices)
        return f"`{_place(fault['loc'])}`: unknown value {fault['input']!r}{hint} (known: {', '.join(choices)})"
    if fault["type"] == "string_pattern_mismatch" and fault["loc"][0] in ("metric", "step"):
        return f"`{_place(fault['loc'])}`: {fault['input']!r} where module:function was expected"
    if fault["type"] == "missing":
        return f"no key `{_place(fault['loc'])}`"
    given = f" (given {repr(fault['input'])[:MOST_CHARACTERS]})" if not isinstance(fault["input"], dict) else ""
    return f"`{_place(fault['loc'])}`: {fault['msg']}{given}"
