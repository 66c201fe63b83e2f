"""Calibration draws: whole runs of a model that does not depend on its draw, and of data where one sample decides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import Tiny, tiny_samples
from driving import Answer, run_jobs, write_job

from tasks.champion.bundle.verify import is_sound, verify
from tasks.trials.draws import draw
from validators.records.run import DataFile
from validators.samples.datasets import Samples

NAME = "int8-static-minmax-pc@ort-cpu"
# Calibration samples of a small scale are no likeness of the evaluation samples, which is the plant.
LOOSE = {
    "model_samples": 0,
    "max_psi": 1000.0,
    "min_drift_p_value": 0.0,
    "max_mmd": 1000.0,
    "min_embedding_coverage": 0.0,
}


def make_samples(n: int, **changes: object) -> Samples:
    arrays = {"x": np.arange(n, dtype=np.float32)[:, None]}
    return Samples(DataFile(Path("c.npz"), "digest", n), arrays, np.arange(n), **changes)  # type: ignore[arg-type]  # tests name fields of it


def test_a_draw_has_the_size_of_the_data_and_a_digest_of_its_own() -> None:
    samples = make_samples(200)
    one, again, other = draw(samples, 7, 0), draw(samples, 7, 0), draw(samples, 7, 1)
    assert len(one) == len(one.inputs["x"]) == 200
    assert one.file.digest == again.file.digest
    assert len({samples.file.digest, one.file.digest, other.file.digest}) == 3
    assert one.labels is not None
    np.testing.assert_array_equal(one.inputs["x"][:, 0], one.labels)
    # 1 - 1/e of the samples, 126 of 200, with a standard deviation of 4.4.
    assert abs(len(np.unique(one.labels)) - 126) < 20


def test_a_draw_takes_whole_groups_and_whole_sequences() -> None:
    patients = draw(make_samples(60, clusters=np.repeat(np.arange(20), 3)), 7, 0)
    assert patients.labels is not None
    assert patients.clusters is not None
    assert set(np.unique(patients.labels // 3, return_counts=True)[1] % 3) == {0}
    np.testing.assert_array_equal(patients.labels // 3, patients.clusters)
    calls = draw(make_samples(60, steps=5), 7, 0).labels
    assert calls is not None
    np.testing.assert_array_equal(np.diff(calls.reshape(-1, 5)), 1)


@pytest.fixture(scope="module")
def answers(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    root = tmp_path_factory.mktemp("draws")
    planted = tiny_samples(128, 11)
    planted["x"][1:] *= 0.02
    np.savez(root / "planted.npz", **planted)
    asked = {"calibration": {"draws": 8} | LOOSE, "gates": {"min_speedup": None, "max_draw_spread": 0.02}}
    data = {"evaluation": str(tiny.evaluation)}
    jobs = {
        "steady": tiny.job(**asked),
        "planted": tiny.job(**asked, data=data | {"calibration": str(root / "planted.npz")}),
        "unconfirmed": tiny.job(**asked, confirmation={"share": 0}),
        "dynamic": tiny.job(**asked, candidates=["int8-dynamic-pc@ort-cpu"]),
    }
    calls: list[dict[str, object]] = [
        {"name": name, "job": str(write_job(root / f"{name}.yaml", job))} for name, job in jobs.items()
    ]
    return run_jobs(root / "state", root / "runs", calls, plain=True)


def test_a_model_that_hangs_on_its_draw_is_caught(answers: dict[str, Answer]) -> None:
    result = answers["planted"].result
    assert result is not None, answers["planted"].said
    (candidate,) = result["candidates"]
    assert result["outcome"] == "no_variant"
    assert {one["gate"] for one in candidate["verdicts"] if one["outcome"] != "pass"} == {"draw_spread"}
    assert candidate["draws"]["spread"]["low"] > 0.02
    assert candidate["draws"]["ranges"][0]["ratio"] > 10
    assert "draw_spread" in result["reason"]


@pytest.mark.parametrize("name", ["steady", "unconfirmed"])
def test_a_steady_model_is_chosen_with_its_draws(answers: dict[str, Answer], name: str) -> None:
    result = answers[name].result
    assert result is not None, answers[name].said
    assert result["chosen"] == NAME, result["reason"]
    draws = result["candidates"][0]["draws"]
    assert len(draws["drops"]) == 8
    assert draws["spread"]["high"] <= 0.02
    assert (verdict := next(one for one in result["candidates"][0]["verdicts"] if one["gate"] == "draw_spread"))
    assert verdict["n"] == 8
    report = Path(result["report"]).read_text(encoding="utf-8")
    assert "was made again from 8 other draws of its 128 calibration samples" in report


def test_evidence_gives_the_verdict_on_draws_again(answers: dict[str, Answer]) -> None:
    result = answers["steady"].result
    assert result is not None, answers["steady"].said
    report = Path(result["report"])
    (bundle,) = report.parents[2].rglob(f"{report.parent.name}/artifacts/evidence/evidence.zip")
    parts = verify(bundle)
    assert is_sound(parts), parts
    assert any(part.part == "verdict draw_spread" and part.is_sound for part in parts)


def test_what_no_sample_influences_is_not_made_again(answers: dict[str, Answer]) -> None:
    result = answers["dynamic"].result
    assert result is not None, answers["dynamic"].said
    assert result["chosen"] == "int8-dynamic-pc@ort-cpu"
    assert result["candidates"][0]["draws"] is None
