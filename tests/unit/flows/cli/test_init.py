"""The job that `quantgate init` writes for the interfaces of common models."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from conftest import Tiny, tiny_samples
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from typer.testing import CliRunner

from flows.cli.app import app
from flows.cli.init import job_skeleton
from tasks.evidence.model_facts import ModelFacts, describe_file
from validators.job.candidate_name import decode
from validators.job.read_job import parse_job, read_job
from validators.records.run import AbsentEngine
from validators.samples.datasets import TensorSpec, load_samples

PICTURES = TensorSpec("x", "float32", ("batch", 3, "height", "width"))
TOKENS = TensorSpec("ids", "int64", ("batch", "sequence"))


def facts(inputs: list[TensorSpec], outputs: list[TensorSpec], *probabilities: str) -> ModelFacts:
    return ModelFacts(
        "m.onnx", "m", "", "an ONNX file", tuple(inputs), tuple(outputs), "float32", 1, "", frozenset(probabilities)
    )


def written(found: ModelFacts) -> dict[str, Any]:
    """Return the fields of the generated job, which must be a valid one."""
    fields: dict[str, Any] = yaml.safe_load(job_skeleton(found, "ort-cpu", "job.yaml"))
    parse_job(fields, base=Path("/"))
    return fields


def test_pictures_are_timed_at_the_size_of_the_data() -> None:
    found = facts([PICTURES], [TensorSpec("scores", "float32", ("batch", 4))])
    assert "dims" not in written(found)["measurement"]
    assert '# dims: {"height": 128, "width": 128}' in job_skeleton(found, "ort-cpu", "job.yaml")


def test_token_ids_are_timed_at_a_given_length() -> None:
    found = facts([TOKENS], [TensorSpec("scores", "float32", ("batch", 4))])
    assert written(found)["measurement"]["dims"] == {"sequence": 128}


def test_a_target_with_several_engines_names_another_baseline() -> None:
    """Without its comment the line is a valid setting."""
    found = facts([PICTURES], [TensorSpec("scores", "float32", ("batch", 4))])
    text = job_skeleton(found, "cpu", "job.yaml")
    assert "# baseline: openvino  # if that runs the model today; otherwise speedups are relative to ort-cpu\n" in text
    job = parse_job(yaml.safe_load(text.replace("# baseline", "baseline")), base=Path("/"))
    assert (job.target, job.baseline) == ("cpu", "openvino")
    assert "baseline:" not in job_skeleton(found, "ort-cpu", "job.yaml")


def test_left_out_engines_are_named_beside_the_candidates() -> None:
    found = facts([PICTURES], [TensorSpec("scores", "float32", ("batch", 4))])
    absent = AbsentEngine("openvino", "openvino is not installed", "pip install openvino")
    text = job_skeleton(found, "cpu", "job.yaml", [absent])
    assert f"  # {absent}\n" in text
    engines = {decode(name).target for name in yaml.safe_load(text)["candidates"]}
    assert engines == {"ort-cpu", "torch-inductor"}


def test_a_decoder_answers_prompts_and_is_judged_by_perplexity() -> None:
    """However few words it knows; the first token of an answer is timed alone, too."""
    found = facts([TOKENS], [TensorSpec("logits", "float32", ("batch", "sequence", 40))])
    job = parse_job(yaml.safe_load(job_skeleton(found, "ort-genai", "job.yaml")), base=Path("/"))
    assert job.metric == "perplexity"
    assert [point.dims for point in job.measurement.points] == [
        {"sequence": 128, "new_tokens": count} for count in (64, 1)
    ]


def test_a_fixed_batch_is_the_measured_one() -> None:
    found = facts([TensorSpec("x", "float32", (4, 8))], [TensorSpec("scores", "float32", (4, 3))])
    assert written(found)["measurement"]["batch_sizes"] == [4]


def test_scores_over_a_vocabulary_from_pictures_are_read_text() -> None:
    fields = written(facts([PICTURES], [TensorSpec("scores", "float32", ("batch", "steps", 6625))]))
    assert fields["metric"] == "cer"
    assert fields["text"] == {"decoding": "ctc", "vocabulary": "vocabulary.txt", "separator": ""}
    assert fields["data"]["label"] == "label" and "max_drop" in fields["gates"]


def test_scores_over_a_vocabulary_of_tokens_are_a_language_model() -> None:
    fields = written(facts([TOKENS], [TensorSpec("logits", "float32", ("batch", "sequence", 32000))]))
    assert fields["metric"] == "perplexity" and "text" not in fields


def test_a_map_of_probabilities_is_judged_by_overlap() -> None:
    mask = TensorSpec("mask", "float32", ("batch", 1, "height", "width"))
    assert written(facts([PICTURES], [mask], "mask"))["metric"] == "iou"
    assert written(facts([PICTURES], [mask], "mask"))["metric_threshold"] == 0.5
    assert written(facts([PICTURES], [mask]))["metric"] == "sqnr"


def test_probabilities_of_tags_are_judged_each() -> None:
    tags = TensorSpec("tags", "float32", ("batch", 20))
    assert written(facts([PICTURES], [tags], "tags"))["metric"] == "f1_multilabel"
    assert written(facts([PICTURES], [tags]))["metric"] == "accuracy"


def test_a_probability_is_a_yes_or_no() -> None:
    one = TensorSpec("p", "float32", ("batch", 1))
    assert written(facts([PICTURES], [one], "p"))["metric"] == "f1_binary"


def test_scores_are_judged_rather_than_the_label_beside_them() -> None:
    outputs = [TensorSpec("label", "int64", ("n",)), TensorSpec("probabilities", "float32", ("n", 2))]
    fields = written(facts([TensorSpec("X", "float32", ("n", 30))], outputs))
    assert fields["metric"] == "accuracy" and fields["output"] == "probabilities"


def test_a_state_without_an_output_starts_at_zero() -> None:
    inputs = [TensorSpec("x", "float32", ("batch", 8)), TensorSpec("h0", "float32", (4, 1, 64))]
    fields = written(facts(inputs, [TensorSpec("y", "float32", ("batch",))]))
    assert fields["inputs"] == {"h0": {"constant": 0}}


def test_constant_nodes_and_a_reshaped_sigmoid_are_seen(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((3, 4), np.float32), "w")
    shape = numpy_helper.from_array(np.array([-1, 2, 2], np.int64), "shape")
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["w"], value=weight),
            helper.make_node("MatMul", ["x", "w"], ["scores"]),
            helper.make_node("Sigmoid", ["scores"], ["shares"]),
            helper.make_node("Reshape", ["shares", "shape"], ["tags"]),
        ],
        "tags",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [
            helper.make_tensor_value_info("tags", TensorProto.FLOAT, ["n", 2, 2]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 4]),
        ],
        [shape],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "model.onnx")
    found = describe_file(tmp_path / "model.onnx")
    assert found.precision == "float32"
    assert found.probabilities == {"tags"}


def test_a_sigmoid_in_every_branch_is_seen(tmp_path: Path) -> None:
    def branch(name: str, operator: str) -> onnx.GraphProto:
        node = helper.make_node(operator, ["scores"], [name])
        return helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3])])

    def probabilities(outer: str, *operators: str) -> frozenset[str]:
        then, other = (branch(name, operator) for name, operator in zip("ab", operators, strict=True))
        graph = helper.make_graph(
            [
                helper.make_node(outer, ["x"], ["scores"]),
                helper.make_node("If", ["flag"], ["one"], then_branch=then, else_branch=other),
                helper.make_node("Identity", ["one"], ["y"]),
            ],
            "branches",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]),
                helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.save(model, tmp_path / "model.onnx")
        return describe_file(tmp_path / "model.onnx").probabilities

    assert probabilities("Relu", "Sigmoid", "Sigmoid") == {"y"}
    assert probabilities("Sigmoid", "Identity", "Sigmoid") == {"y"}, "made outside of the branch"
    assert probabilities("Relu", "Sigmoid", "Relu") == frozenset()


def init(folder: Path, *options: str) -> tuple[str, Any]:
    """Return the text of the job that `init` writes for `folder/m.onnx`, and its answer."""
    job = folder / "job.yaml"
    done = CliRunner().invoke(app, ["init", str(folder / "m.onnx"), "--out", str(job), *options])
    return job.read_text() if job.exists() else "", done


@pytest.fixture
def place(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the small model alone."""
    monkeypatch.setenv("QUANTGATE_STATE", str(tmp_path / "state"))
    shutil.copy(tiny.model, tmp_path / "m.onnx")
    return tmp_path


def save(path: Path, **renamed: str) -> None:
    """Write samples of the small model, with arrays under other names."""
    np.savez(path, **{renamed.get(name, name): array for name, array in tiny_samples(64, 5).items()})


@pytest.mark.parametrize(
    ("calibration", "evaluation", "options"),
    [
        ("calibration.npz", "evaluation.npz", ()),
        ("train.npz", "valid_2.npz", ()),
        ("a.npz", "b.npz", ("--calibration", "{}/a.npz", "--evaluation", "{}/b.npz", "--metric", "f1_macro")),
    ],
)
def test_a_job_with_data_and_a_metric_loads_as_written(
    place: Path, calibration: str, evaluation: str, options: tuple[str, ...]
) -> None:
    """Nothing is left to edit: no line of data, label or metric is to be checked, and the files fit the model by the job."""
    for name in (calibration, evaluation):
        save(place / name, label="y")
    text, done = init(place, *(option.format(place) for option in options))
    assert done.exit_code == 0, done.output
    job = read_job(place / "job.yaml")
    assert (job.target, job.data.calibration, job.data.evaluation) == ("cpu", place / calibration, place / evaluation)
    assert (job.data.label, job.metric) == ("y", "f1_macro" if options else "accuracy")
    must_change = [
        line for line in text.splitlines() if "CHECK" in line and line.split(":")[0].strip("# ") not in LATER
    ]
    assert must_change == ["# Generated from the model's metadata. Review the lines marked CHECK, then run"]
    assert ("found calibration data" in done.output) == (not options)
    for path in (job.data.calibration, job.data.evaluation):
        assert isinstance(path, Path)
        samples = load_samples(path, describe_file(place / "m.onnx").inputs, label=job.data.label, role="evaluation")
        assert samples.labels is not None and len(samples) == 64


# Settings that have a value which works; the mark asks whether it is the user's.
LATER = ("groups", "max_drop", "portable")


def test_classes_that_are_no_indices_leave_the_metric_open(place: Path) -> None:
    arrays = tiny_samples(64, 5)
    np.savez(place / "evaluation.npz", x=arrays["x"], label=arrays["label"] + 1)
    text, _ = init(place)
    assert "# CHECK: logits: float32[batch, 4] looks like scores" in text
    assert "  calibration: calibration.npz  # CHECK\n  evaluation: evaluation.npz  # found" in text
    assert "make the data files that are missing" in text


def test_several_arrays_beside_the_inputs_are_label_candidates(place: Path) -> None:
    arrays = tiny_samples(64, 5)
    np.savez(place / "test.npz", x=arrays["x"], cohort=arrays["label"], digit=arrays["label"])
    text, _ = init(place)
    assert "  label: cohort  # CHECK: or one of ['digit']; name the rest in `ignore`" in text


def test_data_that_does_not_fit_is_named_with_the_fix(place: Path) -> None:
    """A table of plain columns makes an input if the job says so."""
    save(place / "calibration.npz", x="pixels")
    arrays = tiny_samples(64, 5)
    columns = [f"f{number}" for number in range(64)]
    rows = np.column_stack([arrays["x"], arrays["label"]])
    np.savetxt(place / "test.csv", rows, delimiter=",", header=",".join([*columns, "label"]), comments="")
    text, done = init(place)
    (calibration,) = [line for line in text.splitlines() if line.startswith("  calibration:")]
    assert (
        "CHECK: calibration data calibration.npz has arrays" in calibration and "rename 'pixels' to 'x'" in calibration
    )
    (evaluation,) = [line for line in text.splitlines() if line.startswith("  evaluation:")]
    assert "add `columns: x` to `data`" in evaluation and "  label: label\n" in text
    assert "check evaluation data: " in done.output and read_job(place / "job.yaml")


def test_the_columns_of_tables_make_the_one_input(place: Path) -> None:
    """As a data frame with its labels is written: nothing is left to edit."""
    arrays = tiny_samples(64, 5)
    header = ",".join([*(f"f{number}" for number in range(64)), "label"])
    for name in ("train.csv", "test.csv"):
        rows = [",".join([*map(str, row), str(label)]) for row, label in zip(arrays["x"], arrays["label"], strict=True)]
        (place / name).write_text("\n".join([header, *rows]))
    text, done = init(place)
    assert "  columns: x  # made of the columns in their order\n  label: label\n" in text, done.output
    job = read_job(place / "job.yaml")
    assert (job.data.columns, job.metric) == ("x", "accuracy") and "CHECK: logits" not in text
    inputs = describe_file(place / "m.onnx").inputs
    samples = load_samples(place / "test.csv", inputs, label="label", role="evaluation", columns=job.data.columns)
    np.testing.assert_allclose(samples.inputs["x"], arrays["x"])


@pytest.mark.parametrize("options", [("--metric", "acuracy"), ("--calibration", "none.npz")])
def test_a_metric_or_file_that_does_not_exist_writes_nothing(place: Path, options: tuple[str, ...]) -> None:
    text, done = init(place, *options)
    assert (text, done.exit_code) == ("", 2)


@pytest.mark.parametrize("metric", ["ece", "recall_at_k", "iou", "wer", "sqnr", "mine:score"])
def test_a_given_metric_has_the_lines_that_it_needs(place: Path, metric: str) -> None:
    text, done = init(place, "--metric", metric)
    assert done.exit_code == 0, done.output
    assert read_job(place / "job.yaml").metric == metric
    assert "# The model's outputs suggest accuracy" in text


@pytest.mark.parametrize(
    ("shape", "dtype", "pixel"),
    [
        (["n", 3, 4, 5], "float32", [1.0, 0.0, 0.0]),
        (["n", 4, 5, 3], "uint8", [255, 0, 0]),
        (["n", 1, 4, 5], "float32", [76 / 255]),
        (["n", 4, 5, 1], "uint8", [76]),
    ],
)
def test_folders_of_pictures_get_a_reader(place: Path, shape: list[Any], dtype: str, pixel: list[float]) -> None:
    """The class is that of the folder; 76 is the luma of pure red."""
    for name in ("train/bee", "test/ant", "test/bee"):
        (place / name).mkdir(parents=True)
        Image.new("RGB", (9, 9), (255, 0, 0)).save(place / name / "1.PNG")
    save_scorer(place / "m.onnx", shape, dtype)
    text, done = init(place)
    assert done.exit_code == 0, done.output
    job = read_job(place / "job.yaml")
    assert (job.data.calibration, job.data.evaluation, job.data.read) == (
        place / "train",
        place / "test",
        "prepare:picture",
    )
    assert "CHECK: scores" not in text, "two classes, and folders of two"
    assert f"QUANTGATE_ALLOWED_HOOKS='prepare:picture@{place}'" in done.output.replace("\n", "")
    made: dict[str, Any] = {}
    exec((place / "prepare.py").read_text(), made)
    read = made["picture"](place / "test/bee/1.PNG")
    assert read["label"] == 1
    assert (list(read["x"].shape), read["x"].dtype) == (shape[1:], dtype)
    channels = read["x"][:, 0, 0] if shape[1] in (1, 3) else read["x"][0, 0]
    np.testing.assert_allclose(channels, pixel, atol=1e-6)


def save_scorer(path: Path, shape: list[Any], dtype: str) -> None:
    """Save a model that scores two classes of pictures."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("Cast", ["x"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["float"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["scores"]),
    ]
    weights = np.ones((int(np.prod(shape[1:])), 2), np.float32)
    graph = helper.make_graph(
        nodes,
        "scorer",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def test_a_present_reader_of_pictures_stays(place: Path) -> None:
    """A table has the labels of a flat folder, so that nothing is made of folders' names."""
    for name in ("train", "test"):
        (place / name).mkdir()
        Image.new("L", (9, 9)).save(place / name / "1.png")
        (place / name / "metadata.csv").write_text("file_name,label\n1.png,0\n")
    save_scorer(place / "m.onnx", ["n", 1, 4, 5], "float32")
    (place / "prepare.py").write_text("# mine")
    text, done = init(place)
    assert done.exit_code == 0 and (place / "prepare.py").read_text() == "# mine"
    assert "  label: label  # CHECK" in text and "wrote " + str(place / "prepare.py") not in done.output


def test_folders_of_other_files_are_no_data(place: Path) -> None:
    (place / "test").mkdir()
    (place / "test" / "test_units.py").write_text("")
    (place / "train").mkdir()
    save(place / "train" / "part.npz")
    text, _ = init(place)
    assert "  calibration: train  # found" in text and "  evaluation: evaluation.npz  # CHECK" in text


def test_a_file_has_no_candidates_of_torch_inductor(place: Path) -> None:
    text, done = init(place, "--target", "torch-inductor")
    assert (text, done.exit_code) == ("", 2)
    assert "it compiles PyTorch programs, and the source has none" in done.output + done.stderr


def test_what_is_no_model_is_named_without_a_registry(place: Path) -> None:
    done = CliRunner().invoke(app, ["init", str(place / "model.pkl"), "--out", str(place / "job.yaml")])
    assert done.exit_code == 2 and "neither the URI of a registered version nor an ONNX file" in done.stderr


def test_a_registry_beside_the_command_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As MLflow makes it where a model is logged without a server."""
    monkeypatch.chdir(place)
    (place / "mlflow.db").touch()
    done = CliRunner().invoke(app, ["init", "models:/m/1", "--out", str(place / "job.yaml")])
    assert done.exit_code == 2 and "export MLFLOW_TRACKING_URI=sqlite:///mlflow.db" in done.stderr
