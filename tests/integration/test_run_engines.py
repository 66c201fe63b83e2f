"""Runs for `tensorrt` on a machine without a GPU: engines are built ahead of time, looked at, and promoted by nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import onnx
import pytest
from conftest import Tiny, has_gpu
from driving import Answer, run_jobs, write_job
from onnx import TensorProto, helper, numpy_helper

from validators.targets import facts_of

# Blocks of 128 do not divide the 64 features of the tiny model.
NAMES = [name for name in facts_of("tensorrt").default_candidates if "g128" not in name]


def with_det(folder: Path, tiny: Tiny) -> Path:
    """The tiny model with a determinant beside its output, which TensorRT has no layer for."""
    model = onnx.load(tiny.model)
    last = model.graph.output[0].name
    shape = numpy_helper.from_array(np.array([-1, 2, 2]), "square")
    model.graph.initializer.append(shape)
    model.graph.node.extend(
        [
            helper.make_node("Reshape", [last, "square"], ["squares"], name="squares"),
            helper.make_node("Det", ["squares"], ["det"], name="planted"),
        ]
    )
    model.graph.output.append(helper.make_tensor_value_info("det", TensorProto.FLOAT, ["batch"]))
    onnx.save(model, folder / "det.onnx")
    return folder / "det.onnx"


@pytest.fixture(scope="module")
def answers(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Answer]]:
    """The default candidates of `tensorrt`, then the same job again, and a model that TensorRT does not build."""
    assert not has_gpu(), "written for machines without a GPU; tests/unit/benchmarks/test_gpu_device.py is for others"
    folder = tmp_path_factory.mktemp("engines")
    job = tiny.job(target="tensorrt", candidates=NAMES)
    odd = tiny.job(target="tensorrt", candidates=["fp16@tensorrt"]) | {"source": str(with_det(folder, tiny))}
    paths = {"all": write_job(folder / "all.yaml", job), "odd": write_job(folder / "odd.yaml", odd)}
    calls: list[dict[str, object]] = [
        {"name": name, "job": str(paths[name.removesuffix(" again")])} for name in ("all", "all again", "odd")
    ]
    return folder, run_jobs(folder / "state", folder, calls, plain=True)


def by_name(answer: Answer) -> dict[str, dict[str, Any]]:
    assert answer.result is not None, answer.said
    return {candidate["name"]: candidate for candidate in answer.result["candidates"]}


def test_engines_are_looked_at_and_none_is_promoted(answers: tuple[Path, dict[str, Answer]]) -> None:
    """Built for 8.9 and 12.0, all products in the precision of the name, accuracy simulated, no latency, no verdict on it."""
    document = answers[1]["all"].result
    assert document is not None
    found = by_name(answers[1]["all"])
    assert list(found) == NAMES and answers[1]["all"].code == 3
    for name, candidate in found.items():
        if name.startswith("int4"):
            continue
        assert (candidate["proof"], candidate["outcome"], candidate["refusal"]) == (
            "aot-checked",
            "inconclusive",
            None,
        ), (name, candidate)
        assert candidate["latency_p50_ms"] is None and candidate["latencies"] == []
        verdicts = {verdict["gate"]: verdict for verdict in candidate["verdicts"]}
        assert verdicts["real_kernels"]["outcome"] == "inconclusive"
        assert verdicts["real_kernels"]["reason"].startswith("aot-checked")
        assert verdicts["coverage"]["outcome"] == "pass" and verdicts["coverage"]["value"] == 1.0, verdicts["coverage"]
        assert "speedup" not in verdicts and verdicts["finite"]["outcome"] == "pass"
        assert candidate["metric_value"] > 0.9 * document["baseline"]["value"]
    assert found["fp16@tensorrt"]["coverage_macs"] == 0.0, "of 8 bits or fewer: float16 is none"


def test_a_product_in_float_is_caught_before_any_gpu(answers: tuple[Path, dict[str, Answer]]) -> None:
    """The builder dequantizes weights of one block along K by themselves, and multiplies in float16: the file says INT4."""
    candidate = by_name(answers[1]["all"])["int4-g64-rtn@tensorrt"]
    assert (candidate["proof"], candidate["outcome"]) == ("aot-checked", "failed")
    verdicts = {verdict["gate"]: verdict for verdict in candidate["verdicts"]}
    assert verdicts["coverage"]["outcome"] == "fail" and verdicts["coverage"]["value"] < 0.1
    assert "first_matmul" in verdicts["coverage"]["reason"] and candidate["changes"]["MatMul in INT4"] == 2


def test_the_page_says_what_that_is_worth(answers: tuple[Path, dict[str, Answer]]) -> None:
    result = answers[1]["all"].result
    assert result is not None
    page = Path(result["report"]).read_text(encoding="utf-8")
    assert "Aot-checked" in page and "nothing was timed" in page and "aot-checked" in answers[1]["all"].said


def test_an_engine_is_built_once(answers: tuple[Path, dict[str, Answer]]) -> None:
    entries = list((answers[0] / "state" / "store" / "engine").iterdir())
    assert len(entries) == 2 * len(NAMES), "for two GPUs; the second run took those of the first, and Det has none"
    assert all(candidate["cached"] for candidate in by_name(answers[1]["all again"]).values())


def test_what_the_builder_said_is_kept(answers: tuple[Path, dict[str, Answer]]) -> None:
    """In MLflow, of engines that were built."""
    client = mlflow.MlflowClient(f"sqlite:///{answers[0] / 'state' / 'mlflow.db'}")
    experiments = [one.experiment_id for one in client.search_experiments()]
    runs = {run.info.run_name: run for run in client.search_runs(experiments)}
    local = client.download_artifacts(runs["fp16@tensorrt"].info.run_id, "engine/build.log")
    assert "Layers:" in Path(local).read_text(encoding="utf-8")


def test_an_operator_that_tensorrt_lacks_is_named(answers: tuple[Path, dict[str, Answer]]) -> None:
    candidate = by_name(answers[1]["odd"])["fp16@tensorrt"]
    assert candidate["outcome"] == "refused" and candidate["refusal"]["kind"] in ("invalid", "unsupported")
    assert "planted" in candidate["refusal"]["reason"] and "Det" in candidate["refusal"]["reason"]
