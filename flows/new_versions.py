"""Flows that start runs automatically: on a new version in the registry, and in a nightly sweep."""

# No `from __future__ import annotations`: Prefect reads the parameters' types from the signature.
from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from tasks.champion.settle_approvals import settle_approvals
from tasks.service.job_files import Jobs, read_jobs
from tasks.service.new_versions import VersionOutcome, publish_intake, sentence, sweep_registry, take_version


@flow(name="new version", flow_run_name="{name} version {version}")
def new_version(name: str, version: str) -> State[None]:
    """Quantize a newly registered version with each job of its model.

    Skips versions that quantgate made, and models without a job.
    """
    jobs = read_jobs()
    taken = take_version(name, version, jobs)
    publish_intake("new-version", f"Outcome for {name} version {version}", taken, jobs)
    return state_of(taken, jobs)


@flow(name="sweep")
def sweep() -> State[None]:
    """Quantize the versions that no run has finished: their event was lost, or their run failed.

    Covers the latest version of each model that takes part, and the versions that aliases name. First, approvals that nobody
    gave in time are recorded as rejections.
    """
    jobs = read_jobs()
    settle_approvals()
    taken = sweep_registry(jobs)
    publish_intake("sweep", "Versions that the sweep found in the registry", taken, jobs)
    return state_of(taken, jobs)


def state_of(taken: list[VersionOutcome], jobs: Jobs) -> State[None]:
    """Return the state that the Prefect UI shows: failed if a person must act, after all other work was done."""
    message = sentence(taken, jobs)
    if jobs.broken or any(one.outcome == "failed" for one in taken):
        return Failed(message=message)
    started = any(one.outcome == "started" for one in taken)
    return Completed(name="Started" if started else "NothingToDo", message=message)
