"""Flow that a target's worker runs: one step of a run, usually all the work on one candidate."""

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
    """Do a step for a run elsewhere; put the answer into the store that both share."""
    try:
        fulfil(job, order)
    except StorageFull as error:
        # There is no room to store the answer: the name of the state carries the class of the error.
        return Failed(name=StorageFull.__name__, message=str(error))
    return None
