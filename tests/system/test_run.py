"""The main job on a real registry, a real Prefect server and a small real model, as a user would run it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from conftest import Tiny
from driving import Answer, environment, register_models, run_jobs, write_job

STATIC, DYNAMIC, INT4 = "int8-static-minmax-pc@ort-cpu", "int8-dynamic-pc@ort-cpu", "int4-g32-rtn@ort-cpu"
# Without smaller forms of what passes.
BY_SIZE = {"objective": "size", "budgets": {"recovery": 0}}
# On this model both place the same pairs.
COPY = "int8-static-minmax-pc-all@ort-cpu"
FP8 = "fp8-amax-pc@ort-cpu"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> tuple[Path, dict[str, Answer]]:
    """A state folder in which the runs below happened, one after the other."""
    root = tmp_path_factory.mktemp("world")
    state = root / "state"
    register_models(state, tiny.model.parent, every=True)
    biased = dict(np.load(tiny.calibration))
    keep = biased["label"] != 2
    np.savez(root / "one_class_missing.npz", **{name: array[keep] for name, array in biased.items()})

    def job(name: str, **changes: object) -> str:
        return str(write_job(root / f"{name}.yaml", tiny.job(**({"source": "models:/tiny/1"} | changes))))

    for role in ("calibration", "evaluation"):
        arrays = dict(np.load(getattr(tiny, role)))
        np.savez(root / f"{role}.npz", **arrays, place=np.where(np.arange(len(arrays["x"])) % 3, "inside", "outside"))
    placed = {role: str(root / f"{role}.npz") for role in ("calibration", "evaluation")} | {"slices": ["place"]}
    first = job("first", candidates=[STATIC, DYNAMIC, FP8], data=placed)
    data = {"calibration": str(root / "one_class_missing.npz"), "evaluation": str(tiny.evaluation)}
    calls: list[dict[str, object]] = [
        {"name": "trial", "job": first, "promote": False},
        {"name": "first", "job": first},
        {"name": "again", "job": first},
        {"name": "none", "job": job("none", candidates=[STATIC, COPY, INT4], gates={"min_speedup": 1000.0})},
        {"name": "refused", "job": job("refused", data=data)},
        {"name": "file", "job": job("file", source=str(tiny.model))},
        {"name": "torch", "job": job("torch", source="models:/tiny-torch/1")},
        {
            "name": "challenger",
            "job": job("challenger", source="models:/tiny-torch/1", candidates=[INT4], **BY_SIZE),
        },
        {"name": "weaker", "job": job("weaker", source="models:/tiny-torch/1", candidates=[STATIC], objective="size")},
        {"name": "rollback", "command": "rollback", "model": "tiny-torch", "target": "ort-cpu"},
        {"name": "rolled back", "job": str(root / "challenger.yaml")},
        {
            "name": "tagged",
            "command": "tag",
            "model": "tiny-quantized",
            "tag": "quantgate.device",
            "value": "Server CPU [avx2] x16; onnxruntime 1.20.0",
        },
        {"name": "other device", "job": job("other device", candidates=[INT4], **BY_SIZE)},
        {"name": "replaced", "job": str(root / "other device.yaml"), "replace_device": True},
        {"name": "elsewhere", "job": job("elsewhere", target="tensorrt", candidates="default")},
    ]
    # MLflow's own switch, with a sample each second.
    sampled = {"MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "true", "MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL": "1"}
    return state, run_jobs(state, root / "runs", calls, **sampled)


def registry(state: Path, query: str) -> list[tuple[Any, ...]]:
    """Rows of the registry's own database: what is there, whoever asks."""
    with sqlite3.connect(state / "mlflow.db") as database:
        return database.execute(query).fetchall()


def test_mlflows_switch_logs_system_metrics(world: tuple[Path, dict[str, Answer]]) -> None:
    """Of the parent runs alone; a run that found all its work in the store may end before the first sample is logged."""
    query = "SELECT DISTINCT run_uuid FROM metrics WHERE key = 'system/cpu_utilization_percentage'"
    sampled = {run for (run,) in registry(world[0], query)}
    kinds = dict(registry(world[0], "SELECT run_uuid, value FROM tags WHERE key = 'quantgate.kind'"))
    assert sampled and {kinds.get(run) for run in sampled} == {"run"}


def test_every_result_follows_the_published_schema(world: tuple[Path, dict[str, Answer]]) -> None:
    schema = json.loads((Path(__file__).parents[2] / "docs" / "result.schema.json").read_text())
    for name, answer in world[1].items():
        if name in ("rollback", "tagged"):
            continue
        assert answer.result is not None, (name, answer.said)
        jsonschema.validate(answer.result, schema)


@pytest.mark.parametrize(
    ("name", "code", "outcome"),
    [
        ("trial", 0, "winner"),
        ("first", 0, "promoted"),
        ("again", 0, "promoted"),
        ("none", 3, "no_variant"),
        ("refused", 4, "refused"),
        ("file", 0, "winner"),
        ("torch", 0, "promoted"),
        ("challenger", 0, "promoted"),
        ("weaker", 3, "no_variant"),
        ("rolled back", 3, "no_variant"),
        ("other device", 3, "no_variant"),
        ("replaced", 0, "promoted"),
        ("elsewhere", 3, "no_variant"),
    ],
)
def test_outcome_and_exit_code(world: tuple[Path, dict[str, Answer]], name: str, code: int, outcome: str) -> None:
    answer = world[1][name]
    assert answer.result is not None
    assert (answer.code, answer.result["outcome"]) == (code, outcome), answer.said
    assert "Traceback" not in answer.said


def test_copy_of_an_artifact_is_judged_once(world: tuple[Path, dict[str, Answer]]) -> None:
    """One measurement, one verdict, one outcome; the names of both stand in the document, in MLflow and in the log."""
    state, answers = world
    result, said = answers["none"].result, answers["none"].said
    assert result is not None
    first, copy, other = result["candidates"]
    assert (first["copies"], copy["copies"], other["copies"]) == ([COPY], [], [])
    assert first["verdicts"] and (copy["outcome"], copy["verdicts"], copy["latencies"]) == ("refused", [], [])
    assert copy["refusal"] == {"kind": "copy", "reason": f"the same artifact as {STATIC}, which is judged for both"}
    assert "of 2 candidates" in result["reason"] and "1 further candidate made the same artifact" in result["reason"]
    assert said.count(f"measured {STATIC}:") == 1 and f"measured {COPY}:" not in said
    parent = Path(result["report"]).parent.name
    nested = f"SELECT run_uuid FROM tags WHERE key = 'mlflow.parentRunId' AND value = '{parent}'"
    assert registry(state, f"SELECT value FROM tags WHERE key = 'quantgate.copies' AND run_uuid IN ({nested})") == [
        (COPY,)
    ]
    assert registry(state, f"SELECT name, status FROM runs WHERE run_uuid IN ({nested}) ORDER BY name") == [
        (name, "FINISHED") for name in sorted((STATIC, COPY, INT4))
    ]


def test_progress_compares_the_same_samples(world: tuple[Path, dict[str, Answer]]) -> None:
    """The baseline and each variant on the samples that choose, with their number and the value that is judged."""
    result, said = world[1]["none"].result, world[1]["none"].said
    assert result is not None
    (n,) = {verdict["n"] for verdict in result["candidates"][0]["verdicts"] if verdict["gate"] == "drop"}
    assert n < 2000
    assert f"baseline in ort-cpu: accuracy {result['baseline']['value']:.4f} on {n} samples" in said
    for one in (result["candidates"][0], result["candidates"][2]):
        assert f"made {one['name']}: accuracy {one['metric_value']:.4f} on {n} samples, " in said


def test_each_candidate_ends_for_its_own_reason(world: tuple[Path, dict[str, Answer]]) -> None:
    result = world[1]["first"].result
    assert result is not None
    by_name = {candidate["name"]: candidate for candidate in result["candidates"]}
    assert by_name[FP8]["outcome"] == "failed"
    failed = {verdict["gate"] for verdict in by_name[FP8]["verdicts"] if verdict["outcome"] == "fail"}
    assert failed == {"coverage", "real_kernels"}
    assert by_name[FP8]["latency_p50_ms"] is None, "a simulation's latency would be a lie"
    assert by_name[STATIC]["coverage_macs"] == pytest.approx(1.0)
    assert 0 < by_name[STATIC]["coverage_time"] <= 1
    assert (by_name[STATIC]["unfused"], by_name[STATIC]["inserted"]) == ([], {})
    assert by_name[FP8]["coverage_time"] == 0 and len(by_name[FP8]["unfused"]) >= 4
    sane = {"same_outputs", "not_constant", "deterministic", "finite_outputs"}
    assert sane <= {verdict["gate"] for verdict in by_name[STATIC]["verdicts"] if verdict["outcome"] == "pass"}
    assert result["chosen"] in (STATIC, DYNAMIC)


def test_the_winner_was_confirmed_and_the_registry_says_so(world: tuple[Path, dict[str, Answer]]) -> None:
    """Both halves are disjoint and of one file; verdicts of both are tags of the version, with what they rest on."""
    state, answers = world
    result = answers["first"].result
    assert result is not None
    (chosen,) = [candidate for candidate in result["candidates"] if candidate["name"] == result["chosen"]]
    gates = {verdict["gate"]: verdict for verdict in chosen["verdicts"]}
    again = {"confirmed_drop", "confirmed_worst_slice", "confirmed_finite"}
    assert again | {"drop", "worst_slice", "same_outputs", "not_constant", "deterministic"} <= set(gates)
    assert chosen["confirmed"]["n"] + gates["drop"]["n"] == 2000 and 900 < chosen["confirmed"]["n"] < 1100
    assert gates["confirmed_drop"]["confidence"] == pytest.approx(1 - 0.05 / 3)
    assert {(found["column"], found["group"]) for found in chosen["slices"]} == {
        ("place", "inside"),
        ("place", "outside"),
    }
    assert sum(found["n"] for found in chosen["slices"]) == gates["drop"]["n"]
    assert f"on {chosen['confirmed']['n']} samples that did not choose it" in result["reason"]
    tags = "SELECT key, value FROM model_version_tags WHERE name = 'tiny-quantized' AND version = 1 AND key LIKE "
    tags += "'quantgate.verdict.%'"
    told = {key.removeprefix("quantgate.verdict."): json.loads(value) for key, value in registry(state, tags)}
    assert set(told) == set(gates)
    assert told["confirmed_drop"]["evidence"] == "accuracy/scores.npy" and told["drop"]["outcome"] == "pass"
    logged = {str(path.relative_to(path.parents[1])) for path in (state / "mlartifacts").rglob("*.npy")}
    assert {"accuracy/scores.npy", "evaluation/confirmation.npy"} <= logged
    assert list((state / "mlartifacts").rglob("verdicts.json")) and list((state / "mlartifacts").rglob("samples.npz"))


def test_a_second_run_makes_nothing_again_and_keeps_the_champion(world: tuple[Path, dict[str, Answer]]) -> None:
    state, answers = world
    first, again = answers["first"].result, answers["again"].result
    assert first is not None
    assert again is not None
    assert all(candidate["cached"] for candidate in again["candidates"])
    assert again["champion"]["version"] == first["champion"]["version"] == again["champion"]["previous"]
    assert first["champion"]["previous"] is None
    # The second version is that of the run "replaced".
    assert registry(state, "SELECT COUNT(*) FROM model_versions WHERE name = 'tiny-quantized'") == [(2,)]


def test_runs_without_promotion_register_nothing(world: tuple[Path, dict[str, Answer]]) -> None:
    state, answers = world
    for name in ("trial", "none", "refused", "file", "elsewhere"):
        assert answers[name].result is not None
        assert answers[name].result["champion"] is None
    names = {name for (name,) in registry(state, "SELECT name FROM registered_models")}
    assert {name for name in names if name.endswith("-quantized")} == {"tiny-quantized", "tiny-torch-quantized"}


def test_the_sources_version_says_what_its_last_run_came_to(world: tuple[Path, dict[str, Answer]]) -> None:
    """For each target on its own, with the MLflow run that has the evidence; a file's run and a trial leave it as it is."""
    state, answers = world
    for name, target, last in (
        ("tiny", "ort-cpu", "replaced"),
        ("tiny", "tensorrt", "elsewhere"),
        ("tiny-torch", "ort-cpu", "rolled back"),
    ):
        rows = registry(state, f"SELECT key, value FROM model_version_tags WHERE name = '{name}' AND version = 1")
        told = {key.removeprefix(f"quantgate.{target}."): value for key, value in rows}
        result = answers[last].result
        assert result is not None
        assert (told["status"], told["reason"], told["error"]) == (result["outcome"], result["reason"], "")
        query = f"SELECT value FROM tags WHERE key = 'quantgate.outcome' AND run_uuid = '{told['run']}'"
        assert registry(state, query) == [(result["outcome"],)] and len(told["flow_run"]) == 36


def test_the_time_in_low_precision_is_recorded_with_its_kernels(world: tuple[Path, dict[str, Answer]]) -> None:
    """As metrics of the candidate's run, and the list of all kernels as a file of it."""
    state, _ = world
    keys = {key for (key,) in registry(state, "SELECT DISTINCT key FROM metrics")}
    assert {"coverage_time", "unfused_kernels", "unfused_time", "inserted_kernels", "inserted_time"} <= keys
    assert list(state.rglob("artifacts/coverage/kernels.json"))


def test_what_the_fixed_ranges_cut_off_goes_with_the_variant(world: tuple[Path, dict[str, Answer]], tiny: Tiny) -> None:
    """The figure to watch in production: in the result, in words at the version, and by tensor in the manifest."""
    state, answers = world
    result = answers["torch"].result
    assert result is not None and result["chosen"] == STATIC
    (chosen,) = result["candidates"]
    manifests = [json.loads(path.read_text()) for path in (state / "mlartifacts").rglob("manifest.json")]
    ours = (result["source"]["digest"], STATIC)
    (ranges,) = [m["ranges"] for m in manifests if (m["source_digest"], m["candidate"]) == ours]
    tags = "SELECT value FROM model_version_tags WHERE key = 'quantgate.saturation' AND name = 'tiny-torch-quantized'"
    ((told,),) = registry(state, f"{tags} AND version = {result['champion']['version']}")
    worst = max(ranges, key=lambda name: ranges[name]["share_outside"])
    assert chosen["saturation_max"] == ranges[worst]["share_outside"] > 0
    assert f"of the values of {worst} " in told
    evaluation = np.load(tiny.evaluation)["x"]
    outside = (evaluation < ranges["x"]["low"]) | (evaluation > ranges["x"]["high"])
    # Of 384 of the 2,000 samples: near the share of all.
    assert ranges["x"]["share_outside"] == pytest.approx(outside.mean(), abs=3e-4)


def test_lineage_tags_tie_variant_to_source_data_and_hardware(world: tuple[Path, dict[str, Answer]]) -> None:
    state, answers = world
    # Version 1 has the device that the test wrote into its tags.
    result = answers["replaced"].result
    assert result is not None
    tags = dict(
        registry(state, "SELECT key, value FROM model_version_tags WHERE name = 'tiny-quantized' AND version = 2")
    )
    assert tags["quantgate.source_digest"] == result["source"]["digest"]
    assert tags["quantgate.candidate"] == result["chosen"]
    assert result["inventory"]["cpu"] in tags["quantgate.device"]
    assert set(json.loads(tags["quantgate.verdicts"]).values()) == {"pass"}
    aliases = registry(state, "SELECT name, alias, version FROM registered_model_aliases ORDER BY name")
    assert aliases[0] == ("tiny-quantized", "champion-ort-cpu", 2)


def test_mlflow_holds_a_parent_run_and_one_child_per_candidate(world: tuple[Path, dict[str, Answer]]) -> None:
    state, answers = world
    result = answers["first"].result
    assert result is not None
    parent = Path(result["report"]).parent.name
    nested = registry(state, f"SELECT run_uuid FROM tags WHERE key = 'mlflow.parentRunId' AND value = '{parent}'")
    assert len(nested) == len(result["candidates"])
    assert registry(state, f"SELECT COUNT(*) FROM inputs WHERE destination_id = '{parent}'") == [(2,)]
    kept = {path.name for path in (state / "mlartifacts" / parent / "artifacts").rglob("*") if path.is_file()}
    assert {"report.html", "pareto.png", "result.json", "candidates.json", "calibration.html", "ranges.csv"} <= kept


def test_the_champion_gives_way_to_a_better_variant_alone(world: tuple[Path, dict[str, Answer]]) -> None:
    state, answers = world
    challenger, weaker = answers["challenger"].result, answers["weaker"].result
    assert challenger is not None
    assert weaker is not None
    assert (challenger["champion"]["previous"], challenger["champion"]["version"]) == ("1", "2")
    assert "the present champion stays" in weaker["reason"]
    verdict = weaker["candidates"][0]["verdicts"][-1]
    assert (verdict["gate"], verdict["outcome"]) == ("beats_champion", "fail")
    journals = (
        "SELECT value FROM model_version_tags WHERE name = 'tiny-torch-quantized' AND key = 'quantgate.promotion'"
    )
    told = [json.loads(value) for (value,) in registry(state, f"{journals} ORDER BY version")]
    assert [(one["phase"], one.get("previous")) for one in told] == [("done", None), ("done", "1")]


def test_what_was_rolled_back_is_not_promoted_by_the_next_run(world: tuple[Path, dict[str, Answer]]) -> None:
    """It passes everything else, and nothing of it is made or registered again."""
    state, answers = world
    assert (
        answers["rollback"].code == 0
        and "version 2 was left, and version 1 is the champion now" in answers["rollback"].said
    )
    result = answers["rolled back"].result
    assert result is not None
    (candidate,) = result["candidates"]
    assert candidate["cached"]
    assert [gate["gate"] for gate in candidate["verdicts"] if gate["outcome"] != "pass"] == ["not_rolled_back"]
    champion = "SELECT version FROM registered_model_aliases WHERE name = 'tiny-torch-quantized'"
    assert registry(state, champion) == [(1,)]
    assert registry(state, "SELECT COUNT(*) FROM model_versions WHERE name = 'tiny-torch-quantized'") == [(2,)]


def test_champion_of_another_device_is_replaced_only_on_request(world: tuple[Path, dict[str, Answer]]) -> None:
    """A warning before the baseline is measured, a verdict that names both devices, and no comparison of speeds."""
    answers = world[1]
    refused, replaced = answers["other device"].result, answers["replaced"].result
    assert refused is not None and replaced is not None
    (candidate,) = refused["candidates"]
    against = [verdict for verdict in candidate["verdicts"] if verdict["outcome"] != "pass"]
    assert [verdict["gate"] for verdict in against] == ["champion_device"]
    here = f"{refused['inventory']['cpu']} [{' '.join(refused['inventory']['isa'])}]"
    reason = f"the champion was approved on Server CPU [avx2]; this machine is {here}; to replace it, run with --replace-device"
    assert against[0]["reason"] == reason and reason in refused["reason"]
    assert "beats_champion" not in {verdict["gate"] for verdict in candidate["verdicts"]}
    warning = answers["other device"].said.index("champion version 1 stays whatever wins")
    assert warning < answers["other device"].said.index("made ")
    (candidate,) = replaced["candidates"]
    verdicts = {verdict["gate"]: verdict for verdict in candidate["verdicts"]}
    assert verdicts["champion_device"]["reason"].startswith(
        "replaced on request: the champion was approved on Server CPU [avx2]"
    )
    assert verdicts["beats_champion"]["outcome"] == "pass" and replaced["champion"]["previous"] == "1"


def test_refused_data_leaves_a_page_and_says_what_to_do(world: tuple[Path, dict[str, Answer]]) -> None:
    result = world[1]["refused"].result
    assert result is not None
    failed = {check["name"]: check for check in result["calibration"]["failed_checks"]}
    assert failed["labels_covered"]["severity"] == "critical"
    assert failed["labels_covered"]["fix"]
    assert result["candidates"] == []


def test_the_prefect_server_has_the_run_with_its_artifacts(world: tuple[Path, dict[str, Answer]]) -> None:
    with sqlite3.connect(world[0] / "prefect" / "prefect.db") as database:
        states = [name for (name,) in database.execute("SELECT state_name FROM flow_run ORDER BY start_time")]
        keys = {key for (key,) in database.execute("SELECT DISTINCT key FROM artifact WHERE key IS NOT NULL")}
    assert states[:5] == ["Winner", "Promoted", "Promoted", "NoVariant", "Refused"]
    assert {"verdict", "candidates", "report"} <= keys


def test_exported_torch_program_agrees_with_the_onnx_model(world: tuple[Path, dict[str, Answer]]) -> None:
    answers = world[1]
    assert answers["torch"].result is not None
    assert answers["first"].result is not None
    value = answers["torch"].result["baseline"]["value"]
    assert value == pytest.approx(answers["first"].result["baseline"]["value"], abs=1e-3)


def test_killed_run_resumes_without_making_anything_twice(tiny: Tiny, tmp_path: Path) -> None:
    """SIGKILL as soon as the first variant is in the store; the next run takes it from there and ends as it should."""
    state = tmp_path / "state"
    state.mkdir()
    job = write_job(tmp_path / "job.yaml", tiny.job(candidates=[STATIC, DYNAMIC, INT4]))
    command = [sys.executable, "-m", "flows.cli.app", "run", str(job)]
    process = subprocess.Popen(
        command, env=environment(state), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 300
    while not (made := list((state / "store" / "variant").glob("[0-9a-f]*/record.json"))):
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline, "no variant was made in five minutes"
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # Of the folders: a record is touched when it is read.
    stamps = {path: path.parent.stat().st_mtime_ns for path in made}
    answer = run_jobs(state, tmp_path / "runs", [{"name": "resumed", "job": str(job)}])["resumed"]
    assert answer.result is not None
    assert (answer.code, answer.result["outcome"]) == (0, "winner"), answer.said
    assert {path: path.parent.stat().st_mtime_ns for path in made} == stamps
    variants = list((state / "store" / "variant").glob("[0-9a-f]*/record.json"))
    assert len(variants) == 3
    assert not [path for path in variants if path not in made and path.parent.stat().st_mtime_ns < max(stamps.values())]
