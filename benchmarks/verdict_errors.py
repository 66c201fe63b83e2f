"""How often a verdict on accuracy is wrong, by simulation, beside the rule that compares two averages.

    python benchmarks/verdict_errors.py run
    python benchmarks/verdict_errors.py clusters
    python benchmarks/verdict_errors.py clusters-again
    python benchmarks/verdict_errors.py decisions

For each kind of metric, number of samples and true drop: the share of pass, fail and inconclusive. Then the same of bounds
alone, beside Student's and the BCa bootstrap, on skewed drops of few samples; and what a choice among twenty candidates does.
`clusters` simulates samples that resemble each other, such as the frames of a video. `decisions` simulates the whole
decision on thirty candidates at the bound of each gate, with copies, documents and slow phases. All by the functions that a
run is judged with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import product
from typing import Annotated, Any

import numpy as np
import typer
from figures import RESULTS, earlier, print_rows, save, share
from scipy import stats
from verdict_errors_choice import BOUND, choose_by_drop, choose_by_speed
from verdict_errors_clusters import Cell, cell_of, cells, held_out_cells, judge_clustered
from verdict_errors_decisions import (
    CANDIDATES,
    PHASES,
    count_wrong_on_launches,
    count_wrong_on_samples,
    judge_slow_blocks,
)
from verdict_errors_draws import CONFIDENCE, KINDS, SKEWED

from validators.gates.accuracy import judge_drop
from validators.gates.intervals import drop_interval
from validators.job.job_gates import Gates

TOLERANCE = 0.02
GATE = {"tolerance": TOLERANCE, "confidence": CONFIDENCE}
RATIOS = (0.0, 0.5, 1.0, 2.0)
SMALL = (8, 16, 64, 256)
RESAMPLES = 999
PROCESSES = 2
# A cell of `clusters` that lies above this is simulated again, with new seeds and more experiments.
AGAIN_ABOVE = 0.06
# Runs of `decisions` that one process simulates at a time, and gates that slow blocks make hard to judge.
CHUNK = 50
AFFECTED = ("p95_ratio", "p99_ratio", "cost_per_million")

# M. Okabe and K. Ito, "Color Universal Design", 2008, and told apart by shape as well; by true drop over tolerance.
LINES = {
    0.0: ("no drop", "#009E73", "o"),
    0.5: ("half the tolerance", "#0072B2", "s"),
    1.0: ("at the tolerance", "#D55E00", "^"),
    2.0: ("twice the tolerance", "#000000", "v"),
}

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def run(
    experiments: Annotated[int, typer.Option(help="simulated experiments a cell")] = 2000,
    seed: Annotated[int, typer.Option(help="seed of the first cell")] = 1,
) -> None:
    """Simulate all, and write figures and picture to `benchmarks/results/verdict_errors.*`."""
    places = [(kind, n, ratio) for kind, known in enumerate(KINDS) for n, ratio in product(known.sizes, RATIOS)]
    small = list(product(SKEWED, SMALL))
    with ProcessPoolExecutor(PROCESSES) as pool:
        choices = {name: pool.submit(_choice, *one, seed, experiments) for name, one in CHOICES.items()}
        judged = [pool.submit(judge_cell, *place, seed + row, experiments) for row, place in enumerate(places)]
        compared = [
            pool.submit(compare_methods, *place, seed + row, experiments // 2) for row, place in enumerate(small)
        ]
        cells, methods = ([future.result() for future in futures] for futures in (judged, compared))
        chosen = {name: future.result() for name, future in choices.items()}
    figures = {
        "experiments": experiments,
        "seed": seed,
        **GATE,
        "verdicts": cells,
        "experiments_of_methods": experiments // 2,
        "truth_beyond_upper_bound": methods,
        "choice_among_20": chosen,
    }
    save("verdict_errors", figures, quiet=True)
    draw(cells, {kind.name: kind.title for kind in KINDS}, 1 - CONFIDENCE)
    for rows in (cells, methods, [{"scenario": name} | found for name, found in chosen.items()]):
        print_rows(rows)


@app.command()
def clusters(
    experiments: Annotated[int, typer.Option(help="simulated experiments a cell")] = 2000,
    seed: Annotated[int, typer.Option(help="seed of the first cell")] = 1,
) -> None:
    """Simulate samples in clusters, and write figures to `benchmarks/results/verdict_errors_clusters.json`."""
    found = _judge_clusters([(cell, experiments) for cell in cells()], seed)
    figures: dict[str, Any] = {"experiments": experiments, "seed": seed} | GATE | {"clusters": found}
    save("verdict_errors_clusters", figures, quiet=True)


@app.command()
def clusters_again(
    experiments: Annotated[int, typer.Option(help="simulated experiments of a cell that is repeated")] = 5000,
    experiments_held_out: Annotated[int, typer.Option(help="simulated experiments of a held-out cell")] = 1000,
    seed: Annotated[int, typer.Option(help="seed of the first cell")] = 1_000_001,
) -> None:
    """Repeat the cells above 6 %, simulate held-out ones, write `benchmarks/results/verdict_errors_clusters_again.json`."""
    first = earlier("verdict_errors_clusters")["clusters"]
    high = [cell_of(row) for row in first if row["pass_at_tolerance"]["share"] > AGAIN_ABOVE]
    tried = [(cell, experiments) for cell in high] + [(cell, experiments_held_out) for cell in held_out_cells()]
    found = _judge_clusters(tried, seed)
    figures: dict[str, Any] = {
        "experiments": experiments,
        "experiments_held_out": experiments_held_out,
        "seed": seed,
    } | GATE
    figures |= {"again": found[: len(high)], "held_out": found[len(high) :]}
    save("verdict_errors_clusters_again", figures, quiet=True)


def _judge_clusters(tried: list[tuple[Cell, int]], seed: int) -> list[dict[str, Any]]:
    """Judge cells with their numbers of experiments, print the figures of all, and return them."""
    with ProcessPoolExecutor(PROCESSES) as pool:
        futures = [pool.submit(judge_clustered, cell, seed + row, count) for row, (cell, count) in enumerate(tried)]
        found = [future.result() for future in futures]
    print_rows(found)
    return found


@app.command()
def decisions(
    runs: Annotated[int, typer.Option(help="simulated runs")] = 1000,
    comparisons: Annotated[int, typer.Option(help="simulated comparisons with a variant that has slow blocks")] = 1000,
    seed: Annotated[int, typer.Option(help="seed")] = 1,
) -> None:
    """Simulate whole decisions by gate, and write figures to `benchmarks/results/verdict_errors_decisions.json`."""
    fewer, shares = runs // 2, (0.0, 0.08, 0.15)
    with ProcessPoolExecutor(PROCESSES) as pool:
        on_samples = [pool.submit(count_wrong_on_samples, CHUNK, seed + row) for row in range(runs // CHUNK)]
        on_launches = [pool.submit(count_wrong_on_launches, CHUNK, seed + row) for row in range(runs // CHUNK)]
        of_phases = [pool.submit(count_wrong_on_launches, CHUNK, seed + row, PHASES) for row in range(fewer // CHUNK)]
        slow_blocks = [pool.submit(judge_slow_blocks, slow, comparisons, seed) for slow in shares]
    wrong = _added(on_samples, runs) | _added(on_launches, runs)
    slow = {name: found for name, found in _added(of_phases, fewer).items() if name in AFFECTED}
    figures = {
        "runs_on_samples": runs,
        "runs_on_launches": runs,
        "seed": seed,
        "candidates": CANDIDATES,
        "confidence": CONFIDENCE,
        "wrong": wrong,
        "runs_with_slow_blocks": fewer,
        "wrong_with_slow_blocks": slow,
        "comparisons": comparisons,
        "slow_blocks": [future.result() for future in slow_blocks],
    }
    save("verdict_errors_decisions", figures)


def _added(futures: list[Future[dict[str, int]]], runs: int) -> dict[str, Any]:
    """Return the shares of all runs, by gate."""
    total = sum((Counter(future.result()) for future in futures), Counter())
    return {name: share(total[name], runs) for name in futures[0].result()}


def judge_cell(kind: int, n: int, ratio: float, seed: int, experiments: int) -> dict[str, Any]:
    """Verdicts on experiments of one kind with `n` samples and a true drop of `ratio` times the tolerance."""
    rng, gates = np.random.default_rng(seed), Gates(max_drop=TOLERANCE, confidence=CONFIDENCE)
    outcomes, naive = [], 0
    for _ in range(experiments):
        drop, method = KINDS[kind].draw(rng, n, ratio * TOLERANCE)
        outcomes.append(judge_drop(drop, gates, n=n, method=method).outcome)
        naive += drop.value <= TOLERANCE
    return {
        "kind": KINDS[kind].name,
        "n": n,
        "drop": ratio * TOLERANCE,
        "drop_over_tolerance": ratio,
        **{outcome: share(outcomes.count(outcome), experiments) for outcome in ("pass", "fail", "inconclusive")},
        "naive_pass": share(naive, experiments),
    }


def compare_methods(drops: str, n: int, seed: int, experiments: int) -> dict[str, Any]:
    """How often the truth lies beyond the upper bound; drops that are all equal have none, and count as held."""
    draw_drops, truth = SKEWED[drops]
    rng = np.random.default_rng(seed)
    wrong = {"student": 0, "bca": 0, "quantgate": 0}
    for _ in range(experiments):
        values = draw_drops(rng, n)
        if np.ptp(values) == 0:
            continue
        high = drop_interval(values, CONFIDENCE)[0].high
        wrong["quantgate"] += high is not None and high < truth
        wrong["student"] += values.mean() + stats.t.ppf(CONFIDENCE, n - 1) * stats.sem(values) < truth
        wrong["bca"] += _bca_upper(values, rng) < truth
    return {"drops": drops, "n": n} | {name: share(int(count), experiments) for name, count in wrong.items()}


def _bca_upper(values: np.ndarray, rng: np.random.Generator) -> float:
    """The upper bound by scipy's BCa bootstrap (B. Efron, J. Am. Statist. Assoc. 82, 1987)."""
    found = stats.bootstrap(
        (values,), np.mean, n_resamples=RESAMPLES, confidence_level=2 * CONFIDENCE - 1, method="BCa", rng=rng
    )
    return float(found.confidence_interval.high)


Choose = Callable[[float, int, int], dict[str, Any]]
CHOICES: dict[str, tuple[Choose, float]] = {
    "all lose the tolerance": (choose_by_drop, TOLERANCE),
    "none loses anything": (choose_by_drop, 0.0),
    "all are just not fast enough": (choose_by_speed, BOUND),
    "all are 10 % faster than need be": (choose_by_speed, BOUND * 1.10),
}


def _choice(choose: Choose, truth: float, seed: int, experiments: int) -> dict[str, Any]:
    """One scenario, its counts as shares."""
    found = choose(truth, seed, experiments)
    counts = ("promoted on what chose", "promoted after confirmation")
    return found | {key: share(found[key], experiments) for key in counts}


def draw(cells: list[dict[str, Any]], titles: dict[str, str], alpha: float) -> None:
    """The share of verdicts that pass by number of samples, one panel a kind, as `verdict_errors.png`."""
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(2, 3, figsize=(9.6, 5.8), sharey=True)
    figure.set_layout_engine("constrained")
    for axis, (kind, title) in zip(grid.flat, titles.items(), strict=True):
        _draw_panel(axis, title, [cell for cell in cells if cell["kind"] == kind], alpha)
    for row in grid:
        row[0].set_ylabel("share that pass")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(RESULTS / "verdict_errors.png", dpi=150)
    pyplot.close(figure)


def _draw_panel(axis: Any, title: str, cells: list[dict[str, Any]], alpha: float) -> None:
    for ratio, (label, color, marker) in LINES.items():
        line = [cell for cell in cells if cell["drop_over_tolerance"] == ratio]
        sizes, shares = [cell["n"] for cell in line], [cell["pass"]["share"] for cell in line]
        low = [cell["pass"]["share"] - cell["pass"]["interval"][0] for cell in line]
        high = [cell["pass"]["interval"][1] - cell["pass"]["share"] for cell in line]
        axis.errorbar(sizes, shares, [low, high], color=color, marker=marker, markersize=4, capsize=2, label=label)
        if ratio == 1.0:
            naive = [cell["naive_pass"]["share"] for cell in line]
            axis.plot(sizes, naive, color=color, linestyle="--", label="at the tolerance, averages compared")
    axis.axhline(alpha, color="#777777", linestyle=":", label=f"{alpha:.0%}: what the gate allows")
    axis.set_title(title, fontsize=9)
    axis.set_xscale("log")
    sizes = sorted({cell["n"] for cell in cells})
    axis.set_xticks(sizes, [f"{n:,}" for n in sizes])
    axis.minorticks_off()
    axis.set_xlabel("samples")
    axis.set_ylim(-0.03, 1.03)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.3)


if __name__ == "__main__":
    app()
