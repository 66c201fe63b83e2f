"""Messages between a run and a worker: orders as parameters of a flow, records and answers through the store."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from tasks.storage.files import write_once
from tasks.storage.store import Store
from validators.digests import digest_values
from validators.errors import InfrastructureError, QuantgateError, class_names, find_class
from validators.source_code import OURS

MARKER_FILE = "marker"


@dataclass(frozen=True)
class Order:
    """A step that a run asks of a worker, as references and digests only.

    `step` is one of `tasks.workers.steps.STEPS`, and `label` its name for people. `place` and `marker` identify the state
    folder, or the store on S3, that both must share. `code` is the version of quantgate, and `device` the
    `Inventory.device_key` that the run expects. `arguments` is the digest of the step's records in the store, and `answer` the
    key of its answer.
    """

    step: str
    label: str
    place: str
    marker: str
    code: str
    device: str
    arguments: str
    answer: str


# Records as JSON, one text each, packed by the store, which a worker may have at another path.
_Kept = tuple[str, ...]


@dataclass(frozen=True)
class _Failure:
    """An error of quantgate: the names of its class and its bases, nearest first, and its fields as JSON."""

    classes: tuple[str, ...]
    fields: dict[str, str]


@dataclass(frozen=True)
class _Answer:
    """Outcome of a step: a record as JSON, or an error."""

    record: str = ""
    failure: _Failure | None = None


def code_version() -> str:
    """Return the digest of all code that a worker runs: a worker with other code would make other variants."""
    return OURS.digest(OURS.modules["tasks.workers.steps"])


def marker_of(state: Path) -> str:
    """Return the unique marker of this state folder, whatever its mount path; created on first use."""
    path = state / MARKER_FILE
    if not path.exists():
        # A run and a worker may start at the same time.
        write_once(path, lambda partial: partial.write_text(os.urandom(16).hex(), encoding="ascii"))
    return path.read_text(encoding="ascii")


def place_of(state: Path, store: Store) -> str:
    """Return the address that a run and its workers must share: the store's if it is on S3, else the state folder's."""
    return store.shared.root if store.shared else str(state)


def place_marker(state: Path, store: Store) -> str:
    """Return the unique marker of that store or state folder."""
    return store.shared.marker() if store.shared else marker_of(state)


def keep_arguments(store: Store, records: tuple[Any, ...], types: tuple[Any, ...]) -> str:
    """Store the records of a step, and return the digest under which a worker finds them."""
    texts = tuple(store.pack(_text(kind, record)) for kind, record in zip(types, records, strict=True))
    digest = digest_values(texts)
    store.keep("arguments", (digest,), _Kept, texts)
    return digest


def read_arguments(store: Store, digest: str, types: tuple[Any, ...]) -> list[Any]:
    """Return the records that `keep_arguments` stored.

    Raises:
        InfrastructureError: they are not in the store.
    """
    kept = store.find("arguments", (digest,), _Kept)
    if kept is None:
        raise _missing(store, f"arguments {digest[:12]}")
    return [TypeAdapter(kind).validate_json(store.unpack(text)) for kind, text in zip(types, kept, strict=True)]


def keep_answer(store: Store, order: Order, outcome: Any, kind: Any) -> None:
    """Store the outcome of a step, a record or an error of quantgate, under the key that the run reads."""
    if isinstance(outcome, QuantgateError):
        store.keep("answer", (order.answer,), _Answer, _Answer(failure=_failure_of(store, outcome)))
    else:
        store.keep("answer", (order.answer,), _Answer, _Answer(record=store.pack(_text(kind, outcome))))


def read_answer(store: Store, order: Order, kind: Any) -> Any:
    """Return the record that the step returned.

    Raises:
        QuantgateError: the step raised it; an error of a class that this process does not know becomes its nearest base.
        InfrastructureError: there is no answer in the store.
    """
    answer = store.find("answer", (order.answer,), _Answer)
    if answer is None:
        raise _missing(store, f"answer to {order.label}")
    if answer.failure is not None:
        raise _error_of(store, answer.failure)
    return TypeAdapter(kind).validate_json(store.unpack(answer.record))


def _failure_of(store: Store, error: QuantgateError) -> _Failure:
    types, fields = _field_types(type(error)), {}
    for name, value in error.fields.items():
        text = _text(types[name], value)
        # Translate only paths that the run opens; a message keeps the paths of the worker's machine.
        fields[name] = text if types[name] is str else store.pack(text)
    return _Failure(class_names(error), fields)


def _error_of(store: Store, failure: _Failure) -> QuantgateError:
    known, fields = find_class(failure.classes), {}
    for name, kind in _field_types(known).items():
        if name in failure.fields:
            text = failure.fields[name]
            fields[name] = TypeAdapter(kind).validate_json(text if kind is str else store.unpack(text))
    return known(**fields)


def _field_types(kind: type[QuantgateError]) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(kind.__init__).items() if name != "return"}


def _text(kind: Any, record: Any) -> str:
    # Not by pydantic alone: it writes NaN and Inf, which are valid findings, as null.
    return json.dumps(TypeAdapter(kind).dump_python(record, mode="json"))


def _missing(store: Store, what: str) -> InfrastructureError:
    return InfrastructureError(
        found=f"no {what} in {store.name}",
        expected="one store that the run and its workers share",
        fix="run again; finished work is kept",
    )
