"""`quantgate sensitivity`: a planted part comes first, by its noise and by the metric, and the cost is bounded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Hard, Tiny
from driving import environment, write_job


def call(folder: Path, job: dict[str, object], *options: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "flows.cli.app", "sensitivity", str(write_job(folder / "job.yaml", job)), *options]
    done = subprocess.run(command, env=environment(folder / "state"), capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def found(hard: Hard, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("sensitivity")
    code, said, errors = call(folder, hard.job(hard.model), "--result", str(folder / "parts.json"))
    assert code == 0, errors
    recipes = {one["recipe"]: one for one in json.loads((folder / "parts.json").read_text(encoding="utf-8"))}
    assert set(recipes) == {"int8-static-minmax-pc@ort-cpu", "int8-dynamic-pc@ort-cpu", "int4-g32-rtn@ort-cpu"}
    assert all(recipe in said for recipe in recipes)
    return recipes


def test_outlier_channels_make_their_readers_most_sensitive(found: dict[str, Any]) -> None:
    """Channels 300 to 800 times as large are hard for ranges of activations, which the second layer reads."""
    parts = found["int8-static-minmax-pc@ort-cpu"]["parts"]
    assert {parts[0]["name"], parts[1]["name"]} == {"first", "second"}
    assert parts[0]["noise"] > 3 * parts[2]["noise"]
    assert parts[0]["drop"]["low"] > 0  # and the metric sees it
    assert found["int8-static-minmax-pc@ort-cpu"]["drop"]["value"] >= parts[0]["drop"]["value"] - 0.05


def test_every_part_is_ranked_once_for_each_recipe(found: dict[str, Any]) -> None:
    for effects in found.values():
        names = [part["name"] for part in effects["parts"]]
        assert sorted(names) == ["first", "head", "second", "third"]
        noises = [part["noise"] for part in effects["parts"]]
        assert noises == sorted(noises, reverse=True)


def test_the_metric_costs_one_evaluation_a_recipe(found: dict[str, Any]) -> None:
    """With all together five models, each on a fifth of the 2,000 samples."""
    assert {effects["samples"] for effects in found.values()} == {400}


def test_the_picture_names_the_noisiest_parts(tiny: Tiny, tmp_path: Path) -> None:
    code, _, errors = call(tmp_path, tiny.job(), "--picture", str(tmp_path / "parts.svg"))
    assert code == 0, errors
    drawn = (tmp_path / "parts.svg").read_text(encoding="utf-8")
    assert "1. first_matmul" in drawn
    assert "2. second_matmul" in drawn


def test_a_job_without_calibration_data_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    given = [{"name": "a", "file": str(tiny.model), "engine": "ort-cpu"}]
    job = tiny.job(data={"evaluation": str(tiny.evaluation)}, candidates=[], given=given)
    code, _, errors = call(tmp_path, job)
    assert code == 2
    assert "a job without `data.calibration`" in errors
