"""Memory and disk of a run: measured with its children, and refused beyond the budgets of the job or what there is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from conftest import Tiny
from driving import run_jobs, write_job

from tasks.measure.metrics.reduction import ReductionSize
from tasks.run.footprint import Footprint
from tasks.storage.product import Product
from tasks.storage.store import Store
from tasks.trials.gather import trial_of
from validators.errors import EXIT_BAD_INPUT, BudgetExceeded
from validators.job.job import Budgets

HELD_MB = 150
CHILD = f"held = bytearray(b'x' * {HELD_MB * 10**6}); print('held', flush=True); input()"

# Peaks of a run that begins after one allocation, before and after another.
PEAKS = """
import sys
from pathlib import Path
from tasks.run.footprint import Footprint
from tasks.storage.store import Store
from validators.job.job import Budgets

def hold():
    bytearray(b"x" * int(sys.argv[2]) * 10**6)

hold()
found = Footprint(Budgets(), Store(Path(sys.argv[1])))
with found.measured():
    print(found.read().peak_memory_mb)
    hold()
    print(found.read().peak_memory_mb)
"""


def footprint(folder: Path, **budgets: float) -> Footprint:
    return Footprint(Budgets(**budgets), Store(folder / "store"))  # type: ignore[arg-type]  # its other keys are no floats


def test_the_memory_of_children_counts(tmp_path: Path) -> None:
    found = footprint(tmp_path)
    own = psutil.Process().memory_info().rss / 1e6
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"held\n"
        held = found.read().peak_memory_mb
        child.communicate(b"\n")
    assert held >= 0.9 * own + HELD_MB
    assert found.read().peak_memory_mb == held, "a peak stays"


def test_a_peak_begins_with_the_run(tmp_path: Path) -> None:
    """In a process of its own: children of the tests' process would count in one reading and not in the other."""
    command = [sys.executable, "-c", PEAKS, str(tmp_path), str(HELD_MB)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    before, after = map(float, done.stdout.split())
    assert after >= before + 0.9 * HELD_MB


@pytest.mark.parametrize(
    ("budgets", "needed", "words"),
    [
        ({"memory_mb": 1.0}, None, "at most 1 MB, `budgets.memory_mb`"),
        ({"memory_mb": 1e9}, ReductionSize(2 * 10**15, 0), "at most 1,000,000,000 MB, `budgets.memory_mb`"),
        ({"disk_mb": 2.0}, ReductionSize(0, 3_000_000), "at most 2 MB, `budgets.disk_mb`"),
        ({}, ReductionSize(10**18, 0), "what this machine has"),
        ({}, ReductionSize(0, 10**18), "what this machine has"),
    ],
)
def test_what_passes_a_budget_is_refused(
    budgets: dict[str, float], needed: ReductionSize | None, words: str, tmp_path: Path
) -> None:
    with pytest.raises(BudgetExceeded, match=words) as caught:
        footprint(tmp_path, **budgets).check("the metric", needed)
    assert "(the metric)" in caught.value.found and caught.value.exit_code == EXIT_BAD_INPUT


def test_what_fits_is_allowed_and_counted(tmp_path: Path) -> None:
    found = footprint(tmp_path, memory_mb=1e6, disk_mb=2.0)
    found.check("the metric")
    found.check("the metric", ReductionSize(1000, 1_500_000))
    assert found.read().disk_mb == 1.5


def test_an_entry_beyond_the_disk_budget_is_not_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    found = Footprint(Budgets(disk_mb=1.0), store)

    def make(size: int) -> bool:
        def maker(folder: Path) -> str:
            (folder / "file").write_bytes(b"x" * size)
            return "made"

        return store.make(Product("thing", (size,), str, maker))[1]

    assert not make(600_000) and make(600_000), "found again, it is not counted again"
    with pytest.raises(BudgetExceeded, match=r"`budgets\.disk_mb`"):
        make(500_000)
    assert not make(300_000)
    assert found.read().disk_mb == pytest.approx(0.9, abs=0.05)
    assert sum(file.stat().st_size for file in tmp_path.rglob("file")) == 900_000


def test_a_candidate_beyond_a_budget_is_refused_for_good() -> None:
    trial = trial_of("fp32-fused@ort-cpu", BudgetExceeded(found="12 MB", expected="at most 1 MB", fix="allow more"))
    assert trial.refusal is not None and trial.refusal.kind == "unsupported"
    assert trial.refusal.reason == "12 MB; expected at most 1 MB; allow more"


@pytest.mark.slow
def test_runs_hold_their_budgets_and_report_them(tiny: Tiny, tmp_path: Path) -> None:
    """Without room for a variant it is refused; without memory for the baseline the run ends in an error of the job."""
    base = tiny.job() | {"candidates": ["int8-dynamic-pc@ort-cpu"]}
    # The last run finds the page on its data in the store, and has room for the baseline's results and half of a variant.
    jobs: dict[str, dict[str, object]] = {
        "free": {"metric": "accuracy"},
        "no memory": {"metric": "agreement", "budgets": {"memory_mb": 10.0}},
        "no disk": {"metric": "agreement", "budgets": {"disk_mb": 0.05 + tiny.model.stat().st_size / 2e6}},
    }
    calls: list[dict[str, object]] = [
        {"name": name, "job": str(write_job(tmp_path / f"{name}.yaml", base | job))} for name, job in jobs.items()
    ]
    answers = run_jobs(tmp_path / "state", tmp_path / "runs", calls)
    free, no_memory, no_disk = (answers[name].result for name in jobs)
    assert free is not None and no_memory is not None and no_disk is not None

    store = tmp_path / "state" / "store"
    # The document rounds to tenths of a megabyte.
    assert size_of(store / "calibration-verdict") < free["footprint"]["disk_mb"] * 1e6 <= size_of(store) + 0.05e6
    assert free["footprint"]["peak_memory_mb"] > 100
    assert no_memory["error"]["kind"] == "BudgetExceeded" and "`budgets.memory_mb`" in no_memory["error"]["expected"]
    assert answers["no memory"].code == EXIT_BAD_INPUT
    (candidate,) = no_disk["candidates"]
    assert candidate["refusal"]["kind"] == "unsupported" and "`budgets.disk_mb`" in candidate["refusal"]["reason"]


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
