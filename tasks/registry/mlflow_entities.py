"""Conversion of plain values to MLflow's entities: params, metrics and tags for one batch."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from validators.redact import redact

if TYPE_CHECKING:
    from mlflow.entities import Metric, Param, RunTag

# Length of a data set's digest in MLflow's tables.
DIGEST_LENGTH = 36


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a nested dict, joining keys with dots."""
    joined: dict[str, Any] = {}
    for key, value in values.items():
        joined |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return joined


def as_params(values: dict[str, Any]) -> list[Param]:
    """Return params with keys that MLflow accepts and redacted values."""
    from mlflow.entities import Param

    return [Param(_key(key), redact(str(value))) for key, value in values.items()]


def as_metrics(values: dict[str, float], **links: str) -> list[Metric]:
    """Return metrics with the present time and keys that MLflow accepts; `links` name a model, run and data set."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    return [Metric(_key(key), float(value), now, 0, **links) for key, value in values.items()]


def as_tags(values: dict[str, str]) -> list[RunTag]:
    """Return tags of a run with redacted values."""
    from mlflow.entities import RunTag

    return [RunTag(key, redact(value)) for key, value in values.items()]


def as_table(columns: dict[str, list[Any]]) -> dict[str, Any]:
    """Return columns as the document that MLflow's page shows as a table.

    >>> as_table({"gate": ["drop", "sqnr"], "n": [1, 2]})
    {'columns': ['gate', 'n'], 'data': [['drop', 1], ['sqnr', 2]]}
    """
    return {"columns": list(columns), "data": [list(row) for row in zip(*columns.values(), strict=True)]}


def _key(name: str) -> str:
    """Remove the characters that MLflow refuses; names of slice groups and graph nodes may contain any."""
    return re.sub(r"[^\w\-. :/]", "", name)
