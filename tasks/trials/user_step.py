"""Step 6, third part: the job's own step inspects candidates that passed so far, and logs metrics for further gates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tasks.records.candidate_record import open_candidate_run
from tasks.registry.mlflow_registry import connect, quiet_mlflow, registry_call
from tasks.run.context import Run, log
from tasks.run.loaded_run import LoadedRun
from tasks.run.step import step
from tasks.run.user_functions import job_step
from tasks.runtimes.runner import Runner, open_runner
from tasks.storage.product import Product
from validators.digests import digest_values
from validators.gates.resource import judge_logged
from validators.gates.verdict_rules import overall
from validators.records.run import Trial, Variant
from validators.redact import redact
from validators.samples.copy_rows import copy_rows
from validators.samples.evidence import Evidence


@dataclass(frozen=True)
class Subject:
    """Argument of the job's own step: one variant, and the evaluation samples that choose.

    The step runs inside the candidate's run in MLflow: `mlflow.log_metric` and its siblings log there.
    """

    candidate: str
    model: Path
    source: Path
    evaluation: Path
    variant: Variant

    @contextmanager
    def runner(self) -> Iterator[Runner]:
        """Yield a runner of the variant as it would be promoted; use one at a time."""
        with open_runner(self.variant.loaded, self.variant.session) as runner:
            yield runner


@step("run the job's own step", retried=False)
def run_own_step(run: LoadedRun, record: str, trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """Return the trials, with verdicts on the logged metrics for those that passed so far; unchanged if the job has no step.

    After a step raises, only metrics that it logged before count.
    """
    own = job_step(run.job)
    if own is None:
        return trials
    with run.clock.work("own step"):
        samples = choosing_samples(run, run.evidence)
        return tuple(
            _try(run, record, own.function, samples, trial) if trial.outcome == "passed" else trial for trial in trials
        )


def choosing_samples(run: Run, evidence: Evidence) -> Path:
    """Return evaluation data without the samples that confirm the winner, since the step filters candidates.

    The path is the job's own file if all samples choose, else a copy of the remaining rows in the same format.
    """
    path, kept = evidence.evaluation.file.path, ~evidence.confirmation
    if kept.all():
        return path

    inputs = (evidence.evaluation.file.digest, digest_values(np.packbits(kept).tobytes()), path.name)
    return run.store.make(Product("choosing", inputs, Path, partial(copy_rows, path, kept)))[0]


def _try(run: LoadedRun, record: str, function: Any, samples: Path, trial: Trial) -> Trial:
    import mlflow

    assert trial.variant is not None
    subject = Subject(
        trial.candidate,
        trial.variant.path,
        run.source.onnx_path,
        samples,
        trial.variant,
    )
    problem = ""
    with connect(run.tracking_uri) as client:
        identifier = open_candidate_run(client, record, trial.candidate)
        with mlflow.start_run(run_id=identifier, nested=True, log_system_metrics=False), quiet_mlflow():
            try:
                function(subject)
            except Exception as error:  # the user's code may raise anything; the verdict reports it
                problem = redact(f"the job's own step raised {type(error).__name__}: {error}")
                log.warning("%s: %s", trial.candidate, problem, exc_info=error)
        logged: dict[str, float] = registry_call(client.get_run, identifier).data.metrics
    verdicts = (*trial.verdicts, *judge_logged(logged, run.job.gates, problem=problem))
    log.info("%s: the job's own step logged %s", trial.candidate, logged)
    return replace(trial, verdicts=verdicts, outcome=overall(verdicts), mlflow_run_id=identifier)
