"""The flow that `scaling.py` spreads over workers: it sleeps, or it computes on one core, for a given time of work."""

import time

from prefect import flow


@flow(name="scaling")
def work(kind: str, seconds: float) -> None:
    """Spend `seconds` asleep, or of processor time."""
    if kind == "sleeps":
        time.sleep(seconds)
        return
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(1000))
