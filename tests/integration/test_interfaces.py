"""Interfaces that ordinary models have: each is read by the first steps of a run, or refused there with its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Tiny
from exported_models import export_program
from interfaces import REFUSED, WORKING, Interface

from flows.cli.init import job_skeleton
from tasks.evidence.flavors import unsupported_flavor
from tasks.evidence.load_data import load_data
from tasks.evidence.model_facts import describe_file
from tasks.evidence.resolve_source import resolve_source
from tasks.run.context import start_run
from validators.errors import QuantgateError
from validators.job.read_job import parse_job, read_job
from validators.records.run import DataFile
from validators.samples.datasets import Samples, TensorSpec
from validators.samples.evidence import Evidence


def job_of(folder: Path, case: Interface, tiny: Tiny) -> dict[str, object]:
    """Write the model and its data; return the job on them."""
    onnx.save(case.model, folder / "model.onnx")
    for role, n, seed in (("calibration", 99, 11), ("evaluation", 999, 12)):
        np.savez(folder / f"{role}.npz", **case.data(n, seed))
    data = {role: str(folder / f"{role}.npz") for role in ("calibration", "evaluation")}
    return tiny.job(source=str(folder / "model.onnx"), data=data) | case.job


def first_steps(folder: Path, case: Interface, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Evidence:
    """Steps 1 and 3 of a run, without the orchestrator."""
    monkeypatch.setenv("QUANTGATE_STATE", str(folder / "state"))
    run = start_run(parse_job(job_of(folder, case, tiny), base=folder))
    return load_data.fn(run, resolve_source.fn(run))


@pytest.mark.parametrize("name", REFUSED)
def test_an_unsupported_interface_is_refused_with_the_reason(
    name: str, tmp_path: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(QuantgateError) as caught:
        first_steps(tmp_path, REFUSED[name], tiny, monkeypatch)
    assert caught.value.exit_code == 2
    assert REFUSED[name].words in caught.value.found
    assert caught.value.expected and caught.value.fix


@pytest.mark.parametrize("name", WORKING)
def test_a_supported_interface_passes_the_first_steps(
    name: str, tmp_path: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = first_steps(tmp_path, WORKING[name], tiny, monkeypatch)
    batch = next(evidence.evaluation.batches(evidence.batch_axis or 5))
    assert list(batch) == [value.name for value in WORKING[name].model.graph.input]
    judged: Any = WORKING[name].job.get("output", WORKING[name].model.graph.output[0].name)
    assert evidence.output.name == (judged if isinstance(judged, str) else judged[0])
    assert len(evidence.evaluation) == 999 * (evidence.evaluation.steps or 1)


@pytest.mark.parametrize(
    ("flavor", "reason", "advice"),
    [
        ("xgboost", "nothing to quantize", "leave this model as it is"),
        ("lightgbm", "nothing to quantize", "leave this model as it is"),
        ("tensorflow", "needs TensorFlow", "python -m tf2onnx.convert --saved-model"),
        ("python_function", "no converter", "leave this model as it is"),
    ],
)
def test_another_flavor_is_refused_with_the_reason(flavor: str, reason: str, advice: str) -> None:
    error = unsupported_flavor("models:/m/1", {flavor: {}, "python_function": {}})
    assert f"flavors {flavor}, which are not supported" in error.found and reason in error.found
    assert advice in error.fix and error.exit_code == 2
    assert ("name='m'" in error.fix) == (flavor == "tensorflow")


def test_a_job_for_an_onnx_file_reads_and_names_the_file(tiny: Tiny, tmp_path: Path) -> None:
    facts = describe_file(tiny.model)
    assert [str(spec) for spec in facts.inputs] == ["x: float32[batch, 64]"]
    (tmp_path / "job.yaml").write_text(job_skeleton(facts, "ort-cpu", "job.yaml"), encoding="utf-8")
    assert read_job(tmp_path / "job.yaml").source == str(tiny.model)


@pytest.mark.parametrize("name", [name for name, case in WORKING.items() if "inputs" in case.job])
def test_a_skeleton_names_inputs_that_are_no_arrays_of_samples(name: str, tmp_path: Path) -> None:
    case = WORKING[name]
    onnx.save(case.model, tmp_path / "model.onnx")
    facts = describe_file(tmp_path / "model.onnx")
    (tmp_path / "job.yaml").write_text(job_skeleton(facts, "ort-cpu", "job.yaml"), encoding="utf-8")
    expected = parse_job(
        {"source": "m.onnx", "data": {"calibration": "c.npz", "evaluation": "e.npz"}} | case.job, base=tmp_path
    )
    found = read_job(tmp_path / "job.yaml").inputs
    # A value for each sample could as well be an array of the data files.
    wanted = {name: one for name, one in expected.inputs.items() if name != "rate"}
    assert {name: one.batch_axis for name, one in found.items()} == {
        name: one.batch_axis for name, one in wanted.items()
    }
    assert all(one.constant is not None or one.batch_axis is not None for one in found.values())


PROGRAMS = ("dict_output", "nested_output", "keywords", "dict_input", "with_none")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exported programs whose inputs and outputs are containers."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.kind = kind

        def forward(self, x: Any, shift: Any = None) -> Any:
            if isinstance(x, dict):
                return x["b"] * 2 - x["a"]
            y = torch.relu(x) if shift is None else x * 2 - shift
            return {
                "dict_output": {"z": y, "a": y * 2},
                "nested_output": {"b": (y, {"c": y * 3})},
                "with_none": (y, None),
            }.get(self.kind, y)

    folder = tmp_path_factory.mktemp("programs")
    x, batch = torch.ones(4, 4), {0: torch.export.Dim("batch")}
    for kind in PROGRAMS:
        args, kwargs, shapes = (x,), None, {"x": batch}
        if kind == "keywords":
            args, kwargs, shapes = (), {"x": x, "shift": x * 3}, {"x": batch, "shift": batch}
        elif kind == "dict_input":
            args, shapes = ({"b": x, "a": x * 3},), {"x": {"b": batch, "a": batch}}
        torch.export.save(torch.export.export(Net(kind), args, kwargs, dynamic_shapes=shapes), folder / f"{kind}.pt2")
    return folder


@pytest.mark.parametrize("kind", PROGRAMS)
def test_programs_with_containers_agree_with_their_export(kind: str, programs: Path, tmp_path: Path) -> None:
    def samples(inputs: tuple[TensorSpec, ...]) -> Samples:
        rng = np.random.default_rng(3)
        arrays = {spec.name: rng.normal(size=(16, 4)).astype(np.float32) for spec in inputs}
        return Samples(DataFile(tmp_path, "", 16), arrays, None)

    assert export_program(programs / f"{kind}.pt2", tmp_path / "model.onnx", samples) < 1e-6
