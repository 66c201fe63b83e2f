"""What a worker of a target runs: one step of a run's story, most often all the work on one candidate."""

# No `from __future__ import annotations`: Prefect reads the parameters' types from the signature.
from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Failed

from tasks.run.log_redaction import shielded
from tasks.workers.orders import Order
from tasks.workers.steps import fulfil
from validators.errors import StorageFull
from validators.job.job import Job


@flow(name="candidate", flow_run_name="{order.label} of {job.source}")
@shielded
def candidate(job: Job, order: Order) -> State[None] | None:
    """Do a step for a run elsewhere; the answer goes into the store that both share."""
    try:
        fulfil(job, order)
    except StorageFull as error:
        # There is no room for the answer: the run learns the class of the error from the name of the state.
        return Failed(name=StorageFull.__name__, message=str(error))
    return None
