"""The commands that look at runs and models, on runs that really happened; and a run that Ctrl-C cuts short."""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from conftest import Tiny
from docs_pages import ROOT
from driving import Answer, environment, register_models, run_jobs, write_job

from tasks.champion.promotable import check_promotable
from tasks.records.run_lookup import Recorded, fetch_report, find_recorded, latest, recorded_job
from tasks.records.run_pages import compare_runs
from tasks.registry.mlflow_registry import connect
from tasks.reporting import formats
from validators.errors import JobError
from validators.job.read_job import read_job
from validators.targets import facts_of

STATIC, DYNAMIC, INT4 = "int8-static-minmax-pc@ort-cpu", "int8-dynamic-pc@ort-cpu", "int4-g32-rtn@ort-cpu"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> tuple[Path, dict[str, Answer]]:
    """What each command answered, one after the other in one process."""
    root = tmp_path_factory.mktemp("world")
    register_models(root / "state", tiny.model.parent, every=True)
    # What whoever filled in the job file that `init` writes would have put beside it.
    for role in ("calibration", "evaluation"):
        shutil.copy(getattr(tiny, role), root / f"{role}.npz")
    job = str(write_job(root / "first.yaml", tiny.job(source="models:/tiny/1", candidates=[STATIC, DYNAMIC])))
    file = str(write_job(root / "file.yaml", tiny.job()))
    gone = str(write_job(root / "gone.yaml", tiny.job(source="models:/nothing/1")))
    new, torch = str(root / "new.yaml"), str(root / "torch.yaml")
    given: dict[str, list[str]] = {
        "no run": ["report", "last"],
        "gone": ["run", gone, "--json"],
        "without a report": ["report", "last", "--json"],
        "init": ["init", "models:/tiny/1", "--out", new, "--target", "ort-cpu"],
        "init file": ["init", str(tiny.model), "--out", f"{root}/of-a-file.yaml"],
        "init no file": ["init", f"{root}/none.onnx", "--out", f"{root}/no.yaml"],
        "init again": ["init", "models:/tiny/1", "--out", new],
        "init torch": ["init", "models:/tiny-torch/1", "--out", torch, "--json"],
        "init pickled": ["init", "models:/tiny-pickled/1", "--out", f"{root}/no.yaml"],
        "init function": ["init", "models:/tiny-function/1", "--out", f"{root}/no.yaml"],
        "init nothing": ["init", "models:/nothing/1", "--out", f"{root}/no.yaml"],
        "init version": ["init", "models:/tiny/9", "--out", f"{root}/no.yaml"],
        "init alias": ["init", "models:/tiny@nobody", "--out", f"{root}/no.yaml"],
        "init words": ["init", "tiny", "--out", f"{root}/no.yaml"],
        "candidates": ["candidates", new],
        "validate": ["validate", new, "--json"],
        "promote validation": ["promote", "last", "--json"],
        "file": ["run", file, "--json"],
        "promote file": ["promote", "last"],
        "trial": ["run", job, "--no-promote", "--json", "--result", f"{root}/trial.json"],
        "status of the trial": ["status"],
        "report": ["report", "last", "--out", f"{root}/page/report.html"],
        "report to a folder": ["report", "last", "--out", str(root)],
        "report of nobody": ["report", "0" * 32],
        "report of words": ["report", "the last one"],
        "promote": ["promote", "last", "--result", f"{root}/promoted.json"],
        "promote again": ["promote", "last"],
        "status": ["status", "--json"],
        "status of the model": ["status", "tiny-quantized"],
        "status of another": ["status", "fraud"],
        "all runs": ["report", "--json"],
        "compare one": ["compare", "last", "last"],
        "compare nobody": ["compare", "last", "0" * 32],
        "rollback": ["rollback", "tiny", "--target", "ort-cpu", "--to", "0", "--json"],
        "rollback nothing": ["rollback", "nothing", "--target", "ort-cpu"],
        "retention": ["retention", "--json"],
        "watch nothing": ["watch", "no-such-job"],
    }
    calls: list[dict[str, object]] = [{"name": name, "arguments": call} for name, call in given.items()]
    return root, run_jobs(root / "state", root / "runs", calls)


def document(answer: Answer) -> Any:
    """What went to standard output, which must be one document; that of a promotion is in a file beside its text."""
    written = re.search(r"^report:    (.*)/state/reports/", answer.out, re.MULTILINE)
    return json.loads(Path(written[1], "promoted.json").read_text() if written else answer.out)


def test_run_validate_and_promote_print_the_result_document(world: tuple[Path, dict[str, Answer]]) -> None:
    root, answers = world
    schema = json.loads((ROOT / "docs" / "result.schema.json").read_text())
    expected = {
        "gone": (2, "error"),
        "validate": (0, "accepted"),
        "file": (0, "winner"),
        "trial": (0, "winner"),
        "promote": (0, "promoted"),
    }
    for name, (code, outcome) in expected.items():
        found = document(answers[name])
        jsonschema.validate(found, schema)
        assert (answers[name].code, found["outcome"]) == (code, outcome), answers[name].said
    assert json.loads((root / "trial.json").read_text()) == document(answers["trial"])
    assert "no models:/nothing/1 in the registry" in document(answers["gone"])["error"]["found"]


def test_runs_compare_by_what_is_recorded_of_them(world: tuple[Path, dict[str, Answer]], tmp_path: Path) -> None:
    """The trial beside the promotion and the run on a file: their results, with the jobs that tell them apart."""
    root, answers = world
    page = tmp_path / "page.html"
    with connect(f"sqlite:///{root}/state/mlflow.db") as client:
        runs = [run for run in latest(client, 20) if run.outcome in ("winner", "promoted")]
        assert len(runs) == 3
        compared = compare_runs(client, [run.id[:12] for run in runs], page)
    assert compared == runs
    text = html.unescape(page.read_text())
    assert all(document(answers[name])["reason"] in text for name in ("trial", "promote", "file"))
    assert all(f"quantgate report {run.id}" in text for run in runs)


def test_the_page_of_all_runs_leads_to_their_reports(world: tuple[Path, dict[str, Answer]]) -> None:
    root, answers = world
    found = document(answers["all runs"])
    page = root / "state" / "reports" / "index.html"
    assert found["report"] == str(page)
    links = re.findall(r'href="([^"#]+)"', page.read_text())
    assert len(links) == len([run for run in found["runs"] if run["outcome"]]) >= 4
    for name in ("file", "trial", "promote"):
        told = document(answers[name])
        report = Path(told["report"])
        assert f"{report.parent.name}/report.html" in links
        text = html.unescape(report.read_text())
        assert f"{formats.seconds(told['seconds']['total'])} s in all" in text, "one time for one run"
        assert (
            (page.parent / report.parent.name / next(iter(re.findall(r'href="(\.\.[^"]+)"', text)))).resolve().exists()
        )


def test_every_number_is_the_same_everywhere(world: tuple[Path, dict[str, Answer]]) -> None:
    """On the terminal, in the report, in MLflow, in Prefect, on the model card and in the result document of one run."""
    root, answers = world
    told = document(answers["promote"])
    run = Path(told["report"]).parent.name
    with connect(f"sqlite:///{root}/state/mlflow.db") as client:
        artifacts = root / "state" / "mlartifacts" / run / "artifacts"
        version = client.get_model_version("tiny-quantized", told["champion"]["version"])
        experiment = client.get_run(run).info.experiment_id
        nested = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{run}'")
        of_run = client.get_run(run).data.metrics
    assert json.loads((artifacts / "result.json").read_text()) == told
    assert of_run["seconds_total"] == told["seconds"]["total"]
    table = json.loads((artifacts / "candidates.json").read_text())
    recorded = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    with contextlib.closing(sqlite3.connect(root / "state" / "prefect" / "prefect.db")) as database:
        query = "SELECT data FROM artifact WHERE key = ? ORDER BY created"
        in_prefect = json.loads(json.loads(database.execute(query, ("candidates",)).fetchall()[-1][0]))
        markdown = json.loads(database.execute(query, ("verdict",)).fetchall()[-1][0])
    page = html.unescape(re.sub(r"\s*<[^>]+>\s*", " ", Path(told["report"]).read_text()))
    metrics = {one.data.tags["mlflow.runName"]: one.data.metrics for one in nested}
    assert len(told["candidates"]) == 2
    for candidate in told["candidates"]:
        name, drop, speedup = candidate["name"], candidate["metric_drop"], candidate["speedup_p50"]
        figures = {
            "Accuracy": f"{candidate['metric_value']:.3f}",
            "Drop": f"{100 * drop['value']:+.2f} pp (≤ {100 * drop['high']:+.2f} pp)",
            "Speedup": f"{speedup['value']:.2f}x (≥ {speedup['low']:.2f}x)",
            "p50 ms": formats.milliseconds(candidate["latency_p50_ms"]),
            "Size MB": formats.megabytes(candidate["size_bytes"]),
            "Coverage %": f"{100 * candidate['coverage_macs']:.1f}",
        }
        (row,) = (row for row in in_prefect if row["Candidate"].startswith(name))
        assert {heading: row[heading] for heading in figures} == figures
        (raw,) = (row for row in recorded if row["candidate"] == name)
        for key, value in (
            ("metric", candidate["metric_value"]),
            ("drop", drop["value"]),
            ("speedup_p50", speedup["value"]),
        ):
            assert raw[key] == pytest.approx(value), key
        for key in ("latency_p50_ms", "size_bytes", "coverage_macs"):
            assert raw[key] == candidate[key], key
        starts = {
            "terminal": (answers["promote"].out, name, ""),
            "verdict": (markdown, f"| {name}", ""),
            "report": (page, name, "the source at its own precision"),
        }
        for place, (text, head, after) in starts.items():
            start = text.index(head, text.index(after))
            part = " ".join(text[start : start + 900].replace("\\", "").split())
            for figure in figures.values():
                assert figure in part or figure.replace("(", "").replace(")", "") in part, (place, name, figure)
        assert metrics[name]["accuracy"] == pytest.approx(candidate["metric_value"])
        assert metrics[name]["size_bytes"] == candidate["size_bytes"]
        if name == told["chosen"]:
            confirmed = candidate["confirmed"]
            assert f"{confirmed['speedup_p50']['value']:.2f}x" in version.description
            assert f"{confirmed['metric_value']:.3f}" in version.description


def test_promote_takes_the_recorded_job_and_its_finished_work(world: tuple[Path, dict[str, Answer]]) -> None:
    root, answers = world
    trial, promoted = document(answers["trial"]), document(answers["promote"])
    assert promoted["chosen"] == trial["chosen"]
    assert all(candidate["cached"] for candidate in promoted["candidates"])
    assert promoted["champion"]["version"] == "1"
    recorded = [read_job(path) for path in (root / "state" / "mlartifacts").rglob("job.yaml")]
    of_trial = next(job for job in recorded if job.source == "models:/tiny/1" and len(job.candidate_names) == 2)
    assert of_trial == read_job(root / "first.yaml")


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("no run", 2, "no finished run"),
        ("without a report", 2, "no finished run"),
        ("init again", 2, "new.yaml: the file already exists"),
        ("init pickled", 2, "has no exported program (.pt2)"),
        ("init function", 2, "with the MLflow flavors python_function, which are not supported"),
        ("init nothing", 2, "no models:/nothing/1 in the registry"),
        ("init version", 2, "no models:/tiny/9 in the registry"),
        ("init alias", 2, "no models:/tiny@nobody in the registry"),
        ("init no file", 2, "none.onnx: no such file"),
        ("init words", 2, "the model 'tiny' is neither"),
        ("promote validation", 2, "has the outcome accepted"),
        ("promote file", 2, "judged the file "),
        ("promote again", 2, "has the outcome promoted"),
        ("report to a folder", 2, "Is a directory"),
        ("report of nobody", 2, f"no run '{'0' * 32}'"),
        ("report of words", 2, "RUN 'the last one'"),
        ("compare one", 2, "2 names of the same run"),
        ("compare nobody", 2, f"no run '{'0' * 32}'"),
        ("rollback nothing", 2, "'nothing' has no variants for ort-cpu"),
        ("watch nothing", 2, "no-such-job"),
    ],
)
def test_what_cannot_be_says_why(world: tuple[Path, dict[str, Answer]], name: str, code: int, words: str) -> None:
    answer = world[1][name]
    assert answer.code == code, answer.said
    assert words in answer.said and "expected:" in answer.said and "fix:" in answer.said
    assert "Traceback" not in answer.said and not (world[0] / "no.yaml").exists()


def test_the_report_of_a_run_becomes_a_file(world: tuple[Path, dict[str, Answer]]) -> None:
    root, answers = world
    page = root / "page" / "report.html"
    assert answers["report"].out == f"{page}\n"
    original = Path(document(answers["trial"])["report"])
    assert page.read_bytes() == original.read_bytes() and not list(page.parent.glob(".*"))


def test_status_says_what_there_is_and_what_there_is_not(world: tuple[Path, dict[str, Answer]]) -> None:
    answers = world[1]
    before = answers["status of the trial"].out
    assert "champions: none" in before and "under way: none" in before and "approvals: unavailable" in before
    # Side by side, or below each other with their headings on a narrow terminal.
    parts = (
        r"models:/tiny/1",
        r"(Target )?ort-cpu",
        r"(Started \(UTC\) )?\d{4}-\d\d-\d\d \d\d:\d\d",
        r"(Outcome )?winner",
    )
    assert re.search(r"^[0-9a-f]{8}\s+(Source )?" + r"\s+".join(parts), before, re.MULTILINE)
    found = document(answers["status"])
    (champion,) = found["champions"]
    chosen = document(answers["promote"])["chosen"]
    assert (champion["model"], champion["version"], champion["candidate"]) == ("tiny-quantized", "1", chosen)
    assert [run["outcome"] for run in found["runs"]] == ["promoted", "winner", "winner", "accepted"]
    assert found["under_way"] == [] and found["approvals"] is None
    assert "tiny.onnx" not in answers["status of the model"].out
    assert answers["status of another"].out.startswith("nothing yet of fraud at sqlite:")
    assert document(answers["rollback"]) == {
        "name": "tiny-quantized",
        "alias": "champion-ort-cpu",
        "left": "1",
        "now": None,
    }
    assert document(answers["retention"])["deleted"] is False


def test_init_writes_a_job_that_reads_and_whose_data_is_accepted(world: tuple[Path, dict[str, Answer]]) -> None:
    root, answers = world
    text = (root / "new.yaml").read_text()
    assert "#   input   x: float32[batch, 64]\n#   output  logits: float32[batch, 4]\n" in text
    assert "weights in float32" in text and "#   x  float32  [samples, 64]\n#   label " in text
    job = read_job(root / "new.yaml")
    assert (job.source, job.metric, job.candidates) == (
        "models:/tiny/1",
        "accuracy",
        facts_of("ort-cpu").default_candidates,
    )
    assert all(name in answers["candidates"].out for name in job.candidate_names)
    assert document(answers["validate"])["source"]["version"] == "1"
    assert "evaluation: evaluation.npz  # found beside the job or the model\n" in text
    assert answers["init file"].code == 0, answers["init file"].said
    of_file = read_job(root / "of-a-file.yaml")
    assert Path(of_file.source).name == "tiny.onnx" and Path(of_file.source).is_file()
    model = document(answers["init torch"])["model"]
    assert model["flavor"] == "pytorch" and model["precision"] == "float32"
    assert model["inputs"] == [{"name": "x", "dtype": "float32", "shape": [None, 64]}]
    assert read_job(root / "torch.yaml").metric == "accuracy"


RUN = Recorded(
    "0" * 32, "run", "models:/tiny/1", "ort-cpu", "FINISHED", "winner", "fast", STATIC, "a device", "", "", ""
)


def test_a_winner_of_another_device_is_not_promoted_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tasks.champion.promotable.take_inventory", lambda target: SimpleNamespace(device_key="this one")
    )
    with pytest.raises(JobError, match=r"was judged on a device; this machine is this one"):
        check_promotable(RUN)
    check_promotable(replace(RUN, device="this one"))
    monkeypatch.setenv("QUANTGATE_DISPATCH", "pools")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    check_promotable(RUN)


def test_ambiguous_run_names_and_runs_without_files_are_refused(tmp_path: Path) -> None:
    """As older versions left them, or a run that goes on still."""

    class Page(list[Any]):
        token = None

    info = SimpleNamespace(status="FINISHED", start_time=1, end_time=2)
    runs = Page(
        SimpleNamespace(
            info=SimpleNamespace(run_id=f"ab{index}", **vars(info)),
            data=SimpleNamespace(tags={"quantgate.kind": kind}, params={}),
        )
        for index, kind in enumerate(("run", "validation", "candidate"))
    )
    client: Any = SimpleNamespace(
        get_experiment_by_name=lambda name: SimpleNamespace(experiment_id="1"),
        search_runs=lambda **query: runs,
        list_artifacts=lambda run, folder: [],
    )
    with pytest.raises(JobError, match=r"2 runs whose id begins with 'ab': ab0, ab1"):
        find_recorded(client, "ab")
    with pytest.raises(JobError, match=r"finished, winner, has no report"):
        fetch_report(client, RUN, tmp_path / "report.html")
    with pytest.raises(JobError, match=r"has no artifact job\.yaml"):
        recorded_job(client, RUN)


def test_signals_leave_a_run_that_the_same_command_resumes(tiny: Tiny, tmp_path: Path) -> None:
    """SIGTERM, as a container sends it; then SIGINT to the whole group, as a terminal sends it, once a variant is made."""
    state = tmp_path / "state"
    write_job(tmp_path / "job.yaml", tiny.job(candidates=[STATIC, DYNAMIC, INT4]))
    interrupt(state, tmp_path, "calibration-verdict", lambda pid: os.kill(pid, signal.SIGTERM))
    interrupt(state, tmp_path, "variant", lambda pid: os.killpg(pid, signal.SIGINT))
    answers = run_jobs(state, tmp_path / "runs", [{"name": "resumed", "arguments": ["run", f"{tmp_path}/job.yaml"]}])
    assert answers["resumed"].code == 0 and "(from the store)" in answers["resumed"].said, answers["resumed"].said
    with contextlib.closing(sqlite3.connect(state / "mlflow.db")) as database:
        nested = "SELECT run_uuid FROM tags WHERE key = 'mlflow.parentRunId'"
        query = f"SELECT status FROM runs WHERE run_uuid NOT IN ({nested}) ORDER BY start_time"  # constants
        assert [status for (status,) in database.execute(query)] == ["KILLED", "KILLED", "FINISHED"]


def interrupt(state: Path, folder: Path, kind: str, send: Callable[[int], None]) -> None:
    """Run the job of a folder, and send a signal once the store has an entry of a kind."""
    command = [str(Path(sys.executable).with_name("quantgate")), "run", "job.yaml", "--json"]
    process = subprocess.Popen(
        command,
        env=environment(state),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
        # A shell without job control starts background processes, such as these tests, with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 300
    while not list((state / "store" / kind).glob("[0-9a-f]*/record.json")):
        assert process.poll() is None, "the run ended before it could be interrupted"
        assert time.monotonic() < deadline, f"no {kind} was made in five minutes"
        time.sleep(0.02)
    send(process.pid)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in err, err
    error = json.loads(out)["error"]
    assert error["kind"] == "Interrupted" and error["fix"] in err
    resume = error["fix"].rpartition(": ")[2]
    assert resume == "quantgate run job.yaml --json"
