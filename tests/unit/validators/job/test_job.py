"""The job file: what is no job is refused with the key that is wrong, and paths are those of the job's folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from report_data import INVENTORY

from validators.errors import JobError
from validators.job.job import Job
from validators.job.job_gates import Gates
from validators.job.read_job import changed, parse_job, read_job
from validators.records.run import Gpu
from validators.targets import BUILT_IN

ROOT = Path(__file__).parents[4]
DATA = {"calibration": "calibration.npz", "evaluation": "evaluation.npz"}
WHOLE: dict[str, Any] = {"source": "model.onnx", "data": DATA}
GPU = Gpu("NVIDIA H200", "GPU-1", "9.0", "580.95.05", 150_000_000_000)
NAME = "int8-dynamic-pc@ort-cpu"

# A change to a whole job, and words that the error must hold.
BAD_JOBS: list[tuple[dict[str, Any], str]] = [
    ({"speed": 3}, "unknown key `speed`"),
    ({"gates": {"max_dorp": 0.1}}, "unknown key `gates.max_dorp`; did you mean 'max_drop'?"),
    ({"metric": "acuracy"}, "`metric`: unknown value 'acuracy'; did you mean 'accuracy'? (known: accuracy, top5"),
    ({"metric": "own.py:f:g"}, "`metric`: 'own.py:f:g' where module:function was expected"),
    ({"target": "ort-cuad"}, "did you mean 'ort-cuda'?"),
    ({"candidates": "defualt"}, "did you mean 'default'?"),
    (
        {"given": [{"name": "a", "file": "a.xml", "engine": "openvino"}]},
        "ort-cpu does not cover; set `target: openvino`",
    ),
    (
        {"target": "cpu", "candidates": ["int8-dynamic-pc@ort-cpu", "fp16@tensorrt"]},
        "the candidate fp16@tensorrt is for tensorrt, which the target cpu does not cover; set `target: tensorrt`",
    ),
    ({"baseline": "openvino"}, "`baseline` must be one of ort-cpu for the target ort-cpu"),
    ({"target": "cpu", "baseline": "cpu"}, "`baseline` must be one of ort-cpu, openvino"),
    ({"target": "torch-inductor", "baseline": "torch-inductor"}, "`baseline` must be one of ort-cpu for"),
    ({"target": "tensorrt", "baseline": "ort-cpu"}, "`baseline` must be one of tensorrt"),
    ({"target": "ort-genai", "baseline": "ort-cpu"}, "`baseline` must be one of ort-genai"),
    ({"output": ["a", "b"]}, "the metric accuracy reads one output: name one"),
    ({"output": []}, "`output"),
    ({"metric": "log_loss"}, "`metric_scores` must be set"),
    ({"metric_scores": "logits"}, "`metric_scores` must be set for the metrics log_loss and ece, and for no other"),
    ({"metric": "recall_at_k"}, "needs `metric_k`"),
    ({"metric": "mrr", "metric_k": 0}, "`metric_k`"),
    ({"metric_k": 5}, "`metric_k` applies to"),
    ({"data": DATA | {"label": "y", "ignore": ["y"]}}, "each ignored array need different names"),
    ({"data": DATA | {"labels": "y"}}, "unknown key `data.labels`"),
    ({"measurement": {"dims": {"sequence": 0}}}, "`measurement.dims.sequence.0`"),
    ({"measurement": {"dims": {"new_tokens": [64, 0]}}}, "`measurement.dims.new_tokens.1`"),
    ({"data": DATA | {"slices": ["label"]}}, "need different names"),
    ({"data": DATA | {"slices": ["place", "place"]}}, "need different names"),
    ({"calibration": {"max_saturation": 1.1}}, "`calibration.max_saturation`"),
    ({"data": {"calibration": "a.npz"}}, "no key `data.evaluation`"),
    ({"data": "calibration.npz"}, "`data`"),
    ({"source": 3}, "`source`"),
    ({"source": None}, "`source`"),
    ({"target": "gpu"}, "`target`"),
    ({"metric": "f1"}, "`metric`"),
    ({"metric": "mine/f1:f1", "metric_direction": "higher"}, "`metric`"),
    ({"metric": "mine:f1"}, "`metric_direction`"),
    ({"metric": "accuracy", "metric_direction": "higher"}, "`metric_direction`"),
    ({"metric": "f1_macro", "metric_threshold": 0.5}, "`metric_threshold`"),
    ({"metric": "sqnr"}, "`gates.min_sqnr_db`"),
    ({"text": {"blank": -1}}, "`text.blank`"),
    ({"objective": "beauty"}, "`objective`"),
    ({"seed": "seven"}, "`seed`"),
    ({"gates": None}, "`gates`"),
    ({"gates": {"max_drop": -0.01}}, "`gates.max_drop`"),
    ({"gates": {"max_drop": float("nan")}}, "`gates.max_drop`"),
    ({"gates": {"confidence": 0.5}}, "`gates.confidence`"),
    ({"gates": {"confidence": 1.0}}, "`gates.confidence`"),
    ({"gates": {"confidence": None}}, "`gates.confidence`"),
    ({"gates": {"min_speedup": 0}}, "`gates.min_speedup`"),
    ({"gates": {"min_coverage": 1.01}}, "`gates.min_coverage`"),
    ({"gates": {"max_size_ratio": 0}}, "`gates.max_size_ratio`"),
    ({"gates": {"max_cost_per_million": 1.0}}, "`gates.max_cost_per_million` needs `measurement.price_per_hour`"),
    ({"measurement": {"price_per_hour": 0}}, "`measurement.price_per_hour`"),
    ({"calibration": {"min_samples": 0}}, "`calibration.min_samples`"),
    ({"calibration": {"min_drift_p_value": 1}}, "`calibration.min_drift_p_value`"),
    ({"measurement": {"batch_sizes": []}}, "`measurement.batch_sizes`"),
    ({"measurement": {"batch_sizes": [0]}}, "`measurement.batch_sizes.0`"),
    ({"measurement": {"batch_sizes": [1, 2000]}}, "`measurement.batch_sizes.1`"),
    ({"measurement": {"block_seconds": 0}}, "`measurement.block_seconds`"),
    ({"measurement": {"launches": 0}}, "`measurement.launches`"),
    ({"measurement": {"launches": 21}}, "`measurement.launches`"),
    ({"measurement": {"blocks": 1.5}}, "`measurement.blocks`"),
    ({"measurement": {"launches": 1, "blocks": 2}}, "launches * blocks must be at least 3"),
    ({"measurement": {"launches": 2, "blocks": 1}}, "launches * blocks must be at least 3"),
    ({"measurement": {"threads": -1}}, "`measurement.threads.0`"),
    ({"measurement": {"threads": []}}, "`measurement.threads`"),
    ({"measurement": {"preprocess": "clean"}}, "`measurement.preprocess`"),
    ({"budgets": {"seconds": 0}}, "`budgets.seconds`"),
    ({"candidates": []}, "`candidates"),
    ({"candidates": "all"}, "`candidates"),
    ({"candidates": [NAME, NAME]}, "a candidate is named twice"),
    ({"candidates": [NAME, "int9-dynamic-pc@ort-cpu"]}, "candidate 'int9-dynamic-pc@ort-cpu'"),
]
# The text of a job file, and words that the error must hold.
BAD_TEXTS: list[tuple[bytes, str]] = [
    (b"", "holds a value of type NoneType"),
    (b"- source: a.onnx\n", "holds a value of type list"),
    (b"model.onnx\n", "holds a value of type str"),
    (b"source: a.onnx\n", "no key `data`"),
    (b"source: a: b\n", "line 1, column 10"),
    (b"source: [a\n", "line 2, column 1"),
    (b"source: a.onnx\n--- \nsource: b.onnx\n", "another document"),
    (b"source: !!python/object/apply:os.getcwd []\n", "python/object/apply"),
    (b"source: m\xfcller.onnx\n", "not UTF-8 text"),
    (b"source: a\0b\n", "#x0000"),
    (b"1: 2\n", "`1`: Keys should be strings"),
]


def caught(path: Path) -> JobError:
    """The error of a job file that is no job."""
    with pytest.raises(JobError) as seen:
        read_job(path)
    error = seen.value
    assert error.found and error.expected and error.fix
    assert error.exit_code == 2
    return error


def written(folder: Path, job: dict[str, Any]) -> Path:
    """A job file with this content."""
    (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    return folder / "job.yaml"


@pytest.mark.parametrize(("change", "words"), BAD_JOBS, ids=lambda value: str(value)[:60])
def test_a_bad_job_is_refused_with_its_key(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """Each fault is named by its key; the same job without it is read."""
    assert isinstance(read_job(written(tmp_path, WHOLE)), Job)
    error = caught(written(tmp_path, WHOLE | change))
    assert words in error.found
    assert str(tmp_path / "job.yaml") in error.found


@pytest.mark.parametrize(("text", "words"), BAD_TEXTS, ids=lambda value: repr(value)[:40])
def test_a_file_that_is_no_job_is_refused_with_the_place(tmp_path: Path, text: bytes, words: str) -> None:
    """Text that is not YAML, or YAML that is no mapping, is told apart, and the file is named."""
    path = tmp_path / "job.yaml"
    path.write_bytes(text)
    error = caught(path)
    assert words in error.found
    assert str(path) in error.found


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """No file, a folder, and a folder that is a file: the system's reason beside the path."""
    whole = written(tmp_path, WHOLE)
    for path, reason in (
        (tmp_path / "none.yaml", "No such file"),
        (tmp_path, "Is a directory"),
        (whole / "job.yaml", "Not a directory"),
    ):
        error = caught(path)
        assert reason in error.found and str(path) in error.found


def test_every_fault_of_a_job_is_named_at_once() -> None:
    """A reader who mends one fault does not find the next one only then."""
    job = WHOLE | {"gates": {"max_drop": -1}, "measurement": {"launches": "x"}, "zoo": 1}
    with pytest.raises(JobError) as seen:
        parse_job(job, base=Path())
    for key in ("`gates.max_drop`", "`measurement.launches`", "`zoo`"):
        assert key in seen.value.found and key in seen.value.fix


def test_relative_paths_are_those_of_the_jobs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths follow the job file, absolute ones and registry URIs stay, wherever the reader stands."""
    (tmp_path / "jobs").mkdir()
    job = WHOLE | {"data": {"calibration": "../c.npz", "evaluation": "deep/e.npz", "traffic": "t.parquet"}}
    path = written(tmp_path / "jobs", job)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for given in (path, Path("..", "jobs", "job.yaml")):
        read = read_job(given)
        assert read.data.calibration.resolve() == tmp_path / "c.npz"
        assert read.data.evaluation == tmp_path / "jobs" / "deep" / "e.npz"
        assert read.data.traffic == tmp_path / "jobs" / "t.parquet"
        assert read.source == str(tmp_path / "jobs" / "model.onnx") and read.source_is_file
    absolute = {"calibration": "/data/c.npz", "evaluation": "/data/e.npz"}
    registered = read_job(written(tmp_path, {"source": "models:/name@alias", "data": absolute}))
    assert (registered.data.calibration, registered.data.evaluation) == (Path("/data/c.npz"), Path("/data/e.npz"))
    assert registered.source == "models:/name@alias" and not registered.source_is_file
    assert registered.data.traffic is None


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.yaml")), ids=lambda path: path.stem)
def test_examples_are_jobs(path: Path) -> None:
    """Each job of examples/ parses, and its relative paths are below the checkout."""
    job = read_job(path)
    assert job.candidate_names
    assert job.data.calibration.resolve().is_relative_to(ROOT)


def test_there_are_examples() -> None:
    """Without any, the test above would prove nothing."""
    assert {path.name for path in ROOT.glob("examples/*.yaml")} >= {"text.yaml", "image.yaml"}


def test_code_and_vocabulary_lie_beside_the_job(tmp_path: Path) -> None:
    """Without `code` it is the job's own folder; both are resolved like data."""
    text = {"text": {"vocabulary": "tokens.txt"}, "metric": "mine.deep:f1", "metric_direction": "lower"}
    job = read_job(written(tmp_path, WHOLE | text))
    assert job.code.resolve() == tmp_path.resolve() and job.text.vocabulary == tmp_path / "tokens.txt"
    assert job.metric_is_function and not read_job(written(tmp_path, WHOLE)).metric_is_function
    assert read_job(written(tmp_path, WHOLE | {"code": "lib"})).code == tmp_path / "lib"


def test_outputs_are_a_name_or_several() -> None:
    """No name is the model's first output."""
    for given, names in ((None, ()), ("y", ("y",)), (["boxes", "scores"], ("boxes", "scores"))):
        assert parse_job(WHOLE | {"metric": "map", "output": given}, base=Path()).output_names == names


def test_default_candidates_are_those_of_the_target() -> None:
    """`default` resolves by target; names given stay in their order."""
    for target, facts in BUILT_IN.items():
        assert parse_job(WHOLE | {"target": target}, base=Path()).candidate_names == facts.default_candidates
    names = ("int4-g32-rtn@ort-cpu", NAME)
    assert parse_job(WHOLE | {"candidates": list(names)}, base=Path()).candidate_names == names


@pytest.mark.parametrize(
    ("target", "baseline", "found"),
    [
        ("ort-cpu", None, "ort-cpu"),
        ("openvino", None, "ort-cpu"),
        ("openvino", "openvino", "openvino"),
        ("cpu", None, "ort-cpu"),
        ("cpu", "openvino", "openvino"),
        ("ort-cuda", None, "ort-cuda"),
        ("cuda", None, "ort-cuda"),
        ("cuda", "tensorrt", "tensorrt"),
    ],
)
def test_the_baseline_runs_in_the_engine_that_the_job_names(target: str, baseline: str | None, found: str) -> None:
    """On a machine without a GPU the source of a GPU's job runs in ONNX Runtime on the processor."""
    job = parse_job(WHOLE | {"target": target, "baseline": baseline}, base=Path())
    assert job.baseline_on(replace(INVENTORY, gpu=GPU)) == found
    assert job.baseline_on(INVENTORY) == (found if found == "openvino" else "ort-cpu")


def test_a_gate_may_be_left_out_and_a_job_cannot_be_changed() -> None:
    """Null takes a gate away where that is allowed, and settings are frozen."""
    gates = parse_job(WHOLE | {"gates": {"min_speedup": None, "min_coverage": None}}, base=Path()).gates
    assert gates == Gates(min_speedup=None, min_coverage=None)
    with pytest.raises(ValueError, match="frozen"):
        gates.max_drop = 1.0


@pytest.mark.parametrize(
    "text",
    [
        b"source: 2024-13-45\n",
        b"seed: !!int abc\n",
        b"seed: !!float x\n",
        b"seed: !!bool x\n",
        b"a: !!timestamp x\n",
        b"[" * 6000,
    ],
)
def test_yaml_that_cannot_be_built_is_refused(tmp_path: Path, text: bytes) -> None:
    """Well-formed text whose scalars have no value, or that is too deep."""
    (tmp_path / "job.yaml").write_bytes(text)
    assert caught(tmp_path / "job.yaml").expected.startswith("a YAML file")


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """Which of two gates counts would be a matter of their order."""
    (tmp_path / "job.yaml").write_text(
        "source: a\ndata: {calibration: a, evaluation: b}\ngates:\n  max_drop: 0.01\n  max_drop: 0.5\n"
    )
    assert "'max_drop' occurs twice" in caught(tmp_path / "job.yaml").found
    # What a merged mapping holds may be replaced: that is what merging is for.
    (tmp_path / "job.yaml").write_text(
        "source: a\ndata:\n  <<: &files {calibration: a, evaluation: b, label: x}\n  label: y\n"
    )
    assert read_job(tmp_path / "job.yaml").data.label == "y"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": -1}, "`seed`"),
        ({"gates": {"min_speedup": float("inf")}}, "`gates.min_speedup`"),
        ({"gates": {"max_drop": float("inf")}}, "`gates.max_drop`"),
        ({"budgets": {"seconds": float("inf")}}, "`budgets.seconds`"),
    ],
)
def test_more_bad_jobs(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """A seed that numpy refuses minutes later; gates that nothing passes or everything does."""
    assert words in caught(written(tmp_path, WHOLE | change)).found


def test_a_typo_of_a_metric_is_told_without_a_regular_expression() -> None:
    with pytest.raises(JobError) as caught:
        parse_job({"source": "m.onnx", "data": DATA, "metric": "acuracy"}, base=Path())
    assert "pattern" not in caught.value.found and "\\w" not in caught.value.found


def test_a_change_sets_one_key_and_leaves_the_file_as_it_is() -> None:
    raw = {"source": "m.onnx", "gates": {"max_drop": 0.1}}
    changes = ["gates.min_speedup=null", "measurement.batch_sizes=[1, 8]", "candidates=wide", "gates.max_drop=0.2"]
    assert changed(raw, changes) == {
        "source": "m.onnx",
        "gates": {"max_drop": 0.2, "min_speedup": None},
        "measurement": {"batch_sizes": [1, 8]},
        "candidates": "wide",
    }
    assert raw == {"source": "m.onnx", "gates": {"max_drop": 0.1}}


@pytest.mark.parametrize("change", ["gates.max_drop", "source.name=1", "gates={", "gates=!!python/object:os.system x"])
def test_a_change_of_no_such_form_is_refused(change: str) -> None:
    with pytest.raises(JobError, match="the change") as caught:
        changed({"source": "m.onnx"}, [change])
    assert "--set" in caught.value.fix and change.partition("=")[0] in caught.value.found
