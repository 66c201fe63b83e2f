"""The trend of a champion in MLflow: one run for each version that is watched, one step for each look, and what is remembered.

One run a version, and not one a look, since MLflow draws a metric of one run over its steps as a curve, and shows the runs
of an experiment beside each other: versions of a champion are compared there, and each look is a point.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass

from tasks.registry.mlflow_entities import as_tags
from tasks.registry.mlflow_registry import connect, experiment_id, registry_call
from tasks.registry.mlflow_runs import KIND, NAME, delete_duplicates, find_or_create_run
from tasks.run.context import Run
from tasks.watch.evidence import Memory
from tasks.watch.look import Seeing
from tasks.watch.subject import Lineage
from tasks.watch.traffic import TrafficMark

EXPERIMENT = "quantgate watch"
_VERSION, _MEMORY, _SEEN = "quantgate.watch.version", "quantgate.watch.memory", "quantgate.watch.seen"
_ACTION = "quantgate.watch.action."


@dataclass(frozen=True)
class Trend:
    """The MLflow run of one champion's looks, with what the last one left: evidence, traffic seen, actions by kind of alarm."""

    run_id: str
    memory: Memory
    seen: TrafficMark
    actions: dict[str, str]


def open_trend(run: Run, lineage: Lineage) -> Trend:
    """The run of this champion's looks, made at the first of them.

    Raises:
        InfrastructureError: the tracking server does not answer.
    """
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
    seen = json.loads(tags.get(_SEEN, "{}"))
    return Trend(
        str(found.info.run_id),
        Memory(**json.loads(tags.get(_MEMORY, "{}"))),
        TrafficMark(seen.get("newest", 0.0), tuple(seen.get("places", ()))),
        {key.removeprefix(_ACTION): value for key, value in tags.items() if key.startswith(_ACTION)},
    )


def record_look(run: Run, trend: Trend, memory: Memory, seen: TrafficMark, seeing: Seeing) -> None:
    """One more point of each figure, and what the next look needs to know, in one request.

    Raises:
        InfrastructureError: the tracking server does not answer.
    """
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    figures = seeing.figures | {f"evidence_{kind}": value for kind, value in memory.log_evidence.items()}
    metrics = [Metric(name, float(value), now, memory.looks) for name, value in figures.items()]
    tags = {_MEMORY: json.dumps(asdict(memory)), _SEEN: json.dumps(asdict(seen))}
    with connect(run.tracking_uri) as client:
        registry_call(client.log_batch, trend.run_id, metrics=metrics, tags=as_tags(tags))
        registry_call(client.set_terminated, trend.run_id, "FINISHED")


def record_action(run: Run, trend: Trend, kind: str, done: str) -> None:
    """What was done about an alarm, so that it is done once for each version.

    Raises:
        InfrastructureError: the tracking server does not answer.
    """
    with connect(run.tracking_uri) as client:
        registry_call(client.set_tag, trend.run_id, f"{_ACTION}{kind}", done)
