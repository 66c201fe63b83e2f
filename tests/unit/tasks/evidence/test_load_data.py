"""Evaluation data with copies, as a run loads it: gates count clusters, and a job that too few of them serve is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from advice import settings_of
from conftest import Tiny, tiny_samples
from numpy.typing import NDArray
from onnx import TensorProto, helper
from runs import run_in

from tasks.evidence.load_data import load_data
from validators.digests import digest_model
from validators.errors import JobError
from validators.job.read_job import parse_job
from validators.records.run import Source
from validators.samples.evidence import Evidence

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def loaded(tiny: Tiny, folder: Path, arrays: dict[str, Any], **data: Any) -> Evidence:
    """The evidence of a run on these evaluation samples."""
    np.savez(folder / "evaluation.npz", **arrays)
    calibration = dict(tiny_samples(128, 5), patient=np.arange(128) + 5000)
    np.savez(folder / "calibration.npz", **calibration)
    files = {"calibration": str(folder / "calibration.npz"), "evaluation": str(folder / "evaluation.npz")}
    job = parse_job(tiny.job(data=files | {"ignore": ["patient"]} | data), base=folder)
    run = run_in(folder, job)
    return load_data.fn(run, Source("tiny", "tiny", None, digest_model(tiny.model), tiny.model, "file"))


def test_copies_count_as_one(tiny: Tiny, tmp_path: Path) -> None:
    """Three copies of 600 samples, one of them under another label; they choose together, or confirm together."""
    arrays = {name: np.tile(array, (3, *[1] * (array.ndim - 1))) for name, array in tiny_samples(600, 9).items()}
    arrays["label"][:600] = (arrays["label"][:600] + 1) % 4
    evidence = loaded(tiny, tmp_path, arrays)
    assert evidence.copies == 1200 and evidence.clusters is not None
    assert evidence.clusters[:600].tolist() == evidence.clusters[1200:].tolist()
    assert len(np.unique(evidence.clusters)) == 600
    assert evidence.confirmation[:600].tolist() == evidence.confirmation[600:1200].tolist()
    assert evidence.evaluation.clusters is None, "they are no groups of the job"


def test_copies_do_not_make_up_for_samples(tiny: Tiny, tmp_path: Path) -> None:
    """A tolerance of two points needs 149 different samples that choose; 200 samples have about 100."""
    arrays = {name: np.tile(array, (5, *[1] * (array.ndim - 1))) for name, array in tiny_samples(200, 9).items()}
    with pytest.raises(JobError, match=r"clusters of equal weight") as caught:
        loaded(tiny, tmp_path, arrays)
    assert "no copies" in caught.value.fix


def test_groups_with_each_others_copies_are_one_cluster(tiny: Tiny, tmp_path: Path) -> None:
    """Each of 500 patients is in the data twice, under two keys."""
    arrays = {name: np.tile(array, (2, *[1] * (array.ndim - 1))) for name, array in tiny_samples(1000, 9).items()}
    arrays["patient"] = np.repeat(np.arange(1000), 2)
    evidence = loaded(tiny, tmp_path, arrays, groups="patient", ignore=[])
    assert evidence.copies == 1000 and evidence.clusters is not None
    assert (
        len(np.unique(evidence.clusters)) == 500
        and evidence.clusters[:1000].tolist() == evidence.clusters[1000:].tolist()
    )
    assert evidence.confirmation[:1000].tolist() == evidence.confirmation[1000:].tolist()


def test_samples_that_differ_are_independent(tiny: Tiny, tmp_path: Path) -> None:
    evidence = loaded(tiny, tmp_path, tiny_samples(1000, 9))
    assert evidence.clusters is None and evidence.copies == 0


def judged(
    folder: Path, nodes: list[onnx.NodeProto], names: list[str], arrays: dict[str, Any], **keys: Any
) -> Evidence:
    """The evidence of a run on a model of `x` (float32, 8 numbers) and `n` (int64, one), with these outputs."""
    x = helper.make_tensor_value_info("x", FLOAT, ["batch", 8])
    n = helper.make_tensor_value_info("n", INT64, ["batch"])
    outputs = [helper.make_empty_tensor_value_info(name) for name in names]
    model = helper.make_model(
        helper.make_graph(nodes, "judged", [x, n], outputs),
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)],
        ir_version=10,
    )
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / "model.onnx")
    np.savez(folder / "data.npz", **arrays)
    data = {"calibration": str(folder / "data.npz"), "evaluation": str(folder / "data.npz")}
    told: dict[str, Any] = {"source": "model.onnx", "target": "ort-cpu", "data": data, "gates": {"max_drop": 0.5}}
    run = run_in(folder, parse_job(told | keys, base=folder))
    return load_data.fn(run, Source("m", "m", None, "0", folder / "model.onnx", "file"))


def samples(label: NDArray[Any]) -> dict[str, Any]:
    """Inputs of `judged` with labels `(n, ...)`."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(len(label), 8)).astype(np.float32)
    return {"x": x, "n": rng.integers(1, 8, len(label)), "label": label}


def test_metric_that_does_not_fit_names_the_output_that_does(tmp_path: Path) -> None:
    """Such as of a classifier of scikit-learn, whose first output is the text of the class."""
    nodes = [
        helper.make_node("ArgMax", ["x"], ["class"], axis=1, keepdims=0),
        helper.make_node(
            "LabelEncoder",
            ["class"],
            ["label"],
            domain="ai.onnx.ml",
            keys_int64s=range(8),
            values_strings=[*"abcdefgh"],
        ),
        helper.make_node("Softmax", ["x"], ["probabilities"]),
        helper.make_node("Identity", ["n"], ["count"]),
    ]
    names, arrays = ["label", "probabilities", "count"], samples(np.arange(200) % 8)
    with pytest.raises(JobError) as seen:
        judged(tmp_path, nodes, names, arrays)
    assert "output 'label' of str" in seen.value.found
    told = settings_of(seen.value.fix)
    assert told == {"output": "probabilities"}
    assert judged(tmp_path, nodes, names, arrays, **told).output.name == "probabilities"


def test_output_of_varying_size_is_refused_at_once(tmp_path: Path) -> None:
    """Before the checks of the calibration data, which take minutes; as of a speech model that returns the tokens it found."""
    nodes = [
        helper.make_node("Constant", [], ["zero"], value_ints=[0]),
        helper.make_node("Constant", [], ["one"], value_ints=[1]),
        helper.make_node("ReduceMax", ["n"], ["longest"], keepdims=1),
        helper.make_node("Cast", ["x"], ["tokens"], to=INT64),
        helper.make_node("Slice", ["tokens", "zero", "longest", "one"], ["found"]),
        helper.make_node("Identity", ["tokens"], ["padded"]),
    ]
    names, arrays = ["found", "padded"], samples(np.arange(1600).reshape(200, 8) % 3)
    with pytest.raises(JobError) as seen:
        judged(tmp_path, nodes, names, arrays, metric="wer")
    assert "has the sizes [(1,), (2,), " in seen.value.found and "`text.skip`" in seen.value.fix
    told = settings_of(seen.value.fix)
    assert told == {"output": "padded"}
    assert judged(tmp_path, nodes, names, arrays, metric="wer", **told).output.name == "padded"
