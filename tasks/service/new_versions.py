"""Intake of registered versions: select those to quantize and their jobs, and start each job once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from prefect.artifacts import create_table_artifact

from tasks.registry.champion_slot import TAG
from tasks.registry.mlflow_registry import connect, pages, registry_call
from tasks.registry.source_status import UNFINISHED, digest_job, read_status
from tasks.run.context import log
from tasks.run.settings import state_folder, tracking_uri
from tasks.run.step import step
from tasks.service.job_files import JOBS_TAG, Jobs, at_version, jobs_for
from tasks.service.start_run import is_alive, next_key, start_quantize
from validators.errors import InfrastructureError, JobError
from validators.job.job import Job

if TYPE_CHECKING:
    from mlflow import MlflowClient

PAGE = 100
# Limit for the sentence; the table lists all.
SHOWN = 5


@dataclass(frozen=True)
class VersionOutcome:
    """Outcome for one version and one job: `why` in words, `flow_run` the id of the started run."""

    name: str
    version: str
    job: str
    outcome: Literal["started", "skipped", "failed"]
    why: str
    flow_run: str = ""


@step("take in version")
def take_version(name: str, version: str, jobs: Jobs) -> list[VersionOutcome]:
    """Start the jobs of one version, by the registry's data: the contents of an event are not trusted.

    Raises:
        InfrastructureError: the registry does not answer.
    """
    from mlflow.exceptions import MlflowException

    with connect(tracking_uri(state_folder())) as client:
        try:
            model: Any = registry_call(client.get_registered_model, name)
            found: Any = registry_call(client.get_model_version, name, version)
        except MlflowException:
            return [VersionOutcome(name, version, "", "skipped", "the registry has no such version")]
    try:
        chosen = jobs_for(name, model.tags, jobs)
    except JobError as error:
        return [VersionOutcome(name, version, "", "failed", f"{error.found}; {error.fix}")]
    if not chosen:
        opted = JOBS_TAG in model.tags
        why = f"the model's tag {JOBS_TAG} says so" if opted else f"no job in {jobs.folder} is of this model"
        return [VersionOutcome(name, version, "", "skipped", why)]
    return [_taken(found, key, job) for key, job in chosen.items()]


@step("sweep the registry")
def sweep_registry(jobs: Jobs) -> list[VersionOutcome]:
    """Start the unfinished versions of each model that takes part: the latest one, and those that aliases name.

    Raises:
        InfrastructureError: the registry does not answer.
    """
    taken: list[VersionOutcome] = []
    with connect(tracking_uri(state_folder())) as client:
        for model in pages(client.search_registered_models, max_results=PAGE):
            try:
                chosen = jobs_for(model.name, model.tags, jobs)
            except JobError as error:
                taken.append(VersionOutcome(model.name, "", "", "failed", f"{error.found}; {error.fix}"))
                continue
            versions = _versions(client, model) if chosen else []
            taken += [_taken(version, key, job) for version in versions for key, job in chosen.items()]
    return taken


def publish_intake(key: str, title: str, taken: list[VersionOutcome], jobs: Jobs) -> None:
    """Publish the table of intakes as an artifact of the flow run."""
    rows = [
        {
            "model": one.name,
            "version": one.version,
            "job": one.job,
            "outcome": one.outcome,
            "why": one.why,
            "run": one.flow_run,
        }
        for one in taken
    ]
    for name, error in jobs.broken.items():
        why = f"{error.found}; {error.fix}"
        rows.append({"model": "", "version": "", "job": name, "outcome": "broken", "why": why, "run": ""})
    create_table_artifact(rows, key=key, description=title)


def sentence(taken: list[VersionOutcome], jobs: Jobs) -> str:
    """Return a summary by outcome, with reasons: `started: m version 2 with nightly (new); skipped: ...`."""
    words = []
    for outcome in ("started", "failed", "skipped"):
        of_it = [one for one in taken if one.outcome == outcome]
        if of_it:
            rest = f", and {len(of_it) - SHOWN} more" if len(of_it) > SHOWN else ""
            words.append(f"{outcome}: {', '.join(_shown(one) for one in of_it[:SHOWN])}{rest}")
    if jobs.broken:
        rest = f", and {len(jobs.broken) - SHOWN} more" if len(jobs.broken) > SHOWN else ""
        words.append(f"broken job files: {', '.join(list(jobs.broken)[:SHOWN])}{rest}")
    return "; ".join(words) or f"no registered model takes part with the jobs in {jobs.folder}"


def _shown(one: VersionOutcome) -> str:
    version = f" version {one.version}" if one.version else ""
    return f"{one.name}{version}{f' with {one.job}' if one.job else ''} ({one.why})"


def _versions(client: MlflowClient, model: Any) -> list[Any]:
    """Return the latest version and the versions that aliases name, newest first."""
    # `latest_versions` has the latest of each stage, so the largest number is the latest of all. A search by name is rejected:
    # its filter needs quotes, which a name may contain.
    numbers = {int(version.version) for version in model.latest_versions}
    wanted = {max(numbers, default=0), *(int(version) for version in model.aliases.values())} - {0}
    return [registry_call(client.get_model_version, model.name, str(number)) for number in sorted(wanted, reverse=True)]


def _taken(version: Any, key: str, job: Job) -> VersionOutcome:
    """Start one version with one job, or record why not. An error here must not stop the other versions."""
    place = (version.name, str(version.version), key)
    try:
        why = _settled(version, job)
        intake = VersionOutcome(*place, "skipped", why) if why else _started(version, place, job)
    except (JobError, InfrastructureError) as error:
        intake = VersionOutcome(*place, "failed", f"{error.found}; {error.fix}")
    log.info("%s version %s with %s: %s, %s", *place, intake.outcome, intake.why)
    return intake


def _settled(version: Any, job: Job) -> str:
    """Return why a version needs no run for a job's target; empty if it needs one."""
    if f"{TAG}variant_digest" in version.tags:
        return "quantgate made this version"
    if version.status != "READY":
        return f"its state is {version.status}"
    told = read_status(version.tags, job.target)
    if told.status and told.status not in UNFINISHED:
        return f"status {told.status}"
    if told.status == "error" and told.error == "input" and told.job == digest_job(_at(version, job)):
        return "status error, and the job has not changed: a person must correct the job or its data"
    if told.status != "error" and told.flow_run and is_alive(told.flow_run):
        return f"status {told.status}"
    return ""


def _started(version: Any, place: tuple[str, str, str], job: Job) -> VersionOutcome:
    job = _at(version, job)
    # A model that was deleted and registered again counts its versions from 1.
    source = f"{job.source} of {version.creation_timestamp}"
    key, why = next_key(f"{source} for {job.target}, job {digest_job(job)}")
    if not key:
        return VersionOutcome(*place, "skipped", why)
    told = read_status(version.tags, job.target).status
    return VersionOutcome(*place, "started", f"status {told}" if told else "no status", str(start_quantize(job, key)))


def _at(version: Any, job: Job) -> Job:
    return at_version(job, version.name, str(version.version))
