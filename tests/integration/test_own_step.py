"""The job's own step: what it logs in the candidate's run decides further gates, in real runs with a real registry."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import Tiny
from driving import Answer, register_models, run_jobs, write_job

from tasks.storage.store import Store
from tasks.trials.user_step import choosing_samples
from validators.errors import JobError
from validators.job.read_job import parse_job
from validators.records.run import DataFile
from validators.samples.datasets import Samples

STATIC, DYNAMIC, FP8 = "int8-static-minmax-pc@ort-cpu", "int8-dynamic-pc@ort-cpu", "fp8-amax-pc@ort-cpu"

STEP = '''
import mlflow
import numpy as np


def log_gap(subject):
    """The largest difference of two classes' share among the answers, and how many samples were asked."""
    with np.load(subject.evaluation) as data, subject.runner() as runner:
        answers = runner.run({"x": data["x"]}, ["logits"])[0].argmax(axis=1)
    shares = np.bincount(answers, minlength=4) / len(answers)
    mlflow.log_metric("gap", float(shares.max() - shares.min()))
    mlflow.log_metric("asked", float(len(answers)))
    mlflow.log_param("seen", subject.candidate)


def break_half_way(subject):
    mlflow.log_metric("gap", 0.0)
    raise RuntimeError("no such customer")
'''


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> tuple[Path, dict[str, Answer]]:
    """Runs whose steps log a metric within its bound, beyond it, not at all, and break."""
    root = tmp_path_factory.mktemp("steps")
    state = root / "state"
    register_models(state, tiny.model.parent)
    (root / "checks.py").write_text(STEP)

    def call(name: str, step: str, **gate: object) -> dict[str, object]:
        gates = {"min_speedup": None, "logged": [{"metric": "gap"} | gate]}
        job = tiny.job(source="models:/tiny/1", candidates=[STATIC, DYNAMIC, FP8], gates=gates, step=f"checks:{step}")
        return {"name": name, "job": str(write_job(root / f"{name}.yaml", job))}

    calls = [
        call("within", "log_gap", at_most=0.9),
        call("beyond", "log_gap", at_most=0.0001),
        call("missing", "log_gap", metric="recall", at_least=0.5),
        call("broken", "break_half_way", metric="recall", at_least=0.5),
    ]
    return state, run_jobs(state, root / "runs", calls, plain=True, QUANTGATE_ALLOWED_HOOKS=f"checks:*@{root}")


def logged_verdicts(answer: Answer) -> dict[str, Any]:
    assert answer.result is not None, answer.said
    return {
        candidate["name"]: [verdict for verdict in candidate["verdicts"] if verdict["gate"].startswith("logged.")]
        for candidate in answer.result["candidates"]
    }


@pytest.mark.slow
def test_a_metric_within_its_bound_lets_pass(world: tuple[Path, dict[str, Answer]]) -> None:
    state, answers = world
    answer = answers["within"]
    assert answer.result is not None and answer.result["outcome"] == "promoted", answer.said
    seen = logged_verdicts(answer)
    assert seen[FP8] == [], "only what passed so far is asked"
    for name in (STATIC, DYNAMIC):
        (verdict,) = seen[name]
        assert (verdict["outcome"], verdict["bound"], verdict["direction"]) == ("pass", 0.9, "at_most")
        assert 0 < verdict["value"] < 0.9
    query = (
        "SELECT r.name, m.value FROM metrics m JOIN runs r ON r.run_uuid = m.run_uuid "
        "WHERE m.key = 'asked' ORDER BY r.name"
    )
    with sqlite3.connect(state / "mlflow.db") as database:
        asked = database.execute(query).fetchall()
        runs = database.execute("SELECT COUNT(*) FROM runs WHERE name = ?", (STATIC,)).fetchall()
    # The samples that confirm the winner are kept from the step.
    by_name = {candidate["name"]: candidate for candidate in answer.result["candidates"]}
    (confirmed,) = {one["confirmed"]["n"] for one in by_name.values() if one.get("confirmed")}
    assert set(asked) == {(STATIC, 2000.0 - confirmed), (DYNAMIC, 2000.0 - confirmed)}
    assert runs == [(len(answers),)], "one run in MLflow a candidate and run"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "outcome", "words"),
    [
        ("beyond", "fail", "against 0.0001"),
        ("missing", "inconclusive", "no metric 'recall'"),
        ("broken", "inconclusive", "RuntimeError: no such customer"),
    ],
)
def test_what_is_beyond_or_not_known_does_not(
    world: tuple[Path, dict[str, Answer]], name: str, outcome: str, words: str
) -> None:
    answer = world[1][name]
    assert answer.code == 3 and answer.result is not None and answer.result["outcome"] == "no_variant", answer.said
    for candidate in (STATIC, DYNAMIC):
        (verdict,) = logged_verdicts(answer)[candidate]
        assert verdict["outcome"] == outcome and words in verdict["reason"]
    assert "Traceback" not in answer.said


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_the_step_sees_the_samples_that_choose_alone(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"evaluation{suffix}"
    columns = {"x": np.arange(6), "customer": np.array(list("abcdef"))}
    if suffix == ".npz":
        np.savez(path, x=columns["x"], customer=columns["customer"])
    else:
        pd.DataFrame(columns).to_parquet(path)
    samples = Samples(DataFile(path, "0" * 64, 6), {"x": columns["x"]}, None)
    run = SimpleNamespace(store=Store(tmp_path / "store"))

    def seen(confirming: list[int]) -> dict[str, list[Any]]:
        evidence = SimpleNamespace(evaluation=samples, confirmation=np.isin(np.arange(6), confirming))
        found = choosing_samples(run, evidence)  # type: ignore[arg-type]  # what it reads of both
        assert (found == path) == (not confirming) and found.name == path.name
        if suffix == ".npz":
            with np.load(found) as archive:
                return {name: archive[name].tolist() for name in archive.files}
        return pd.read_parquet(found).to_dict("list")

    assert seen([1, 4]) == {"x": [0, 2, 3, 5], "customer": ["a", "c", "d", "f"]}
    assert seen([0]) == {"x": [1, 2, 3, 4, 5], "customer": ["b", "c", "d", "e", "f"]}
    assert seen([])["x"] == [0, 1, 2, 3, 4, 5]


def test_gates_on_logged_metrics_need_a_step() -> None:
    job = {
        "source": "m.onnx",
        "data": {"calibration": "c.npz", "evaluation": "e.npz"},
        "gates": {"logged": [{"metric": "gap", "at_most": 1}]},
    }
    with pytest.raises(JobError, match="step"):
        parse_job(job, base=Path("/jobs"))
