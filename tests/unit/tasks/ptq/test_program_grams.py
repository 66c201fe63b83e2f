"""GPTQ on an exported program: Gram matrices against numpy's, and the error that is left against rounding to nearest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tasks.engines.inductor import grams as room
from tasks.engines.inductor.gpu_forms import rewrite
from tasks.engines.inductor.grams import grams
from tasks.engines.inductor.programs import Tensors

CPU = torch.device("cpu")
RECIPE: dict[str, Any] = {"precision": "int4", "block_size": 32, "weight_method": "gptq", "asymmetric": True}


class _Layers(torch.nn.Module):
    """Two linear layers that read one tensor, and two after them, one on the other's output."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = torch.nn.Linear(64, 32), torch.nn.Linear(64, 32)
        self.middle, self.last = torch.nn.Linear(32, 32), torch.nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = torch.tanh(x)
        found: torch.Tensor = self.last(self.middle(self.left(mixed) * self.right(mixed)))
        return found


@pytest.fixture(scope="module")
def samples() -> list[Tensors]:
    """Batches whose channels depend on each other, as those of real activations do."""
    torch.manual_seed(0)
    mixing = torch.randn(8, 64)
    return [(torch.randn(3, 50, 8) @ mixing / 4 + 0.05 * torch.randn(3, 50, 64),) for _ in range(6)]


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(1)
    return _Layers().eval()


def _exported(model: torch.nn.Module, samples: list[Tensors]) -> torch.fx.GraphModule:
    module = torch.export.export(model, samples[0]).module(check_guards=False)
    assert isinstance(module, torch.fx.GraphModule)
    return module


@pytest.mark.parametrize("bytes_a_pass", [1e9, 1.0])
def test_gram_matrices_equal_numpys(
    model: torch.nn.Module, samples: list[Tensors], bytes_a_pass: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one pass over the samples, and in a pass for each tensor."""
    monkeypatch.setattr(room, "_BYTES_A_PASS", bytes_a_pass)
    monkeypatch.setattr(room, "_ROWS_AT_ONCE", 7)
    with torch.no_grad():
        found = dict(grams(_exported(model, samples), {"tanh": 64, "mul": 32}, samples))
    mixed = np.concatenate([np.tanh(x.numpy()).reshape(-1, 64) for (x,) in samples]).astype(np.float64)
    weights = {name: value.detach().numpy() for name, value in model.named_parameters()}
    both = [mixed @ weights[f"{side}.weight"].T + weights[f"{side}.bias"] for side in ("left", "right")]
    after = both[0] * both[1]
    np.testing.assert_allclose(found["tanh"].numpy(), mixed.T @ mixed, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["mul"].numpy(), after.T @ after, rtol=1e-4, atol=1e-4)
    assert list(found) == ["tanh", "mul"]


def test_gptq_leaves_less_error_than_rounding(model: torch.nn.Module, samples: list[Tensors]) -> None:
    """On samples that it did not see."""
    errors, unseen = {}, samples[-1]
    for method in ("gptq", "rtn"):
        module = _exported(model, samples)
        with torch.no_grad():
            changes = rewrite(module, RECIPE | {"weight_method": method}, CPU, samples[:-1])
            (found,) = (module(*unseen),)
            errors[method] = float((found - model(*unseen)).square().mean())
        assert changes == {"linear layers in INT4": 4}
    assert errors["gptq"] < 0.7 * errors["rtn"]


def test_gram_matrices_are_those_of_the_float_model(
    model: torch.nn.Module, samples: list[Tensors], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a pass for each tensor, the second pass must not run on layers that are in INT4 already."""
    found = []
    for bytes_a_pass in (1e9, 1.0):
        monkeypatch.setattr(room, "_BYTES_A_PASS", bytes_a_pass)
        module = _exported(model, samples)
        with torch.no_grad():
            rewrite(module, RECIPE, CPU, samples)
            found.append(module(*samples[0]))
    assert torch.equal(*found)
