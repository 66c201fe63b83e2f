"""GPTQ on an exported program: Gram matrices against numpy's, and the error that is left against rounding to nearest."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from tasks.engines.inductor import grams as room
from tasks.engines.inductor.gpu_forms import rewrite
from tasks.engines.inductor.grams import grams
from tasks.engines.inductor.programs import Tensors
from tasks.ptq.weight_only.hqq import hqq
from tasks.ptq.weight_only.int4_grid import round_to_nearest

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


def test_gram_matrices_leave_less_error_than_rounding(model: torch.nn.Module, samples: list[Tensors]) -> None:
    """On samples that the methods did not see."""
    errors, unseen = {}, samples[-1]
    for method in ("learned", "gptq", "rtn"):
        module = _exported(model, samples)
        with torch.no_grad():
            changes = rewrite(module, RECIPE | {"weight_method": method}, CPU, samples[:-1])
            (found,) = (module(*unseen),)
            errors[method] = float((found - model(*unseen)).square().mean())
        assert changes == {"linear layers in INT4": 4}
    assert errors["learned"] < errors["gptq"] < 0.7 * errors["rtn"]


@pytest.mark.parametrize("block_size", [32, 64])
@pytest.mark.parametrize("method", ["hqq", "rtn"])
def test_int4_layers_multiply_by_the_weights_of_the_method(
    model: torch.nn.Module, samples: list[Tensors], method: str, block_size: int
) -> None:
    """Against the float model with the dequantized weights; the kernel reads activations in bfloat16."""
    module, expected = _exported(model, samples), copy.deepcopy(model)
    recipe = RECIPE | {"weight_method": method, "block_size": block_size}
    with torch.no_grad():
        changes = rewrite(module, recipe, CPU, [])
        # Blocks of 64 divide no layer with 32 inputs.
        fitting = ("left", "right") if block_size == 64 else ("left", "right", "middle", "last")
        for name in fitting:
            weight = expected.get_submodule(name).weight
            values = weight.t().numpy()
            made = (
                hqq(values, block_size=block_size, dtype=np.float32)
                if method == "hqq"
                else round_to_nearest(values, block_size=block_size, symmetric=False, dtype=np.float32)
            )
            weight.copy_(torch.from_numpy(made.dequantized().T))
        (found, wanted, exact) = (one(*samples[0]) for one in (module, expected, model))
    assert changes["linear layers in INT4"] == len(fitting)
    lost, left = float((found - wanted).abs().max()), float((wanted - exact).abs().max())
    assert lost < 0.02 * float(exact.abs().max()) < left


def test_float32_rewrites_nothing(model: torch.nn.Module, samples: list[Tensors]) -> None:
    module = _exported(model, samples)
    before = str(module.graph)
    assert rewrite(module, {"precision": "fp32"}, CPU, []) == {} and str(module.graph) == before


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
