"""Flows for the tests of deployments: what another file of deployments may name."""

from prefect import flow


@flow(name="planted")
def planted(name: str, version: str = "1") -> str:
    """Nothing but its parameters.

    Args:
        name: Of a model.
        version: Of it.
    """
    return f"{name} {version}"
