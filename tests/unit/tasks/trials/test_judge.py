"""Judging: constructed scores, outputs and measurements give the verdicts that they must, and the best is chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.trials.gather import trial_of
from tasks.trials.judge import judge_trial, rank_passing
from tasks.trials.judge_on_samples import JudgedData
from validators.errors import InfrastructureError, StorageFull
from validators.gates.intervals import SCORE_INTERVAL
from validators.job.job import Job
from validators.job.read_job import parse_job
from validators.records.journal import RolledBack
from validators.records.latencies import Latency
from validators.records.measurements import Accuracy, Answers, Coverage, Estimate, Sanity
from validators.records.run import Refusal, SessionSettings, Trial, Variant
from validators.samples.datasets import Arrays

NAME = "int8-static-minmax-pc@ort-cpu"
N, BASELINE_BYTES = 1000, 1000
GATES = {"max_drop": 0.02, "min_speedup": 1.2, "min_coverage": 0.5, "max_size_ratio": 1.0}


def make_job(**changes: Any) -> Job:
    """A job whose gates are those of this file."""
    data = {"calibration": "c.npz", "evaluation": "e.npz"}
    return parse_job({"source": "m.onnx", "data": data, "gates": GATES} | changes, base=Path("/jobs"))


@dataclass
class Bench:
    """Files of scores and outputs in a folder of their own."""

    folder: Path
    made: int = 0

    def accuracy(self, scores: Any, *, bad_rows: tuple[int, ...] = (), metric: str = "accuracy") -> Accuracy:
        """The accuracy with these scores; `bad_rows` are samples whose outputs are not finite."""
        self.made += 1
        scores_path, finite_path = (self.folder / f"{kind}_{self.made}.npy" for kind in ("scores", "finite"))
        scores = np.asarray(scores, dtype=np.float64)
        finite = np.ones(len(scores))
        finite[list(bad_rows)] = 2 / 3
        np.save(scores_path, scores[:, None])
        np.save(finite_path, finite)
        return Accuracy(metric, float(scores.mean()), len(scores), scores_path, finite_path)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def right(count: int, n: int = N) -> Any:
    """Scores of which the first `count` are right."""
    return np.arange(n) < count


def latency(speedup: Estimate, *, p50_ms: float = 1.0) -> Latency:
    return Latency(
        batch_size=1,
        p50_ms=p50_ms,
        p95_ms=p50_ms * 1.2,
        p99_ms=None,
        count=160,
        baseline_p50_ms=p50_ms * speedup.value,
        baseline_p95_ms=p50_ms * speedup.value * 1.2,
        baseline_p99_ms=None,
        speedup=speedup,
        pairs=8,
        load_ms=5.0,
        peak_memory_mb=80.0,
        baseline_load_ms=9.0,
        baseline_peak_memory_mb=120.0,
        samples_path=Path("samples.npz"),
    )


def good_trial(accuracy: Accuracy, name: str = NAME, **changes: Any) -> Trial:
    """A trial that passes every gate when its accuracy does."""
    variant = Variant(name, Path("model.onnx"), "0" * 64, 260, SessionSettings("CPUExecutionProvider", 2))
    trial = Trial(
        name,
        variant=variant,
        accuracy=accuracy,
        coverage=Coverage({"QGemm": 90, "Gemm": 10}, ("QGemm",), ("head",), ("CPUExecutionProvider",)),
        latencies=(latency(Estimate(1.5, 1.45, 1.55)),),
    )
    return replace(trial, **changes)


def judge(
    job: Job, trial: Trial, baseline: Accuracy, *, kept: slice | None = None, slices: Arrays | None = None
) -> Trial:
    """The trial as judged beside a baseline, on all rows but those that are `kept` for the confirmation."""
    confirmation = np.zeros(baseline.n, bool)
    confirmation[kept or slice(0)] = True
    return judge_trial(JudgedData(job, baseline, BASELINE_BYTES, confirmation, slices or {}), trial)


def outcomes(trial: Trial) -> dict[str, str]:
    return {verdict.gate: verdict.outcome for verdict in trial.verdicts}


PASSING = dict.fromkeys(("drop", "finite", "speedup", "coverage", "size_ratio", "not_rolled_back"), "pass")


def test_a_trial_that_is_good_passes_with_all_its_verdicts(bench: Bench) -> None:
    """The drop is that of pairs: 5 lost and 3 gained of 1,000, with its bounds and method."""
    baseline, variant = right(770), right(770)
    variant[:5], variant[900:903] = False, True
    judged = judge(make_job(), good_trial(bench.accuracy(variant)), bench.accuracy(baseline))
    assert judged.outcome == "passed" and outcomes(judged) == PASSING
    assert judged.drop is not None and judged.drop.value == pytest.approx(0.002)
    assert judged.drop.low is not None and judged.drop.high is not None
    assert judged.drop.low < 0 < judged.drop.value < judged.drop.high < 0.02
    drop = judged.verdicts[0]
    assert (drop.n, drop.bound, drop.low, drop.high) == (N, 0.02, judged.drop.low, judged.drop.high)
    assert drop.method == SCORE_INTERVAL
    size = next(verdict for verdict in judged.verdicts if verdict.gate == "size_ratio")
    assert size.value == pytest.approx(0.26)


@pytest.mark.parametrize(("count", "outcome"), [(800, "passed"), (770, "inconclusive"), (700, "failed")])
def test_metric_is_judged_beside_its_floor(bench: Bench, count: int, outcome: str) -> None:
    """A baseline as bad does not help: the drop is 0 in every case."""
    job = make_job(gates=GATES | {"min_metric": 0.76})
    judged = judge(job, good_trial(bench.accuracy(right(count))), bench.accuracy(right(count)))
    assert judged.outcome == outcome and outcomes(judged)["drop"] == "pass"
    (verdict,) = [one for one in judged.verdicts if one.gate == "metric_floor"]
    assert (verdict.value, verdict.n, verdict.direction) == (count / N, N, "at_least")


def simulated(trial: Trial) -> Trial:
    assert trial.variant is not None
    return replace(trial, variant=replace(trial.variant, proof="simulated"), latencies=())


def large(trial: Trial) -> Trial:
    assert trial.variant is not None
    return replace(trial, variant=replace(trial.variant, size_bytes=1001))


def slow(trial: Trial) -> Trial:
    return replace(trial, latencies=(latency(Estimate(0.26, 0.25, 0.27)), *trial.latencies))


def unsure(trial: Trial) -> Trial:
    return replace(trial, latencies=(latency(Estimate(1.25, 1.1, 1.4)),))


def uncovered(trial: Trial) -> Trial:
    return replace(trial, coverage=Coverage({"Gemm": 100}, (), ("all",), ("CPUExecutionProvider",)))


@pytest.mark.parametrize(
    ("plant", "outcome", "verdicts"),
    [
        (simulated, "failed", {"real_kernels": "fail"}),
        (large, "failed", {"size_ratio": "fail"}),
        (slow, "failed", {"speedup": "fail"}),
        (unsure, "inconclusive", {"speedup": "inconclusive"}),
        (uncovered, "failed", {"coverage": "fail"}),
    ],
)
def test_each_planted_fault_is_the_one_verdict_that_fails(
    bench: Bench, plant: Any, outcome: str, verdicts: dict[str, str]
) -> None:
    """All other gates go on passing; the first batch size decides on speed."""
    trial = plant(good_trial(bench.accuracy(right(770))))
    judged = judge(make_job(), trial, bench.accuracy(right(770)))
    assert judged.outcome == outcome
    assert {gate: seen for gate, seen in outcomes(judged).items() if seen != "pass"} == verdicts


@pytest.mark.parametrize(("correct", "outcome"), [(770, "passed"), (752, "inconclusive"), (700, "failed")])
def test_accuracy_decides_by_its_bounds(bench: Bench, correct: int, outcome: str) -> None:
    """No drop passes, 1.8 points of 1,000 samples are in doubt, 7 points are beyond it."""
    judged = judge(make_job(), good_trial(bench.accuracy(right(correct))), bench.accuracy(right(770)))
    assert judged.outcome == outcome


def test_a_group_that_loses_what_the_mean_hides_fails(bench: Bench) -> None:
    """Ten of 1,000 samples lost, all of them among the 60 of one language; its verdict rests on those 60."""
    variant = np.ones(N)
    variant[:10] = 0
    language = np.where(np.arange(N) < 60, "small", "large")
    trial, baseline = good_trial(bench.accuracy(variant)), bench.accuracy(np.ones(N))
    judged = judge(make_job(), trial, baseline, slices={"language": language})
    assert outcomes(judged)["drop"] == "pass" and outcomes(judged)["worst_slice"] == "fail"
    verdict = next(verdict for verdict in judged.verdicts if verdict.gate == "worst_slice")
    assert verdict.n == 60 and verdict.reason.startswith("language small") and judged.outcome == "failed"
    assert {found.group: found.drop.value for found in judged.slices} == {"small": pytest.approx(1 / 6), "large": 0.0}
    assert judged.flips is not None and (judged.flips.lost, judged.flips.gained) == (10, 0)
    none = judge(make_job(gates=GATES | {"max_slice_drop": None}), trial, baseline, slices={"language": language})
    assert none.outcome == "passed" and none.slices == judged.slices


def test_samples_that_are_kept_have_no_say(bench: Bench) -> None:
    """What a variant loses on the rows of the confirmation, and where it is not finite there, is not seen in the choice."""
    variant = right(770)
    variant[:100] = False
    trial = good_trial(bench.accuracy(variant, bad_rows=(5,)))
    assert judge(make_job(), trial, bench.accuracy(right(770))).outcome == "failed"
    judged = judge(make_job(), trial, bench.accuracy(right(770)), kept=slice(0, 100))
    assert judged.outcome == "passed" and judged.verdicts[0].n == N - 100


def test_a_variant_that_is_accurate_and_not_sane_fails(bench: Bench) -> None:
    """Another dtype: no sample scores worse for it, and every consumer meets it."""
    answers = Answers("logits", "float32", (8, 4))
    found = Sanity(8, 3, (answers,), (replace(answers, dtype="float16"),))
    trial = good_trial(bench.accuracy(right(770)), sanity=found)
    judged = judge(make_job(), trial, bench.accuracy(right(770)))
    assert judged.outcome == "failed"
    others = dict.fromkeys(("not_constant", "deterministic", "finite_outputs"), "pass")
    assert outcomes(judged) == PASSING | others | {"same_outputs": "fail"}
    sane = replace(trial, sanity=Sanity(8, 3, (answers,), (answers,)))
    assert judge(make_job(), sane, bench.accuracy(right(770))).outcome == "passed"


def test_time_in_low_precision_is_judged_where_the_job_asks(bench: Bench) -> None:
    """40 of 100 microseconds in integers, 50 asked for."""
    trial = good_trial(bench.accuracy(right(770)))
    assert trial.coverage is not None
    times = {"QGemm": 40.0, "Gemm": 60.0}
    trial = replace(trial, coverage=replace(trial.coverage, us_by_kernel=times))
    job = make_job(gates=GATES | {"min_time_coverage": 0.5})
    judged = judge(job, trial, bench.accuracy(right(770)))
    assert outcomes(judged) == PASSING | {"time_coverage": "fail"}


def test_nonfinite_outputs_fail_only_where_the_baselines_are(bench: Bench) -> None:
    """NaN or Inf of the variant on rows where the baseline is finite count; those of both do not."""
    baseline = bench.accuracy(right(770), bad_rows=(4, 5))
    same = judge(make_job(), good_trial(bench.accuracy(right(770), bad_rows=(4, 5))), baseline)
    assert outcomes(same)["finite"] == "pass"
    more = judge(make_job(), good_trial(bench.accuracy(right(770), bad_rows=(4, 7, 9))), baseline)
    assert outcomes(more)["finite"] == "fail" and more.outcome == "failed"
    verdict = next(verdict for verdict in more.verdicts if verdict.gate == "finite")
    assert (verdict.value, verdict.n) == (2.0, N)


def test_an_error_that_grows_is_a_drop(bench: Bench) -> None:
    """For mse the variant's larger score is the worse one, and the interval minds its skew."""
    rng = np.random.default_rng(0)
    error = rng.gamma(2.0, 0.1, 300)
    job = make_job(metric="mse")
    worse = good_trial(bench.accuracy(error + rng.gamma(2.0, 0.05, 300), metric="mse"))
    judged = judge(job, worse, bench.accuracy(error, metric="mse"))
    assert outcomes(judged)["drop"] == "fail" and judged.verdicts[0].method.startswith("wider of Student and Hall")
    better = good_trial(bench.accuracy(error * 0.5, metric="mse"))
    judged = judge(job, better, bench.accuracy(error, metric="mse"))
    assert judged.outcome == "passed" and judged.drop is not None and judged.drop.value < 0


def test_gates_that_are_not_set_give_no_verdict(bench: Bench) -> None:
    """A slow, large variant of float kernels passes a job that asks for accuracy alone."""
    job = make_job(gates={"min_speedup": None, "min_coverage": None, "max_size_ratio": None})
    trial = uncovered(large(slow(good_trial(bench.accuracy(right(770))))))
    judged = judge(job, trial, bench.accuracy(right(770)))
    assert judged.outcome == "passed" and set(outcomes(judged)) == {"drop", "finite", "not_rolled_back"}


def test_rolled_back_variant_fails_whatever_else_it_does(bench: Bench) -> None:
    """By its identity: another file under the same name is another one, and so is the file with other threads."""
    baseline, trial = bench.accuracy(right(770)), good_trial(bench.accuracy(right(770)))
    assert trial.variant is not None
    marks = {trial.variant.identity: RolledBack(2, "2026-11-22T03:00:00+00:00", "slow under load")}
    judged_data = JudgedData(make_job(), baseline, BASELINE_BYTES, np.zeros(N, np.bool_), {}, marks)
    judged = judge_trial(judged_data, trial)
    assert judged.outcome == "failed" and outcomes(judged) == PASSING | {"not_rolled_back": "fail"}
    assert judged.verdicts[-1].reason == "rolled back on 2026-11-22: slow under load"
    another = replace(trial, variant=replace(trial.variant, digest="another"))
    assert judge_trial(judged_data, another).outcome == "passed"
    session = replace(trial.variant.session, threads=trial.variant.session.threads + 1)
    twin = replace(trial, variant=replace(trial.variant, session=session))
    assert judge_trial(judged_data, twin).outcome == "passed"
    of_file = replace(judged_data, rolled_back={trial.variant.digest: RolledBack(2)})
    assert judge_trial(of_file, twin).outcome == "failed", "a mark of which no session is known bars them all"


def test_a_refused_trial_is_not_judged(bench: Bench) -> None:
    """It stays as it is."""
    trial = Trial(NAME, outcome="refused", refusal=Refusal("unsupported", "because"))
    assert judge(make_job(), trial, bench.accuracy(right(770))) is trial


# The choice


@pytest.mark.parametrize("objective", ["latency", "size"])
def test_the_best_is_that_of_the_objective_among_those_that_pass(bench: Bench, objective: str) -> None:
    """The other measure breaks ties; what did not pass is out, however fast and small."""
    accuracy = bench.accuracy(right(770))

    def trial(name: str, speedup: float, size: int, outcome: Any = "passed") -> Trial:
        made = good_trial(accuracy, name, latencies=(latency(Estimate(speedup, speedup, speedup)),), outcome=outcome)
        assert made.variant is not None
        return replace(made, variant=replace(made.variant, size_bytes=size))

    trials = (
        trial("fast_but_larger", 1.6, 300),
        trial("failed", 9.0, 1, "failed"),
        trial("small_but_slower", 1.3, 200),
        trial("fast", 1.6, 280),
        trial("small", 1.4, 200),
        trial("inconclusive", 9.0, 1, "inconclusive"),
        Trial("refused", outcome="refused", refusal=Refusal("invalid", "because")),
    )
    order = [chosen.candidate for chosen in rank_passing(make_job(objective=objective), trials)]
    by_latency = ["fast", "fast_but_larger", "small", "small_but_slower"]
    assert order == (by_latency if objective == "latency" else ["small", "small_but_slower", "fast", "fast_but_larger"])
    assert rank_passing(make_job(objective=objective), tuple(t for t in trials if t.outcome != "passed")) == []


# What a task came to


def test_what_a_task_came_to_becomes_a_trial(bench: Bench) -> None:
    """A trial stays; an error after all retries, expected or not, is a refusal that names it."""
    trial = good_trial(bench.accuracy(right(770)))
    assert trial_of(NAME, trial) is trial
    lost = trial_of(NAME, InfrastructureError(found="a dead disk", expected="a disk", fix="replace it"))
    assert lost.outcome == "refused" and lost.refusal is not None and lost.refusal.kind == "infrastructure"
    assert all(words in lost.refusal.reason for words in ("a dead disk", "a disk", "replace it"))
    odd = trial_of(NAME, ZeroDivisionError("division by zero"))
    assert odd.refusal is not None and odd.refusal.reason == "unexpected ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    "error", [StorageFull(found="no space", expected="space", fix="free some"), KeyboardInterrupt()]
)
def test_what_would_end_every_candidate_ends_the_run(error: BaseException) -> None:
    """A full disk and an interrupt are no refusals of one candidate."""
    with pytest.raises(type(error)):
        trial_of(NAME, error)


def test_an_error_that_is_nan_fails(bench: Bench) -> None:
    """One sample on which the variant computes NaN: the drop is not known, and not finite outputs fail as well."""
    error = np.random.default_rng(0).gamma(2.0, 0.1, 300)
    broken = error.copy()
    broken[3] = np.nan
    trial = good_trial(bench.accuracy(broken, bad_rows=(3,), metric="mse"))
    judged = judge(make_job(metric="mse"), trial, bench.accuracy(error, metric="mse"))
    assert judged.outcome == "failed"
    assert (outcomes(judged)["drop"], outcomes(judged)["finite"]) == ("fail", "fail")
