"""`quantgate validate` and `suggest-calibration` as a user has them: exit codes, what is said, what is left in MLflow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Tiny, tiny_samples
from driving import Answer, environment, run_jobs, write_job

pytestmark = pytest.mark.slow

# Asks MLflow in a process of its own: importing it warns of itself.
ASK = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient(sys.argv[1])
runs = client.search_runs([e.experiment_id for e in client.search_experiments()], max_results=100)
seen = [{"id": r.info.run_id, "status": r.info.status, "tags": r.data.tags, "metrics": r.data.metrics,
         "artifacts": [a.path for a in client.list_artifacts(r.info.run_id, "calibration")]} for r in runs]
print("ANSWER" + json.dumps(seen))
"""


def save(folder: Path, name: str, **arrays: Any) -> str:
    np.savez(folder / f"{name}.npz", **arrays)
    return str(folder / f"{name}.npz")


def calls_of(folder: Path, tiny: Tiny) -> list[dict[str, object]]:
    """One call a situation, each with a job of its own."""
    evaluation = tiny_samples(2000, 12)
    groups = np.array(["home", "abroad"])[np.arange(2000) % 2]
    few = {name: array[:20] for name, array in tiny_samples(128, 11).items()}
    at_home = tiny_samples(128, 11)
    bright = tiny_samples(500, 13)
    # A pool that holds the first 100 evaluation samples as well, and one sample that is no number.
    pool = {name: np.concatenate([tiny_samples(600, 14)[name], array[:100]]) for name, array in evaluation.items()}
    pool["x"][5, 7] = np.nan
    data = {
        "few": {"calibration": save(folder, "few", **few)},
        "one group": {
            "calibration": save(folder, "home", **at_home, place=np.full(128, "home")),
            "evaluation": save(folder, "grouped", **evaluation, place=groups),
            "slices": ["place"],
        },
        "slice not there": {"slices": ["place"]},
        "traffic": {"traffic": save(folder, "traffic", x=bright["x"] * np.float32(1.5))},
        "to be picked": {"calibration": str(folder / "picked.npz")},
    }
    files = {"calibration": str(tiny.calibration), "evaluation": str(tiny.evaluation)}
    jobs = {name: tiny.job(data=files | changes) for name, changes in data.items()}
    jobs |= {"accepted": tiny.job(), "no such tensor": tiny.job(calibration={"representation": "nothing"})}
    jobs["without the model"] = tiny.job(calibration={"model_samples": 0})
    paths = {name: str(write_job(folder / f"{name}.yaml", job)) for name, job in jobs.items()}
    pick = {"job": paths["to be picked"], "command": "suggest", "pool": save(folder, "pool", **pool)}
    return [
        *({"name": name, "job": path, "command": "validate"} for name, path in paths.items() if name != "to be picked"),
        {"name": "run with few", "job": paths["few"]},
        pick | {"name": "pick", "size": 96},
        pick | {"name": "pick again", "size": 96},
        {"name": "picked", "job": paths["to be picked"], "command": "validate"},
    ]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> dict[str, Answer]:
    folder = tmp_path_factory.mktemp("validate")
    answered = run_jobs(folder / "state", folder / "runs", calls_of(folder, tiny))
    command = [sys.executable, "-W", "ignore", "-c", ASK, f"sqlite:///{folder / 'state' / 'mlflow.db'}"]
    done = subprocess.run(
        command, env=environment(folder / "state"), capture_output=True, text=True, check=False, cwd=folder
    )
    assert "ANSWER" in done.stdout, done.stderr[-2000:]
    os.environ.pop("QUANTGATE_STATE", None)
    return answered | {
        "mlflow": Answer(0, done.stdout.partition("ANSWER")[2], None),
        "folder": Answer(0, str(folder), None),
    }


def failed(answer: Answer) -> dict[str, dict[str, str]]:
    assert answer.result is not None
    return {check["name"]: check for check in answer.result["calibration"]["failed_checks"]}


def test_a_good_set_is_accepted_with_its_figures(answers: dict[str, Answer]) -> None:
    answer = answers["accepted"]
    assert answer.code == 0 and answer.result is not None, answer.said
    assert answer.result["outcome"] == "accepted" and answer.result["candidates"] == []
    figures = answer.result["calibration"]["figures"]
    assert figures["samples"] == figures["distinct_samples"] == 128
    assert figures["embedding_coverage"] > 0.8 and figures["mmd_p_value"] > 0.001
    assert Path(answer.result["calibration"]["page"]).is_file() and Path(answer.result["report"]).is_file()
    passed = {check["name"] for check in answer.result["calibration"]["passed_checks"]}
    assert {"same_representation", "reference_covered", "ranges_hold", "labels_covered"} <= passed
    assert all(f"{name} " in answer.said for name in passed)


@pytest.mark.parametrize("name", ["few", "run with few"])
def test_either_command_refuses_a_bad_set_before_making_anything(name: str, answers: dict[str, Answer]) -> None:
    answer = answers[name]
    assert answer.code == 4 and answer.result is not None, answer.said
    assert answer.result["outcome"] == "refused" and answer.result["candidates"] == []
    assert "at least 44 more" in failed(answer)["enough_samples"]["fix"] and "at least 44 more" in answer.said
    store = Path(answers["folder"].said) / "state" / "store"
    assert not (store / "variant").exists() and (store / "calibration-verdict").is_dir()


def test_a_missing_group_is_named_with_how_many_to_add(answers: dict[str, Answer]) -> None:
    answer = answers["one group"]
    assert answer.code == 4 and list(failed(answer)) == ["slices_covered"]
    assert "place abroad: 0 samples" in failed(answer)["slices_covered"]["found"]
    assert "16 of place abroad" in failed(answer)["slices_covered"]["fix"]  # a quarter of half of 128


def test_traffic_is_what_calibration_data_is_held_against(answers: dict[str, Answer]) -> None:
    answer = answers["traffic"]
    assert answer.code == 4 and "the traffic" in failed(answer)["same_distribution"]["fix"]
    assert "labels_covered" not in failed(answer)


def test_what_the_model_makes_of_samples_can_be_left_out(answers: dict[str, Answer]) -> None:
    answer = answers["without the model"]
    assert answer.code == 0 and answer.result is not None
    passed = {check["name"] for check in answer.result["calibration"]["passed_checks"]}
    assert "same_distribution" in passed and not {"same_representation", "reference_covered", "ranges_hold"} & passed


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("slice not there", "has no ['place'], which `data.slices` or `data.groups` name"),
        ("no such tensor", "`calibration.representation` 'nothing'"),
        ("pick again", "exists already"),
    ],
)
def test_what_cannot_be_is_an_error_of_the_job(name: str, words: str, answers: dict[str, Answer]) -> None:
    assert answers[name].code == 2
    assert words in answers[name].said and "fix:" in answers[name].said and "Traceback" not in answers[name].said


def test_each_verdict_leaves_a_run_with_its_page(answers: dict[str, Answer]) -> None:
    import json

    runs = [run for run in json.loads(answers["mlflow"].said) if "quantgate.calibration" in run["tags"]]
    kinds = [run["tags"]["quantgate.kind"] for run in runs]
    assert kinds.count("run") == 1 and kinds.count("validation") == 6
    for run in runs:
        assert run["status"] == "FINISHED"
        assert "calibration/calibration.html" in run["artifacts"]
        assert run["metrics"]["calibration_samples"] > 0
    refused = [run for run in runs if run["tags"].get("quantgate.calibration.enough_samples") == "critical"]
    assert len(refused) == 2 and all(run["tags"]["quantgate.outcome"] == "refused" for run in refused)


def test_picked_set_holds_no_evaluation_samples_and_is_accepted(answers: dict[str, Answer], tiny: Tiny) -> None:
    picked, said = answers["picked"], answers["pick"].said
    assert answers["pick"].code == 0, said
    assert "left out: 100 in the evaluation data" in said and "left out: 1 duplicates, or not finite" in said
    with np.load(Path(answers["folder"].said) / "picked.npz") as file, np.load(tiny.evaluation) as evaluation:
        assert file["x"].shape == (96, 64) and file["label"].shape == (96,)
        known = {row.tobytes() for row in evaluation["x"]}
        assert not known & {row.tobytes() for row in file["x"]}
        pool = tiny_samples(600, 14)["label"]
        expected = np.bincount(pool) * 96 / 600
        assert np.abs(np.bincount(file["label"]) - expected).max() <= 1
    assert picked.code == 0 and picked.result is not None and not failed(picked), picked.said
