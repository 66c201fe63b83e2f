"""Starts a run of the story on a worker, once for each key, and says which runs of a key there are."""

from __future__ import annotations

from uuid import UUID

from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterIdempotencyKey
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound

from tasks.run.prefect_server import server_client
from validators.errors import InfrastructureError
from validators.job.job import Job

DEPLOYMENT = "quantize/on-demand"
# A night each: what fails as often has a cause that a person must find.
MAX_ATTEMPTS = 5


def start_quantize(job: Job, key: str) -> UUID:
    """The run of the deployment `quantize/on-demand` with a job; with a key that was used before, the run that it started then.

    Raises:
        InfrastructureError: the Prefect server does not answer, or has no such deployment.
    """
    parameters = {"job": job.model_dump(mode="json"), "promote": True}
    with server_client() as client:
        try:
            deployment = client.read_deployment_by_name(DEPLOYMENT)
        except ObjectNotFound as error:
            raise InfrastructureError(
                found=f"no deployment {DEPLOYMENT} on the Prefect server",
                expected="the deployments of infra/prefect.yaml",
                fix="quantgate deploy",
            ) from error
        run = client.create_flow_run_from_deployment(deployment.id, parameters=parameters, idempotency_key=key)
    return run.id


def next_key(key: str) -> tuple[str, str]:
    """The key of the next attempt and an empty text; or an empty text and why there is none.

    An attempt is over when its run is: it failed, was crashed, or came to an end that its source's version does not show.

    Raises:
        InfrastructureError: the Prefect server does not answer.
    """
    keys = [f"{key}, attempt {number}" for number in range(1, MAX_ATTEMPTS + 1)]
    with server_client() as client:
        wanted = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=keys))
        runs = {run.idempotency_key: run for run in client.read_flow_runs(flow_run_filter=wanted)}
    for one in keys:
        if one not in runs:
            return one, ""
        if _is_alive(runs[one]):
            return "", f"the run {runs[one].name} is on it"
        if runs[one].state_type == StateType.CANCELLED:
            return "", f"the run {runs[one].name} was cancelled: start the job by hand to have it anyway"
    return "", f"{MAX_ATTEMPTS} runs came to nothing: start the job by hand when the cause is mended"


def is_alive(flow_run: str) -> bool:
    """Whether a flow run, by its id, has not come to an end; one that the server does not know has.

    Raises:
        InfrastructureError: the Prefect server does not answer.
    """
    try:
        identifier = UUID(flow_run)
    except ValueError:
        return False
    with server_client() as client:
        runs = client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[identifier])))
    return any(_is_alive(run) for run in runs)


def _is_alive(run: FlowRun) -> bool:
    return run.state is None or not run.state.is_final()
