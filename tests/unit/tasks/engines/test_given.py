"""Files of other tools as candidates: taken up as they are, or refused by what is wrong with them."""

from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from conftest import CLASSES, FEATURES, Tiny, tiny_model, tiny_samples
from onnx import TensorProto, helper, numpy_helper
from processors import source_alone

from tasks.engines.catalog import find_target
from tasks.engines.given import files_of, has_ranges_at_run_time, take_up
from tasks.runtimes.runner import open_runner
from validators.digests import digest_file
from validators.errors import CandidateRefused
from validators.job.given_file import GivenFile
from validators.records.run import SessionSettings

CPU = SessionSettings("CPUExecutionProvider", 1)
Edit = Callable[[onnx.ModelProto], object]


def given_of(path: Path, **more: object) -> GivenFile:
    return GivenFile.model_validate({"name": "theirs", "file": path, "engine": "ort-cpu"} | more)


def taken(given: GivenFile, tiny: Tiny, folder: Path) -> tuple[Path, str]:
    """The copy of a file, and what is said about it."""
    takes = find_target(given.engine).takes
    files_of(given, takes)
    path = folder / f"taken{given.file.suffix}"
    told = take_up(takes[given.file.suffix], given, path, CPU, source_alone(tiny.model))
    return path, told["the file"]


def edited(tiny: Tiny, folder: Path, edit: Edit) -> Path:
    model = tiny_model(*tiny.weights)
    edit(model)
    onnx.save(model, folder / "theirs.onnx")
    return folder / "theirs.onnx"


def test_a_file_that_fits_is_copied_byte_for_byte(tiny: Tiny, tmp_path: Path) -> None:
    def sign(model: onnx.ModelProto) -> None:
        model.producer_name, model.producer_version = "some tool", "1.2"

    given = given_of(edited(tiny, tmp_path, sign), command="tool quantize --all")
    path, told = taken(given, tiny, tmp_path)
    assert digest_file(path) == digest_file(given.file) and digest_file(path) in told
    assert "some tool 1.2" in told and "tool quantize --all" in told


def test_weights_in_files_of_their_own_come_along(tiny: Tiny, tmp_path: Path) -> None:
    model = tiny_model(*tiny.weights)
    onnx.save(model, tmp_path / "theirs.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    given = given_of(tmp_path / "theirs.onnx")
    assert [path.name for path in files_of(given, [".onnx"])] == ["theirs.onnx", "w.bin"]
    path, _ = taken(given, tiny, tmp_path)
    (tmp_path / "w.bin").unlink()
    assert_same_answers(path, tiny)


def test_renamed_tensors_get_the_names_of_the_source(tiny: Tiny, tmp_path: Path) -> None:
    def rename(model: onnx.ModelProto) -> None:
        model.graph.input[0].name, model.graph.output[0].name = "input_1", "scores"
        model.graph.node[0].input[0], model.graph.node[-1].output[0] = "input_1", "scores"

    file = edited(tiny, tmp_path, rename)
    renames: dict[str, object] = {}
    for _ in ("inputs", "outputs"):  # each as the message before advised
        with pytest.raises(CandidateRefused) as refusal:
            taken(given_of(file, **renames), tiny, tmp_path)
        advice = re.search(r"set `(.*)` for", refusal.value.fix)
        assert advice
        renames |= yaml.safe_load(advice[1])
    assert renames == {"inputs": {"input_1": "x"}, "outputs": {"scores": "logits"}}
    path, _ = taken(given_of(file, **renames), tiny, tmp_path)
    assert_same_answers(path, tiny)


def _in_codes(model: onnx.ModelProto) -> None:
    """Input and output in 8 bits: x = 0.05 * (code - 128), logits = 2 * code."""
    graph = model.graph
    graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    graph.output[0].type.tensor_type.elem_type = TensorProto.INT8
    for key, value in (("s", np.float32(0.05)), ("z", np.uint8(128)), ("t", np.float32(2)), ("u", np.int8(0))):
        graph.initializer.append(numpy_helper.from_array(np.asarray(value), key))
    graph.node[0].input[0], graph.node[-1].output[0] = "floats", "scores"
    graph.node.insert(0, helper.make_node("DequantizeLinear", ["x", "s", "z"], ["floats"]))
    graph.node.append(helper.make_node("QuantizeLinear", ["scores", "t", "u"], ["logits"]))


CODES = {"x": {"scale": 0.05, "zero_point": 128}, "logits": {"scale": 2.0}}


def test_declared_codes_become_floats(tiny: Tiny, tmp_path: Path) -> None:
    """The copy answers as the source does to inputs, and in outputs, that are rounded by hand."""
    path, told = taken(given_of(edited(tiny, tmp_path, _in_codes), codes=CODES), tiny, tmp_path)
    assert "floats in place of codes: x, logits" in told
    x = np.asarray(tiny_samples(50, 1)["x"], np.float32)
    rounded = (np.clip(np.rint(x / np.float32(0.05)), -128, 127) * np.float32(0.05)).astype(np.float32)
    with open_runner(path, CPU) as ours, open_runner(tiny.model, CPU) as theirs:
        expected = np.clip(np.rint(theirs.run({"x": rounded}, ["logits"])[0] / 2), -128, 127) * 2
        np.testing.assert_allclose(ours.run({"x": x}, ["logits"])[0], expected, atol=2.001)
        assert (ours.run({"x": x}, ["logits"])[0] == expected).mean() > 0.98


@pytest.mark.parametrize(
    "codes", [{}, {"y": CODES["x"]}, {"x": {"scale": 0.05, "zero_point": -1}, "logits": {"scale": 2.0}}]
)
def test_undeclared_or_wrong_codes_are_refused(codes: dict[str, object], tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(CandidateRefused) as refusal:
        taken(given_of(edited(tiny, tmp_path, _in_codes), codes=codes), tiny, tmp_path)
    assert (
        "x is" in refusal.value.found
        or "y is nothing" in refusal.value.found
        or "its input is x" in refusal.value.found
    )


def test_floats_are_no_codes(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(CandidateRefused, match="x is float32"):
        taken(given_of(edited(tiny, tmp_path, lambda _: None), codes={"x": CODES["x"]}), tiny, tmp_path)


def assert_same_answers(path: Path, tiny: Tiny) -> None:
    batch = {"x": np.asarray(tiny_samples(5, 1)["x"], np.float32)}
    with open_runner(path, CPU) as ours, open_runner(tiny.model, CPU) as theirs:
        assert np.array_equal(ours.run(batch, ["logits"])[0], theirs.run(batch, ["logits"])[0])


def _more_inputs(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.INT64, ["batch"]))
    model.graph.node.append(helper.make_node("Identity", ["mask"], ["kept"]))


def _more_outputs(model: onnx.ModelProto) -> None:
    model.graph.output.insert(0, helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["batch", None]))


def _fixed_batch(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1


def _other_type(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    model.graph.node.insert(0, helper.make_node("Cast", ["x"], ["as_float"], to=TensorProto.FLOAT))
    model.graph.node[1].input[0] = "as_float"


def _custom(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "acme"
    model.opset_import.append(helper.make_opsetid("acme", 1))


def _elsewhere(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (_more_inputs, "inputs.*mask"),
        (_more_outputs, "outputs.*hidden"),
        (_fixed_batch, r"input is x.*\[1, 64\]"),
        (_other_type, "input is x.*uint8"),
        (_custom, "acme::MatMul"),
        (_elsewhere, "etc/passwd"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(edit: Edit, said: str, tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(CandidateRefused, match=said) as refusal:
        taken(given_of(edited(tiny, tmp_path, edit)), tiny, tmp_path)
    assert refusal.value.kind == "invalid"


def test_outputs_in_another_order_are_refused(tmp_path: Path) -> None:
    """A consumer reads them by their place."""

    def save(names: list[str], path: Path) -> Path:
        nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["x"], ["b"])]
        inputs, *outputs = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ["x", *names])
        onnx.save(helper.make_model(helper.make_graph(nodes, "g", [inputs], outputs), ir_version=10), path)
        return path

    source, file = save(["a", "b"], tmp_path / "source.onnx"), save(["b", "a"], tmp_path / "theirs.onnx")
    with pytest.raises(CandidateRefused, match="order b, a"):
        take_up(
            find_target("ort-cpu").takes[".onnx"], given_of(file), tmp_path / "taken.onnx", CPU, source_alone(source)
        )


@pytest.mark.parametrize("name", ["theirs.onnx", "theirs.pkl", "theirs.pt", "theirs.xml", "theirs"])
def test_no_model_is_refused_and_not_opened(name: str, tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(CandidateRefused):
        taken(given_of(tmp_path / name), tiny, tmp_path)
    assert not (tmp_path / "sprung").exists()


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.999])
def test_a_truncated_file_is_refused(kept: float, tiny: Tiny, tmp_path: Path) -> None:
    whole = tiny.model.read_bytes()
    (tmp_path / "theirs.onnx").write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(CandidateRefused, match=r"theirs\.onnx"):
        taken(given_of(tmp_path / "theirs.onnx"), tiny, tmp_path)


def test_a_missing_file_is_named(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(CandidateRefused, match=r"gone\.onnx"):
        taken(given_of(tmp_path / "gone.onnx"), tiny, tmp_path)


def test_ranges_at_run_time_are_seen(tiny: Tiny, tmp_path: Path) -> None:
    """Such a file answers one sample otherwise beside others, so that it is asked as its users ask it."""
    dynamic = tmp_path / "dynamic.onnx"
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    ends = [value("x", TensorProto.FLOAT, ["n", FEATURES])], [value("y", TensorProto.FLOAT, ["n", CLASSES])]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", *ends)), dynamic)
    shutil.copyfile(tiny.model, tmp_path / "float.onnx")
    assert has_ranges_at_run_time(dynamic) and not has_ranges_at_run_time(tmp_path / "float.onnx")
