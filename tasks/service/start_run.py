"""Start of runs through the deployment `quantize/quantize-model`, once per key.

All functions raise InfrastructureError if the Prefect server does not answer.
"""

from __future__ import annotations

from uuid import UUID

from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterIdempotencyKey
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound

from tasks.run.prefect_server import server_client
from validators.errors import InfrastructureError
from validators.job.job import Job

DEPLOYMENT = "quantize/quantize-model"
# One attempt a night: after this many failures a person must find the cause.
MAX_ATTEMPTS = 5


def start_quantize(job: Job, key: str) -> UUID:
    """Start the deployment `quantize/quantize-model` with a job and return the run's id; a used key returns its earlier run.

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
    """Return the key of the next attempt and an empty text; or an empty text and why there is none.

    An attempt is over when its run has ended: it failed, crashed, or finished without a status on its source's version.
    """
    keys = [f"{key}, attempt {number}" for number in range(1, MAX_ATTEMPTS + 1)]
    with server_client() as client:
        wanted = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=keys))
        runs = {run.idempotency_key: run for run in client.read_flow_runs(flow_run_filter=wanted)}
    for one in keys:
        if one not in runs:
            return one, ""
        if _is_alive(runs[one]):
            return "", f"the run {runs[one].name} is in progress"
        if runs[one].state_type == StateType.CANCELLED:
            return "", f"the run {runs[one].name} was cancelled: start the job by hand to run it anyway"
    return "", f"{MAX_ATTEMPTS} runs failed: start the job by hand when the cause is fixed"


def is_alive(flow_run: str) -> bool:
    """Return True if the flow run of this id exists and has not ended."""
    try:
        identifier = UUID(flow_run)
    except ValueError:
        return False
    with server_client() as client:
        runs = client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[identifier])))
    return any(_is_alive(run) for run in runs)


def _is_alive(run: FlowRun) -> bool:
    return run.state is None or not run.state.is_final()
