"""Flow that rolls a champion back to the previous version, from the UI's form or from the watch."""

# No `from __future__ import annotations`: Prefect reads the parameters' types from the signature. It takes the texts of the
# form from the docstring alone.
from typing import Annotated

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed
from pydantic import Field

from tasks.champion.rollback import Rollback, roll_back_step
from validators.job.candidate_name import TargetName


@flow(name="rollback", flow_run_name="{model} on {target}")
def rollback(
    model: str,
    target: TargetName,
    to: Annotated[int | None, Field(ge=0)] = None,
    leaving: Annotated[int | None, Field(ge=1)] = None,
    reason: Annotated[str, Field(max_length=1000)] = "",
) -> State[Rollback]:
    """Roll the champion of a model back. The rolled-back variant is not promoted on this target again.

    Args:
        model: The registered model: the source, or the one that holds its variants.
        target: Target whose champion is rolled back.
        to: The version to return to; empty: the previous champion; 0: no champion.
        leaving: The version to roll back; if the champion is another one by then, nothing changes.
        reason: Reason; recorded on the version that is rolled back.
    """
    done = roll_back_step(model, target, to, reason, leaving=leaving, request=flow_run.get_id() or "")
    return Completed(name="RolledBack", message=str(done), data=done)
