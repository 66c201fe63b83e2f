"""Bad input, each through the whole command: a clear error, the right exit code, no traceback, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Tiny, tiny_model
from driving import Answer, register_models, run_jobs, write_job

pytestmark = pytest.mark.slow

Changes = dict[str, object]


def samples(folder: Path, name: str, change: Callable[[dict[str, np.ndarray]], object], of: Path) -> str:
    """A copy of a data file with a planted fault."""
    arrays = dict(np.load(of))
    change(arrays)
    np.savez(folder / name, **arrays)
    return str(folder / name)


def models(folder: Path, tiny: Tiny) -> dict[str, str]:
    """Faulty ONNX files by the fault's name."""
    whole = tiny.model.read_bytes()
    (folder / "truncated.onnx").write_bytes(whole[: len(whole) // 2])
    newer, older, stuck, custom, quantized = (tiny_model(*tiny.weights) for _ in range(5))
    newer.opset_import[0].version, older.opset_import[0].version = 99, 6
    # Of opset 11, in which it takes all axes from its own on as one: onnx upgrades it to another function.
    stuck.graph.node[2].op_type, stuck.opset_import[0].version = "Hardmax", 11
    stuck.graph.node[2].attribute.append(onnx.helper.make_attribute("axis", 0))
    custom.graph.node[2].domain, custom.graph.node[2].op_type = "acme", "Swish"
    custom.opset_import.append(onnx.helper.make_opsetid("acme", 1))
    scale = onnx.numpy_helper.from_array(np.array(0.1, np.float32), "scale")
    quantized.graph.initializer.append(scale)
    quantized.graph.node.insert(0, onnx.helper.make_node("QuantizeLinear", ["x", "scale"], ["q"], name="q"))
    faulty = {"newer": newer, "older": older, "stuck": stuck, "custom": custom, "quantized": quantized}
    for name, model in faulty.items():
        onnx.save(model, folder / f"{name}.onnx")
    return {name: str(folder / f"{name}.onnx") for name in ("truncated", *faulty)}


def bad_data(folder: Path, tiny: Tiny) -> dict[str, tuple[Changes, int, str]]:
    """Data faults: what the job changes, the exit code, and words of the error."""
    cal, ev = tiny.calibration, tiny.evaluation

    def rename(arrays: dict[str, np.ndarray]) -> None:
        arrays["pixels"] = arrays.pop("x")

    def shorten(arrays: dict[str, np.ndarray]) -> None:
        arrays["label"] = arrays["label"][:-5]

    def empty(arrays: dict[str, np.ndarray]) -> None:
        arrays.update({name: array[:0] for name, array in arrays.items()})

    def poison(arrays: dict[str, np.ndarray]) -> None:
        arrays["x"][3, 5] = np.nan

    def retype(arrays: dict[str, np.ndarray]) -> None:
        arrays["x"] = arrays["x"].astype(np.float64)

    def reshape(arrays: dict[str, np.ndarray]) -> None:
        arrays["x"] = arrays["x"][:, :60]

    def relabel(arrays: dict[str, np.ndarray]) -> None:
        arrays["label"][0] = 4

    def targets(arrays: dict[str, np.ndarray]) -> None:
        arrays["label"] = np.eye(4)[arrays["label"]]

    def job(change: Callable[[dict[str, np.ndarray]], object], role: str) -> Changes:
        path = samples(folder, f"{change.__name__}_{role}.npz", change, cal if role == "calibration" else ev)
        return {"data": {"calibration": str(cal), "evaluation": str(ev)} | {role: path}}

    (folder / "not_a_zip.npz").write_bytes(b"hello")
    return {
        "wrong names": (job(rename, "evaluation"), 2, "missing ['x']"),
        "wrong dtype": (job(retype, "calibration"), 2, "x is float64"),
        "wrong shape": (job(reshape, "evaluation"), 2, "x has shape (2000, 60)"),
        "length mismatch": (job(shorten, "evaluation"), 2, "'label': 1995"),
        "zero rows": (job(empty, "calibration"), 2, "has no samples"),
        "label outside": (job(relabel, "evaluation"), 2, "class indices from 0 to 3"),
        "NaN in evaluation": (job(poison, "evaluation"), 2, "NaN or Inf in input 'x' of 1 samples"),
        "NaN in calibration": (job(poison, "calibration"), 4, "finite"),
        "unreadable data": (
            {"data": {"calibration": str(folder / "not_a_zip.npz"), "evaluation": str(ev)}},
            2,
            "is a text file, not an npz archive",
        ),
        "no bound in the metric's units": (
            {"metric": "mse", **job(targets, "evaluation")},
            2,
            "the metric 'mse' has units, and the job does not set `gates.max_drop`",
        ),
        "groups that are not there": (
            {"data": {"calibration": str(cal), "evaluation": str(ev), "groups": "patient"}},
            2,
            "has no ['patient'], which `data.slices` or `data.groups` name",
        ),
        "no data file": ({"data": {"calibration": str(folder / "none.npz"), "evaluation": str(ev)}}, 2, "no such file"),
    }


def bad_sources(folder: Path, tiny: Tiny) -> dict[str, tuple[Changes, int, str]]:
    """Source and job faults, like `bad_data`."""
    files = models(folder, tiny)
    return {
        "unknown key": ({"speed": 3}, 2, "unknown key `speed`"),
        "gate that cannot be met": (
            {"gates": {"max_drop": 0.0001}},
            2,
            "even a variant that never differs from the baseline cannot pass",
        ),
        "not in the registry": ({"source": "models:/nobody/1"}, 2, "no models:/nobody/1 in the registry"),
        "alias not in the registry": ({"source": "models:/tiny@nobody"}, 2, "no models:/tiny@nobody in the registry"),
        "not ready": ({"source": "models:/tiny-pending/1"}, 2, "in state FAILED_REGISTRATION"),
        "other flavor": ({"source": "models:/tiny-function/1"}, 2, "one of the flavors onnx, pytorch"),
        "pickled": ({"source": "models:/tiny-pickled/1"}, 2, "serialization_format='pt2'"),
        "malformed URI": ({"source": "models:/tiny"}, 2, "models:/<name>/<version>"),
        "no such file": ({"source": str(folder / "none.onnx")}, 2, "no such file"),
        "truncated model": ({"source": files["truncated"]}, 2, "truncated"),
        "opset too new": ({"source": files["newer"]}, 2, "opset 99"),
        "opset too old": ({"source": files["older"]}, 2, "opset 6"),
        "opset that cannot be upgraded": ({"source": files["stuck"]}, 2, "upgraded, its output 'logits' differs"),
        "custom op": ({"source": files["custom"]}, 2, "acme::Swish"),
        "already quantized": ({"source": files["quantized"]}, 2, "already quantized: it has QuantizeLinear"),
        "metric that does not fit": ({"metric": "top5"}, 2, "more than 5 classes"),
        "unknown output": ({"output": "scores"}, 2, "one of ['logits']"),
        "unknown axis": ({"measurement": {"dims": {"sequence": 16}}}, 2, "names ['sequence']"),
    }


Seen = dict[str, tuple[int, str, Answer]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> tuple[Path, Seen]:
    """The answer to each bad input, with what was expected of it."""
    folder = tmp_path_factory.mktemp("bad")
    state = folder / "state"
    register_models(state, tiny.model.parent, every=True)
    table = bad_sources(folder, tiny) | bad_data(folder, tiny)
    calls: list[dict[str, object]] = []
    for name, (changes, _, _) in table.items():
        path = write_job(folder / f"{name}.yaml", tiny.job(**({"source": "models:/tiny/1"} | changes)))
        calls.append({"name": name, "job": str(path)})
    answers = run_jobs(state, folder / "runs", calls)
    return state, {name: (code, words, answers[name]) for name, (_, code, words) in table.items()}


def test_each_bad_input_is_named_with_its_exit_code(seen: tuple[Path, Seen]) -> None:
    wrong = {
        name: answer.said
        for name, (code, words, answer) in seen[1].items()
        if answer.code != code or words not in " ".join(answer.said.split()) or "Traceback" in answer.said
    }
    assert not wrong, "\n\n".join(f"== {name}\n{said}" for name, said in wrong.items())


def test_each_bad_input_says_found_expected_and_fix(seen: tuple[Path, Seen]) -> None:
    for name, (code, _, answer) in seen[1].items():
        assert answer.result is not None, name
        if code == 2:
            assert answer.result["outcome"] == "error", name
            assert all(answer.result["error"][key] for key in ("found", "expected", "fix")), name
            assert all(f"{key}:" in answer.said for key in ("found", "expected", "fix")), name


def test_bad_input_registers_nothing_and_leaves_no_partial_files(seen: tuple[Path, Seen]) -> None:
    state = seen[0]
    assert not list(state.rglob("consumer.py"))
    assert not list((state / "store").rglob(".making-*"))
    assert not list(state.parent.rglob(".*.writing"))


def test_dead_registry_is_infrastructure_error_after_retries(tiny: Tiny, tmp_path: Path) -> None:
    job = write_job(tmp_path / "job.yaml", tiny.job(source="models:/tiny/1"))
    calls: list[dict[str, object]] = [{"name": "down", "job": str(job)}]
    extra = {
        "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "QUANTGATE_PATIENCE_SECONDS": "3",
    }
    answer = run_jobs(tmp_path / "state", tmp_path / "runs", calls, **extra)["down"]
    assert answer.code == 1
    assert "the MLflow registry does not answer" in answer.said
    assert answer.said.count("; retrying") == 2


def test_old_opset_and_half_precision_are_promoted_like_others(tiny: Tiny, tmp_path: Path) -> None:
    """Opset 11 is upgraded, float16 computes in float32; inputs and outputs of the variant are those of the source."""
    old, half = tiny_model(*tiny.weights), tiny_model(*tiny.weights)
    old.opset_import[0].version, old.ir_version = 11, 6
    for tensor in half.graph.initializer:
        tensor.CopyFrom(
            onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
        )
    for value in [*half.graph.input, *half.graph.output]:
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    data: dict[str, dict[str, str]] = {"old": {}, "half": {}}
    for role in ("calibration", "evaluation"):
        data["old"][role] = str(getattr(tiny, role))
        arrays = dict(np.load(data["old"][role]))
        np.savez(tmp_path / f"{role}.npz", **(arrays | {"x": arrays["x"].astype(np.float16)}))
        data["half"][role] = str(tmp_path / f"{role}.npz")
    calls: list[dict[str, object]] = []
    for name, model in {"old": old, "half": half}.items():
        onnx.save(model, tmp_path / f"{name}.onnx")
        candidates = ["int8-static-minmax-pc@ort-cpu", "int8-dynamic-pc@ort-cpu", "int4-g32-rtn@ort-cpu"]
        job = tiny.job(source=str(tmp_path / f"{name}.onnx"), data=data[name], candidates=candidates)
        calls.append({"name": name, "job": str(write_job(tmp_path / f"{name}.yaml", job)), "promote": False})
    answers = run_jobs(tmp_path / "state", tmp_path / "runs", calls)
    for name, answer in answers.items():
        assert answer.code == 0 and answer.result is not None, (name, answer.said)
        assert [one["refusal"] for one in answer.result["candidates"]] == [None] * 3, answer.said
