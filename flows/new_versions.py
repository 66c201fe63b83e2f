"""What starts runs without a person: a new version in the registry, and a nightly look at all of them."""

# No `from __future__ import annotations`: Prefect reads the parameters' types from the signature.
from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from tasks.champion.settle_approvals import settle_approvals
from tasks.service.job_files import Jobs, read_jobs
from tasks.service.new_versions import Intake, publish_intake, sentence, sweep_registry, take_version


@flow(name="new version", flow_run_name="{name} version {version}")
def new_version(name: str, version: str) -> State[None]:
    """Quantize a version that was registered, with each job that its model takes part with.

    Skips versions that quantgate made, and models without a job.
    """
    jobs = read_jobs()
    taken = take_version(name, version, jobs)
    publish_intake("new-version", f"What became of {name} version {version}", taken, jobs)
    return state_of(taken, jobs)


@flow(name="sweep")
def sweep() -> State[None]:
    """Quantize what no run has brought to an end: the versions whose event was lost, and those whose run failed.

    Looks at the latest version of each model that takes part, and at those that aliases name. First, approvals that nobody gave
    in time are recorded as rejections.
    """
    jobs = read_jobs()
    settle_approvals()
    taken = sweep_registry(jobs)
    publish_intake("sweep", "What the sweep found in the registry", taken, jobs)
    return state_of(taken, jobs)


def state_of(taken: list[Intake], jobs: Jobs) -> State[None]:
    """The state that the Prefect UI shows: failed where a person has something to mend, after all else was done."""
    message = sentence(taken, jobs)
    if jobs.broken or any(one.outcome == "failed" for one in taken):
        return Failed(message=message)
    started = any(one.outcome == "started" for one in taken)
    return Completed(name="Started" if started else "NothingToDo", message=message)
