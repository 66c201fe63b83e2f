"""Flows for the tests of deployments: what another file of deployments may name."""

import time
from pathlib import Path

from prefect import flow


@flow(name="planted")
def planted(name: str, version: str = "1") -> str:
    """Nothing but its parameters.

    Args:
        name: Of a model.
        version: Of it.
    """
    return f"{name} {version}"


@flow(name="waiting")
def waiting(until: str) -> None:
    """Run until there is a file of this path."""
    while not Path(until).exists():
        time.sleep(0.2)
