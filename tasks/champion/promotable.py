"""Check that the winner of a recorded run can be promoted here."""

from __future__ import annotations

from tasks.measure.inventory import take_inventory
from tasks.records.run_lookup import Recorded
from tasks.run.settings import hands_to_workers
from validators.errors import JobError


def check_promotable(run: Recorded) -> None:
    """Raise unless the run named a winner from the registry, on the device that would judge it again.

    If workers of the target judge it, the device is theirs and is not checked here.

    Raises:
        JobError: the run named no winner, started from a file, or was judged on another device.
    """
    if run.outcome != "winner":
        promoted = run.outcome == "promoted"
        raise JobError(
            found=f"run {run.id} with the outcome {run.outcome or run.status.lower()}: {run.reason or 'no reason recorded'}",
            expected="a run that named a winner and did not promote it: the outcome `winner`",
            fix="nothing: its winner is promoted"
            if promoted
            else "`quantgate status` lists the runs with their outcomes",
        )
    if not run.source.startswith("models:/"):
        raise JobError(
            found=f"run {run.id} of the file {run.source}",
            expected="a run of a registered model: nothing is promoted from a file",
            fix="register the model, and run the job with `source: models:/<name>/<version>`",
        )
    if hands_to_workers():
        return
    here = take_inventory(run.target).device_key
    if here != run.device:
        raise JobError(
            found=f"run {run.id} was judged on {run.device}; here is {here}",
            expected="the device and the runtime that the winner was judged on",
            fix="promote it there, or run its job here: `quantgate run JOB` judges it for this device",
        )
