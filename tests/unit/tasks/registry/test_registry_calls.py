"""Errors of MLflow's client: the request is at fault, or the registry failed."""

from __future__ import annotations

import pytest
from fault_proxy import faults
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from tasks.registry.mlflow_registry import registry_call, sent_once
from validators.errors import ServiceDown

MODEL = f"m-{'0' * 32}"


@pytest.mark.parametrize("way", ["500", "429", "reset"])
def test_a_failure_on_the_way_is_not_a_wrong_parameter(way: str) -> None:
    """MLflow's client asks for the model first, and reports any failure of that as a parameter that is wrong."""
    with faults(1, {way: 1.0}, seed=0) as proxy:
        client = MlflowClient(proxy.endpoint)
        with sent_once(), pytest.raises(ServiceDown, match="does not answer"):
            registry_call(client.set_logged_model_tags, MODEL, {"a": "b"})
        assert proxy.met[way] == 1


def test_a_wrong_parameter_stays_one() -> None:
    def ask() -> None:
        raise MlflowException.invalid_parameter_value("of the caller")

    with pytest.raises(MlflowException, match="of the caller"):
        registry_call(ask)
