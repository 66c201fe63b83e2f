"""Bad input, each through the whole command: a clear error, the right exit code, no traceback, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Tiny, tiny_model
from driving import Answer, register_models, run_jobs, write_job
from interfaces import REFUSED

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


def bad_interfaces(folder: Path) -> dict[str, tuple[Changes, int, str]]:
    """Models whose inputs or outputs once ended a run in a crash, like `bad_data`."""
    found: dict[str, tuple[Changes, int, str]] = {}
    for name in ("sequence of a split", "scalar sr", "no inputs", "float8", "optional input"):
        case = REFUSED[name]
        assert case.words is not None
        onnx.save(case.model, folder / f"{name}.onnx")
        data = {role: str(folder / f"{name} {role}.npz") for role in ("calibration", "evaluation")}
        for path, n, seed in zip(data.values(), (99, 999), (11, 12), strict=True):
            np.savez(path, **case.data(n, seed))
        found[name] = ({"source": str(folder / f"{name}.onnx"), "data": data} | case.job, 2, case.words)
    return found


def sound(folder: Path, tiny: Tiny) -> dict[str, Changes]:
    """An old opset, and half precision: what jobs on them change."""
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
        np.savez(folder / f"half_{role}.npz", **(arrays | {"x": arrays["x"].astype(np.float16)}))
        data["half"][role] = str(folder / f"half_{role}.npz")
    candidates = ["int8-static-minmax-pc@ort-cpu", "int8-dynamic-pc@ort-cpu", "int4-g32-rtn@ort-cpu"]
    for name, model in {"old": old, "half": half}.items():
        onnx.save(model, folder / f"{name}.onnx")
    return {
        name: {"source": str(folder / f"{name}.onnx"), "data": data[name], "candidates": candidates} for name in data
    }


@dataclass(frozen=True)
class Seen:
    """What each job was answered, and of bad input what was expected: the exit code and words."""

    state: Path
    answers: dict[str, Answer]
    bad: dict[str, tuple[int, str]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> Seen:
    """All jobs in one process, which imports what they need once; the last one without a registry."""
    folder = tmp_path_factory.mktemp("bad")
    state = folder / "state"
    register_models(state, tiny.model.parent, every=True)
    table = bad_sources(folder, tiny) | bad_data(folder, tiny) | bad_interfaces(folder)
    jobs = {name: changes for name, (changes, _, _) in table.items()} | sound(folder, tiny) | {"down": {}}
    paths = {
        name: str(write_job(folder / f"{name}.yaml", tiny.job(**({"source": "models:/tiny/1"} | changes))))
        for name, changes in jobs.items()
    }
    calls: list[dict[str, object]] = [{"name": name, "job": path} for name, path in paths.items()]
    for call in calls:
        call["promote"] = call["name"] not in ("old", "half")
    calls[-1]["environ"] = {
        "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "QUANTGATE_PATIENCE_SECONDS": "3",
    }
    answers = run_jobs(state, folder / "runs", calls)
    return Seen(state, answers, {name: (code, words) for name, (_, code, words) in table.items()})


def test_each_bad_input_is_named_with_its_exit_code(seen: Seen) -> None:
    wrong = {
        name: seen.answers[name].said
        for name, (code, words) in seen.bad.items()
        if seen.answers[name].code != code
        or words not in " ".join(seen.answers[name].said.split())
        or "Traceback" in seen.answers[name].said
    }
    assert not wrong, "\n\n".join(f"== {name}\n{said}" for name, said in wrong.items())


def test_each_bad_input_says_found_expected_and_fix(seen: Seen) -> None:
    for name, (code, _) in seen.bad.items():
        answer = seen.answers[name]
        assert answer.result is not None, name
        if code == 2:
            assert answer.result["outcome"] == "error", name
            assert all(answer.result["error"][key] for key in ("found", "expected", "fix")), name
            assert all(f"{key}:" in answer.said for key in ("found", "expected", "fix")), name


def test_bad_input_registers_nothing_and_leaves_no_partial_files(seen: Seen) -> None:
    """Nor do the runs without promotion beside them."""
    assert not list(seen.state.rglob("consumer.py"))
    assert not list((seen.state / "store").rglob(".making-*"))
    assert not list(seen.state.parent.rglob(".*.writing"))


def test_dead_registry_is_infrastructure_error_after_retries(seen: Seen) -> None:
    answer = seen.answers["down"]
    assert answer.code == 1
    assert "the MLflow registry does not answer" in answer.said
    assert answer.said.count("; retrying") == 2


def test_old_opset_and_half_precision_are_promoted_like_others(seen: Seen) -> None:
    """Opset 11 is upgraded, float16 computes in float32; inputs and outputs of the variant are those of the source."""
    for name in ("old", "half"):
        answer = seen.answers[name]
        assert answer.code == 0 and answer.result is not None, (name, answer.said)
        assert [one["refusal"] for one in answer.result["candidates"]] == [None] * 3, answer.said
