"""How often the checks of calibration data are wrong, what drift they see, and what they cost.

    python benchmarks/calibration_checks.py false-alarms --splits 200
    python benchmarks/calibration_checks.py power --draws 20
    python benchmarks/calibration_checks.py cost

On the demos' real data; each writes what it measured into `benchmarks/results`. README.md beside it has the figures.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from calibration_draws import CALIBRATION, DRIFTS, Drift, Judge, open_judge, short_texts
from figures import RESULTS, save, share
from models.pools import image_pool, text_pool
from processes import answer_of

from validators.records.run import CalibrationVerdict

FIRST_POWER_SEED = 1000  # so that no split of the false alarms occurs in a power curve
# M. Okabe and K. Ito, "Color Universal Design", 2008: told apart in every kind of colour blindness, and by shape as well.
LINES = (("refused", "refused", "#D55E00", "o"), ("refused_or_warned", "refused or warned", "#0072B2", "s"))
MOST_MB = 1500

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def false_alarms(
    splits: Annotated[int, typer.Option(help="Random clean splits.", min=1)] = 200,
    size: Annotated[int, typer.Option(help="Calibration samples.", min=1)] = CALIBRATION,
    image: Annotated[bool, typer.Option("--image", help="The digits in place of the texts.")] = False,
    stratified: Annotated[
        bool, typer.Option("--stratified", help="Each label in its share, as the demos split.")
    ] = False,
    tokens: Annotated[
        int | None, typer.Option(help="Texts of so few tokens, of which many repeat, in place of whole reviews.", min=1)
    ] = None,
) -> None:
    """The share of random clean splits that are refused, with its 95 % interval (Clopper and Pearson)."""
    outcomes: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    started = time.monotonic()
    with open_judge(short_texts(tokens) if tokens else image_pool if image else text_pool) as judge:
        for seed in range(splits):
            if tokens:
                rows, evaluation = judge.split_distinct(seed, size)
            else:
                rows, evaluation, _ = judge.split(seed, size, stratified=stratified)
            verdict = judge(judge.pool.take(rows), evaluation, seed)
            outcomes[verdict.outcome] += 1
            failed.update(_failed(verdict))
            for check in verdict.failed:
                print(f"split {seed}: {check.name} ({check.severity}): {check.found}", flush=True)
            if seed % 10 == 9:
                print(f"{seed + 1} splits, {time.monotonic() - started:.0f} s: {dict(outcomes)}", flush=True)
    figures = {
        "splits": splits,
        "seeds": [0, splits - 1],
        "pool_samples": len(judge.pool.labels),
        "calibration_samples": size,
        "evaluation_samples": len(evaluation),
        "stratified": stratified,
        "seconds": round(time.monotonic() - started),
    }
    figures |= {name: share(outcomes[name], splits) for name in ("refused", "accepted_with_warnings", "accepted")}
    pool = f"texts_of_{tokens}" if tokens else "digits" if image else "texts"
    name = f"false_alarms_{pool}_{size}{'_stratified' if stratified else ''}"
    save(name, figures | {"failed_checks": dict(failed)})


@app.command()
def power(
    draws: Annotated[int, typer.Option(help="Draws for each strength of each drift.", min=1)] = 20,
    only: Annotated[list[str] | None, typer.Option(help=f"Some of: {', '.join(each.name for each in DRIFTS)}.")] = None,
) -> None:
    """The share of drifted sets that are refused, and that are at least warned of, for five strengths of each drift."""
    chosen = [drift for drift in DRIFTS if not only or drift.name in only]
    if not chosen:
        raise typer.BadParameter(f"none of {', '.join(each.name for each in DRIFTS)}", param_hint="--only")
    found: dict[str, Any] = {}
    for make, drifts in groupby(chosen, key=lambda drift: drift.make):
        with open_judge(make) as judge:
            for drift in drifts:
                points = [_detect(judge, drift, strength, draws) for strength in drift.strengths]
                found[drift.name] = {"title": drift.title, "points": points}
    seeds = [FIRST_POWER_SEED, FIRST_POWER_SEED + draws - 1]
    save("power", {"draws": draws, "seeds": seeds, "calibration_samples": CALIBRATION, "drifts": found})
    draw_power(found)


@app.command()
def cost(
    rounds: Annotated[int, typer.Option(help="Times that each is measured, in turn.", min=1)] = 3,
) -> None:
    """The whole validation of 128 and of 2,000 samples against one accuracy evaluation of the fp32 model on 2,000."""
    found: dict[str, list[dict[str, Any]]] = {"evaluation": [], "validate-128": [], "validate-2000": []}
    with tempfile.TemporaryDirectory() as folder:
        pool = text_pool(Path(folder))
        # The reviews lie by label: the first 2,000 are nearly all positive.
        order = np.random.default_rng(7).permutation(len(pool.labels))
        arrays: dict[str, Any] = {name: array[order] for name, array in pool.inputs.items()}
        arrays["label"] = pool.labels[order]
        np.savez(Path(folder) / "pool.npz", **arrays)
        for _ in range(rounds):
            for name, answers in found.items():
                answers.append(_measure(name, pool.model, Path(folder) / "pool.npz"))
                print(f"{name}: {answers[-1]}", flush=True)
    seconds = {name: float(np.median([answer["seconds"] for answer in answers])) for name, answers in found.items()}
    peak_mb = {name: max(answer["peak_memory_mb"] for answer in answers) for name, answers in found.items()}
    bound_s = 0.2 * seconds.pop("evaluation") + 10
    verdicts = {}
    for name, median in seconds.items():
        verdicts[name] = {"median_s": median, "bound_s": round(bound_s, 2), "held_s": median <= bound_s}
        verdicts[name] |= {"peak_mb": peak_mb[name], "bound_mb": MOST_MB, "held_mb": peak_mb[name] <= MOST_MB}
    save("cost", {"rounds": rounds, "measured": found, "verdicts": verdicts})


def _measure(what: str, model: Path, pool: Path) -> dict[str, Any]:
    """One measurement in a process of its own: sessions that share a process disturb each other."""
    load = os.getloadavg()[0]
    command = [sys.executable, str(Path(__file__).with_name("calibration_cost.py")), what, str(model), str(pool)]
    return dict(answer_of(command)) | {"load_average": round(load, 1)}


def _detect(judge: Judge, drift: Drift, strength: float, draws: int) -> dict[str, Any]:
    outcomes: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    plant = drift.plant(strength)
    for seed in range(FIRST_POWER_SEED, FIRST_POWER_SEED + draws):
        rows, evaluation, rest = judge.split(seed, CALIBRATION)
        planted = plant(judge.pool, np.concatenate([rows, rest]), np.random.default_rng([seed, 1]))
        verdict = judge(planted, evaluation, seed)
        outcomes[verdict.outcome] += 1
        failed.update(_failed(verdict))
    refused = outcomes["refused"]
    told = refused + outcomes["accepted_with_warnings"]
    print(f"{drift.title} {strength:g}: refused {refused}, told {told} of {draws}; {dict(failed)}", flush=True)
    return {
        "strength": strength,
        "refused": share(refused, draws),
        "refused_or_warned": share(told, draws),
        "failed_checks": dict(failed),
    }


def _failed(verdict: CalibrationVerdict) -> list[str]:
    return [f"{check.name} ({check.severity})" for check in verdict.failed]


def draw_power(drifts: dict[str, Any]) -> None:
    """The power curves as `power.png`, one panel a drift."""
    from matplotlib import pyplot

    columns = min(3, len(drifts) + 1)  # and a place for the legend
    rows = -(-(len(drifts) + 1) // columns)
    figure, grid = pyplot.subplots(rows, columns, figsize=(8.8, 2.8 * rows), sharey=True, squeeze=False)
    figure.set_layout_engine("constrained")
    for axis, drift in zip(grid.flat, drifts.values(), strict=False):
        _draw_panel(axis, drift["title"], drift["points"])
    for row in grid:
        row[0].set_ylabel("share of draws")
    for axis in grid.flat[len(drifts) :]:
        axis.axis("off")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    grid.flat[len(drifts)].legend(handles, labels, loc="center", frameon=False, title="verdict, with 95 % interval")
    figure.savefig(RESULTS / "power.png", dpi=150)
    pyplot.close(figure)


def _draw_panel(axis: Any, title: str, points: list[dict[str, Any]]) -> None:
    places = np.arange(len(points))
    for (key, label, color, marker), shift in zip(LINES, (-0.06, 0.06), strict=True):
        shares = np.array([point[key]["share"] for point in points])
        low, high = np.array([point[key]["interval"] for point in points]).T
        axis.errorbar(
            places + shift, shares, [shares - low, high - shares], color=color, marker=marker, capsize=3, label=label
        )
    axis.set_xticks(places, [f"{point['strength']:g}" for point in points])
    axis.set_xlabel(title)
    axis.set_ylim(-0.03, 1.03)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.3)


if __name__ == "__main__":
    app()
