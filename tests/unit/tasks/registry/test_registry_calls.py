"""Errors of MLflow's client: the request is at fault, or the registry failed."""

from __future__ import annotations

import os

import pytest
from fault_proxy import faults
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from tasks.registry.mlflow_registry import connect, registry_call, sent_once
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


def test_a_connection_leaves_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow writes its URIs there, and the next state folder would be looked up in this one's registry."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", told := "http://127.0.0.1:2")
    with connect("http://127.0.0.1:1"):
        assert "MLFLOW_TRACKING_URI" not in os.environ and os.environ["MLFLOW_REGISTRY_URI"] == told
