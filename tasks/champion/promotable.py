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
            found=f"run {run.id} has the outcome {run.outcome or run.status.lower()}: {run.reason or 'no reason recorded'}",
            expected="a run with the outcome `winner`: it named a winner and did not promote it",
            fix="nothing to do: the winner is already promoted"
            if promoted
            else "`quantgate status` lists the runs with their outcomes",
        )
    if not run.source.startswith("models:/"):
        raise JobError(
            found=f"run {run.id} judged the file {run.source}",
            expected="a run of a registered model, since variants of a file cannot be promoted",
            fix="register the model, and run the job with `source: models:/<name>/<version>`",
        )
    if hands_to_workers():
        return
    here = take_inventory(run.target).device_key
    if here != run.device:
        raise JobError(
            found=f"run {run.id} was judged on {run.device}; this machine is {here}",
            expected="the device and runtime on which the winner was judged",
            fix="promote it on that device, or run its job here: `quantgate run JOB` judges it for this device",
        )
