"""How often the checks of calibration data are wrong, what drift they see, and what they cost.

    python benchmarks/calibration_checks.py false-alarms --splits 200
    python benchmarks/calibration_checks.py power --draws 20
    python benchmarks/calibration_checks.py cost

On the demos' real data; each writes what it measured into `benchmarks/results`. README.md beside it has the figures.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from scipy import stats

from tasks.demo.pools import Pool, image_pool, other_domain, text_pool
from tasks.measure.activations import Watch, open_tapped, view_samples
from tasks.measure.inventory import usable_cores
from tasks.measure.taps import find_taps
from validators.calibration_data import judge_calibration
from validators.datasets import Samples
from validators.job import CalibrationBounds
from validators.records import CalibrationVerdict, SessionSettings

RESULTS = Path(__file__).parent / "results"
BOUNDS = CalibrationBounds()
EVALUATION = 2000
Rows = NDArray[np.intp]
Plant = Callable[[Pool, Rows, np.random.Generator], Samples]

app = typer.Typer(add_completion=False, help=__doc__)


class Judge:
    """A pool, its model in one session, and verdicts of the whole check, whose pages are thrown away."""

    def __init__(self, pool: Pool, watch: Watch) -> None:
        self.pool, self._watch = pool, watch

    def split(self, rng: np.random.Generator, size: int) -> tuple[Rows, Samples, Rows]:
        """Rows for calibration, evaluation samples, and the rows that are left."""
        order = rng.permutation(len(self.pool.labels))
        evaluation = min(EVALUATION, len(order) - 2 * size)
        return order[:size], self.pool.take(order[size : size + evaluation]), order[size + evaluation :]

    def __call__(self, calibration: Samples, evaluation: Samples, seed: int) -> CalibrationVerdict:
        view = view_samples(
            self._watch, calibration, evaluation, most=BOUNDS.model_samples, fixed_batch=None, seed=seed
        )
        with tempfile.TemporaryDirectory() as folder:
            return judge_calibration(calibration, evaluation, None, view, BOUNDS, Path(folder), seed=seed)


@contextmanager
def open_judge(make: Callable[[Path], Pool]) -> Iterator[Judge]:
    with tempfile.TemporaryDirectory() as folder:
        pool = make(Path(folder))
        settings = SessionSettings("CPUExecutionProvider", usable_cores())
        with open_tapped(pool.model, settings, lambda graph: find_taps(graph, pool.output, None)) as watch:
            yield Judge(pool, watch)


@app.command()
def false_alarms(
    splits: Annotated[int, typer.Option(help="Random clean splits.")] = 200,
    size: Annotated[int, typer.Option(help="Calibration samples.")] = 128,
    image: Annotated[bool, typer.Option("--image", help="The digits in place of the texts.")] = False,
) -> None:
    """The share of random clean splits that are refused, with its 95 % interval (Clopper and Pearson)."""
    outcomes: Counter[str] = Counter()
    fired: Counter[str] = Counter()
    started = time.monotonic()
    with open_judge(image_pool if image else text_pool) as judge:
        for seed in range(splits):
            rows, evaluation, _ = judge.split(np.random.default_rng(seed), size)
            verdict = judge(judge.pool.take(rows), evaluation, seed)
            outcomes[verdict.outcome] += 1
            fired.update(f"{check.name} ({check.severity})" for check in verdict.failed)
            for check in verdict.failed:
                print(f"split {seed}: {check.name} ({check.severity}): {check.found}", flush=True)
            if seed % 10 == 9:
                print(f"{seed + 1} splits, {time.monotonic() - started:.0f} s: {dict(outcomes)}", flush=True)
    refused = outcomes["refused"]
    share = {
        "splits": splits,
        "refused": refused,
        "refused_share": refused / splits,
        "interval": _interval(refused, splits),
    }
    name = f"false_alarms_{'digits' if image else 'texts'}_{size}"
    _save(name, share | {"outcomes": dict(outcomes), "failed_checks": dict(fired)})


@app.command()
def power(draws: Annotated[int, typer.Option(help="Draws for each strength of each drift.")] = 20) -> None:
    """The share of drifted sets that are refused, and that are at least warned of, for five strengths of each drift."""
    found: dict[str, list[dict[str, Any]]] = {}
    with open_judge(text_pool) as judge:
        tweets = other_domain("tweets")
        found["share of texts from another domain"] = [
            _detect(judge, draws, share, _mix(tweets, share)) for share in (0.05, 0.1, 0.25, 0.5, 1.0)
        ]
        found["share of texts from the shortest fifth"] = [
            _detect(judge, draws, share, _shorten(share)) for share in (0.3, 0.4, 0.5, 0.7, 1.0)
        ]
    with open_judge(image_pool) as judge:
        found["digits multiplied by"] = [
            _detect(judge, draws, factor, _scale(factor)) for factor in (1.01, 1.02, 1.05, 1.1, 1.5)
        ]
    _save("power", {"draws": draws, "calibration_samples": 128, "drifts": found})
    draw_power(found, draws)


@app.command()
def cost(
    rounds: Annotated[int, typer.Option(help="Times that each is measured, in turn.")] = 3,
) -> None:
    """The whole validation of 128 and of 2,000 samples against one accuracy evaluation of the fp32 model on 2,000."""
    seconds: dict[str, list[float]] = {"evaluation": [], "validate 128": [], "validate 2000": []}
    memory: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        pool = text_pool(Path(folder))
        arrays: dict[str, Any] = pool.inputs | {"label": pool.labels}
        np.savez(Path(folder) / "pool.npz", **arrays)
        for _ in range(rounds):
            for name, taken in seconds.items():
                command = [sys.executable, __file__, "measure", name, str(Path(folder) / "text.onnx")]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                answer = json.loads(done.stdout.splitlines()[-1])
                taken.append(answer["seconds"])
                memory[name] = max(memory.get(name, 0.0), answer["peak_memory_mb"])
                print(name, answer, flush=True)
    medians = {name: float(np.median(taken)) for name, taken in seconds.items()}
    bound = 0.2 * medians["evaluation"] + 10
    held = {name: medians[name] < bound and memory[name] < 1500 for name in medians if name != "evaluation"}
    _save(
        "cost",
        {
            "seconds": seconds,
            "medians": medians,
            "bound_s": bound,
            "peak_memory_mb": memory,
            "bound_mb": 1500,
            "held": held,
        },
    )


@app.command(hidden=True)
def measure(what: str, model: Path) -> None:
    """One measurement in a process of its own, from its first import to its end."""
    import resource

    import psutil

    samples = np.load(model.with_name("pool.npz"))
    pool = Pool({name: samples[name] for name in ("input_ids", "attention_mask")}, samples["label"], model)
    evaluation = pool.take(np.arange(EVALUATION))
    if what == "evaluation":
        _evaluate(pool, evaluation)
    else:
        rows = np.arange(EVALUATION, EVALUATION + int(what.split()[1]))
        settings = SessionSettings("CPUExecutionProvider", usable_cores())
        with open_tapped(model, settings, lambda graph: find_taps(graph, pool.output, None)) as watch:
            print(Judge(pool, watch)(pool.take(rows), evaluation, seed=7).outcome)
    taken = time.time() - psutil.Process().create_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(json.dumps({"seconds": round(taken, 2), "peak_memory_mb": round(peak)}))


def _evaluate(pool: Pool, evaluation: Samples) -> None:
    """As the baseline's accuracy is measured."""
    from tasks.measure.accuracy import EVALUATION_BATCH_SIZE, score_samples
    from tasks.runtimes.ort import open_session, run_batches

    settings = SessionSettings("CPUExecutionProvider", usable_cores(), entries={"session.intra_op.allow_spinning": "0"})
    with open_session(pool.model, settings) as session:
        outputs = run_batches(session, evaluation.batches(EVALUATION_BATCH_SIZE), pool.output)
    score_samples("accuracy", outputs, evaluation.labels, None)


def _mix(other: dict[str, NDArray[Any]], share: float) -> Plant:
    def plant(pool: Pool, rest: Rows, rng: np.random.Generator) -> Samples:
        count = round(share * 128)
        chosen = rng.choice(len(other["input_ids"]), count, replace=False)
        kept = {name: array[rest[: 128 - count]] for name, array in pool.inputs.items()}
        return pool.take(rest[:128], **{name: np.concatenate([kept[name], other[name][chosen]]) for name in kept})

    return plant


def _shorten(share: float) -> Plant:
    def plant(pool: Pool, rest: Rows, rng: np.random.Generator) -> Samples:
        lengths = pool.inputs["attention_mask"][rest].sum(axis=1)
        short = np.argsort(lengths, kind="stable")[: len(rest) // 5]
        longer = np.setdiff1d(np.arange(len(rest)), short)
        count = round(share * 128)
        rows = np.concatenate([rng.choice(short, count, replace=False), rng.choice(longer, 128 - count, replace=False)])
        return pool.take(rest[rows])

    return plant


def _scale(factor: float) -> Plant:
    def plant(pool: Pool, rest: Rows, _: np.random.Generator) -> Samples:
        return pool.take(rest[:128], image=pool.inputs["image"][rest[:128]] * np.float32(factor))

    return plant


def _detect(judge: Judge, draws: int, strength: float, plant: Plant) -> dict[str, Any]:
    refused = told = 0
    fired: Counter[str] = Counter()
    for seed in range(draws):
        rng = np.random.default_rng(1000 + seed)
        rows, evaluation, rest = judge.split(rng, 128)
        verdict = judge(plant(judge.pool, np.concatenate([rows, rest]), rng), evaluation, seed)
        refused += verdict.outcome == "refused"
        told += verdict.outcome != "accepted"
        fired.update(f"{check.name} ({check.severity})" for check in verdict.failed)
    print(f"{strength:g}: refused {refused}, refused or warned {told} of {draws}; {dict(fired)}", flush=True)
    return {
        "strength": strength,
        "refused": refused,
        "refused_or_warned": told,
        "refused_interval": _interval(refused, draws),
        "refused_or_warned_interval": _interval(told, draws),
        "failed_checks": dict(fired),
    }


def draw_power(found: dict[str, list[dict[str, Any]]], draws: int) -> None:
    """The power curves as `results/power.png` and `.svg`; colours of Okabe and Ito, "Color Universal Design" (2008)."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(found), figsize=(11, 3.4), sharey=True, layout="constrained")
    lines = (("refused", "refused", "#D55E00", "o"), ("refused_or_warned", "refused or warned", "#0072B2", "s"))
    for axis, (title, points) in zip(axes, found.items(), strict=True):
        places = np.arange(len(points))
        for (key, label, color, marker), shift in zip(lines, (0.06, -0.06), strict=True):
            share = np.array([point[key] / draws for point in points])
            low, high = np.array([point[f"{key}_interval"] for point in points]).T
            axis.errorbar(
                places + shift, share, [share - low, high - share], color=color, marker=marker, capsize=3, label=label
            )
        axis.set_xticks(places, [f"{point['strength']:g}" for point in points])
        axis.set_xlabel(title)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_ylabel(f"share of {draws} draws")
    axes[0].legend(frameon=False, loc="upper left")
    for suffix in ("png", "svg"):
        figure.savefig(RESULTS / f"power.{suffix}", dpi=150)


def _interval(hits: int, n: int) -> list[float]:
    interval = stats.binomtest(hits, n).proportion_ci(0.95, method="exact")
    return [float(interval.low), float(interval.high)]


def _save(name: str, figures: dict[str, Any]) -> None:
    versions = {part: metadata.version(part) for part in ("numpy", "scipy", "scikit-learn", "great-expectations")}
    where = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.processor() or platform.machine(),
        "versions": versions,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(figures | where, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    app()
