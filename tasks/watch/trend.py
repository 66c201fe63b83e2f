"""Trend of a champion in MLflow: one run per watched version, one step per look, and the watch's state in tags.

A run per version, not per look: MLflow draws a metric of one run as a curve over its steps, and shows the runs of an experiment
side by side. That compares versions of a champion, with each look as a point.

All functions raise InfrastructureError if the tracking server does not answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tasks.registry.mlflow_entities import as_tags
from tasks.registry.mlflow_registry import connect, experiment_id, registry_call
from tasks.registry.mlflow_runs import KIND, NAME, delete_duplicates, find_or_create_run
from tasks.run.context import Run
from tasks.watch.alarms import Memory
from tasks.watch.look import LookFindings
from tasks.watch.subject import Lineage
from tasks.watch.traffic import TrafficMark
from validators.errors import InfrastructureError

EXPERIMENT = "quantgate watch"
_VERSION, _MEMORY, _SEEN = "quantgate.watch.version", "quantgate.watch.memory", "quantgate.watch.seen"
_ACTION = "quantgate.watch.action."


@dataclass(frozen=True)
class Trend:
    """The MLflow run of one champion's looks, with the state after the last: evidence, traffic seen, actions by alarm kind."""

    run_id: str
    memory: Memory
    seen: TrafficMark
    actions: dict[str, str]


def open_trend(run: Run, lineage: Lineage) -> Trend:
    """Find the run of this champion's looks, or create it at the first look."""
    champion = lineage.champion
    version = f"{champion.name}/{champion.version}@{champion.alias}"
    with connect(run.tracking_uri) as client:
        experiment = experiment_id(client, EXPERIMENT, run.tracking_uri)
        quoted = version.replace("'", "")
        name = f"{champion.name} version {champion.version} on {run.job.target}"
        identity = {_VERSION: quoted, KIND: "watch"}
        found = find_or_create_run(client, experiment, identity, {NAME: name})
        delete_duplicates(client, experiment, identity, keep=found.info.run_id)
    tags = found.data.tags
    memory, seen = state_of(tags, name)
    return Trend(
        str(found.info.run_id),
        memory,
        seen,
        {key.removeprefix(_ACTION): value for key, value in tags.items() if key.startswith(_ACTION)},
    )


def state_of(tags: Mapping[str, str], name: str) -> tuple[Memory, TrafficMark]:
    """Return the state in the tags of a champion's run; before the first look there are none.

    Raises:
        InfrastructureError: somebody changed them, so that the watch would lose its evidence without notice.
    """
    try:
        memory, seen = (json.loads(tags.get(key, "{}")) for key in (_MEMORY, _SEEN))
        evidence = {str(kind): float(value) for kind, value in memory.get("log_evidence", {}).items()}
        mark = TrafficMark(float(seen.get("newest", 0.0)), tuple(map(str, seen.get("places", ()))))
        return Memory(int(memory.get("looks", 0)), evidence), mark
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InfrastructureError(
            found=f"the run {name!r} of {EXPERIMENT!r} in MLflow has a changed tag: {type(error).__name__}: {error}",
            expected=f"{_MEMORY} and {_SEEN} as the last look wrote them",
            fix="restore both tags, or delete that run in MLflow: the watch then begins anew",
        ) from error


def record_look(run: Run, trend: Trend, memory: Memory, seen: TrafficMark, seeing: LookFindings) -> None:
    """Record one more point of each figure, and the state for the next look, in one request."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    figures = seeing.figures | {f"evidence_{kind}": value for kind, value in memory.log_evidence.items()}
    metrics = [Metric(name, float(value), now, memory.looks) for name, value in figures.items()]
    tags = {_MEMORY: json.dumps(asdict(memory)), _SEEN: json.dumps(asdict(seen))}
    with connect(run.tracking_uri) as client:
        registry_call(client.log_batch, trend.run_id, metrics=metrics, tags=as_tags(tags))
        registry_call(client.set_terminated, trend.run_id, "FINISHED")


def record_action(run: Run, trend: Trend, kind: str, done: str) -> None:
    """Record the action on an alarm, so that it is done only once per version."""
    with connect(run.tracking_uri) as client:
        registry_call(client.set_tag, trend.run_id, f"{_ACTION}{kind}", done)
