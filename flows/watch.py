"""Flow that looks at recent traffic of each champion after its promotion, and acts when its job's bounds are exceeded."""

# No `from __future__ import annotations`: Prefect reads the parameters' types from the signature.
from typing import Annotated

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from pydantic import Field

from tasks.watch.alarms import Observation
from tasks.watch.watch import look, watched_jobs

JobName = Annotated[
    str | None, Field(description="Name of a job file in QUANTGATE_JOBS, without its suffix; all of them when empty.")
]


@flow(name="watch", flow_run_name="{job_name}")
def watch(job_name: JobName = None) -> State[tuple[Observation, ...]]:
    """Look at recent traffic of every watched champion, or of one job's: drift, saturation, agreement with the source.

    When a bound of the job's `watch` section is exceeded, it raises an alarm and, if the job says so, starts a
    re-quantization or a rollback.
    """
    jobs, broken = watched_jobs(job_name)
    looks = (*broken, *(look(name, job) for name, job in jobs.items()))
    return state_of(looks)


def state_of(looks: tuple[Observation, ...]) -> State[tuple[Observation, ...]]:
    """Return the state that the Prefect UI shows: failed if a look failed, else named after the most severe outcome."""
    told = "; ".join(f"{one.job}: {one.told}" for one in looks) or "no job has a `watch` section"
    outcomes = {one.outcome for one in looks}
    if "error" in outcomes:
        return Failed(name="Error", message=told, data=looks)
    name = next((kind for kind in ("alarm", "quiet") if kind in outcomes), "nothing")
    return Completed(name=name.title(), message=told, data=looks)
