"""How often clean calibration data with a few integers a sample are refused, and which shifts of them are found.

    python benchmarks/calibration_integers.py run --splits 200   # 35 minutes of one busy core
    python benchmarks/calibration_integers.py table

An input has 1, 2, 3, 4 or 8 integers a sample (a length, a user, a timestep, a history), of 2 to 50,000 values that are
equally frequent, or fall like 1 / rank (Zipf). A clean split is one random draw, cut into 128 calibration and 1,000 evaluation
samples: with a float input beside the integers, so that no sample repeats, or without, so that samples repeat and all copies
of one go to one side. Each split is judged by the functions and the default bounds of the check `same_distribution`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from figures import earlier, save, share
from numpy.typing import NDArray

from validators.calibration.disjoint import compare_disjoint
from validators.digests import digest_samples
from validators.job.job_data import CalibrationBounds
from validators.records.run import DataFile
from validators.samples.datasets import Samples
from validators.samples.drift import count_in_bins, find_signs

NAME = "calibration_integers"
CALIBRATION, EVALUATION = 128, 1000
WIDTHS, VALUES, SHIFTED_VALUES = (1, 2, 3, 4, 8), (2, 5, 50, 1000, 50_000), (5, 1000, 50_000)
BOUNDS = CalibrationBounds()
# The shares of calibration samples that are shifted.
STRENGTHS = (0.25, 0.5, 1.0)
FIRST_POWER_SEED = 1000
# Fewer distinct samples on either side are no data of their own.
FEWEST = 64
SHIFTS = {
    "new": "values that no evaluation sample has",
    "frequent": "the most frequent fifth of the values alone (Zipf)",
    "one": "one value in all places",
}

Ids = NDArray[np.int64]

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def run(
    splits: Annotated[int, typer.Option(help="Random clean splits of each cell.", min=1)] = 200,
    draws: Annotated[int, typer.Option(help="Draws of each shift.", min=1)] = 20,
) -> None:
    """Judge clean splits and shifted draws, and write the figures to `benchmarks/results`."""
    begun = time.monotonic()
    clean = [_clean(*cell, splits) for cell in _cells()]
    shifted = [
        _shifted(shift, width, values, strength, draws)
        for shift in SHIFTS
        for width in WIDTHS
        for values in SHIFTED_VALUES
        for strength in STRENGTHS
    ]
    sizes = {"calibration_samples": CALIBRATION, "evaluation_samples": EVALUATION, "splits": splits, "draws": draws}
    figures = sizes | {"seconds": round(time.monotonic() - begun), "clean": clean, "shifted": shifted}
    save(NAME, figures, quiet=True)
    _print(figures)


@app.command()
def table() -> None:
    """Print the tables of the last run."""
    _print(earlier(NAME))


def _print(figures: dict[str, Any]) -> None:
    print(f"{clean_table(figures)}\n\n{shifted_table(figures)}")


def clean_table(figures: dict[str, Any]) -> str:
    """Return the largest share of clean splits that are refused or warned of, by width and number of values, as Markdown."""
    lines = ["| integers a sample | " + " | ".join(f"{values:,} values" for values in VALUES) + " |"]
    lines.append("|---" * (len(VALUES) + 1) + "|")
    for width in WIDTHS:
        of_width = [one for one in figures["clean"] if one["width"] == width]
        shares = [
            max(one["refused_or_warned"]["share"] for one in of_width if one["values"] == values) for values in VALUES
        ]
        lines.append(f"| {width} | " + " | ".join(f"{100 * found:.1f} %" for found in shares) + " |")
    return "\n".join(lines)


def shifted_table(figures: dict[str, Any]) -> str:
    """Return the share of shifted draws that are refused (refused or warned of), the smallest of all numbers of values."""
    lines = ["| shift | share of samples | " + " | ".join(f"{width} a sample" for width in WIDTHS) + " |"]
    lines.append("|---" * (len(WIDTHS) + 2) + "|")
    for shift, about in SHIFTS.items():
        for strength in STRENGTHS:
            of_row = [one for one in figures["shifted"] if (one["shift"], one["strength"]) == (shift, strength)]
            cells = []
            for width in WIDTHS:
                found = [one for one in of_row if one["width"] == width]
                least = [min(one[key]["share"] for one in found) for key in ("refused", "refused_or_warned")]
                cells.append("{:.0%} ({:.0%})".format(*least))
            lines.append(f"| {about} | {strength:.0%} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cells() -> Iterator[tuple[int, int, bool, bool]]:
    """Yield width, values, whether their frequencies fall, and whether the integers are alone."""
    for width in WIDTHS:
        for values in VALUES:
            for falling in (False, True):
                yield width, values, falling, False
                if (
                    len(np.unique(_draw(width, values, falling, CALIBRATION + EVALUATION, 0), axis=0))
                    >= CALIBRATION + FEWEST
                ):
                    yield width, values, falling, True


def _draw(width: int, values: int, falling: bool, n: int, seed: int) -> Ids:
    """Return `n` rows of `width` integers from 0, `(n,)` for a width of 1, as of one id a sample."""
    frequency = np.arange(1, values + 1) ** -float(falling)
    shape = (n,) if width == 1 else (n, width)
    found: Ids = np.random.default_rng([seed, 1]).choice(values, shape, p=frequency / frequency.sum())
    return found


def _samples(ids: Ids, features: NDArray[np.float32] | None) -> Samples:
    inputs: dict[str, NDArray[Any]] = {"ids": ids} if features is None else {"ids": ids, "x": features}
    return Samples(DataFile(Path("drawn.npz"), "", len(ids)), inputs, None)


def _features(n: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng([seed, 2]).normal(size=(n, 8)).astype(np.float32)


def _dealt(pool: Ids, seed: int) -> tuple[Ids, Ids]:
    """Deal the distinct rows of a pool out: some for calibration, all copies of the others for evaluation."""
    distinct, places = np.unique(pool, axis=0, return_inverse=True)
    order = np.random.default_rng([seed, 3]).permutation(len(distinct))
    ours = order[:CALIBRATION]
    return distinct[ours], pool[~np.isin(places.reshape(-1), ours)]


def _outcome(calibration: Samples, evaluation: Samples, seed: int) -> tuple[bool, bool]:
    """Return whether `same_distribution` refuses the samples, and whether it refuses or warns."""
    digests = digest_samples(evaluation.inputs)
    compared = compare_disjoint(calibration, evaluation, digests, BOUNDS, seed, is_evaluation=True)
    bounds = {"max_psi": BOUNDS.max_psi, "min_p_value": BOUNDS.min_drift_p_value}
    signs = max(
        len(
            find_signs(
                count_in_bins(compared.statistics[one.statistic], one.edges),
                one.reference_counts,
                one.p_value,
                **bounds,
            )
        )
        for one in compared.comparisons
    )
    return signs > 1, signs > 0


def _shares(outcomes: list[tuple[bool, bool]]) -> dict[str, Any]:
    refused, told = (sum(column) for column in zip(*outcomes, strict=True))
    return {"refused": share(refused, len(outcomes)), "refused_or_warned": share(told, len(outcomes))}


def _clean(width: int, values: int, falling: bool, alone: bool, splits: int) -> dict[str, Any]:
    outcomes = []
    for seed in range(splits):
        pool = _draw(width, values, falling, CALIBRATION + EVALUATION, seed)
        if alone:
            ours, theirs = (_samples(ids, None) for ids in _dealt(pool, seed))
        else:
            x = _features(len(pool), seed)
            parts = slice(CALIBRATION), slice(CALIBRATION, None)
            ours, theirs = (_samples(pool[part], x[part]) for part in parts)
        outcomes.append(_outcome(ours, theirs, seed))
    cell = {"width": width, "values": values, "zipf": falling, "alone": alone} | _shares(outcomes)
    print(width, values, falling, alone, cell["refused_or_warned"]["count"], flush=True)
    return cell


def _shifted(shift: str, width: int, values: int, strength: float, draws: int) -> dict[str, Any]:
    outcomes = []
    for seed in range(FIRST_POWER_SEED, FIRST_POWER_SEED + draws):
        pool = _draw(width, values, shift == "frequent", CALIBRATION + EVALUATION, seed)
        ours, count = pool[:CALIBRATION].copy(), round(strength * CALIBRATION)
        ours[:count] = _shift(shift, ours[:count], values, np.random.default_rng([seed, 4]))
        x = _features(len(pool), seed)
        found = _outcome(_samples(ours, x[:CALIBRATION]), _samples(pool[CALIBRATION:], x[CALIBRATION:]), seed)
        outcomes.append(found)
    cell = {"shift": shift, "width": width, "values": values, "strength": strength} | _shares(outcomes)
    print(shift, width, values, strength, cell["refused"]["count"], flush=True)
    return cell


def _shift(shift: str, ids: Ids, values: int, rng: np.random.Generator) -> Ids:
    """Return shifted integers in place of `ids`."""
    if shift == "new":
        return ids + values
    if shift == "frequent":
        return rng.integers(0, max(1, values // 5), ids.shape)
    return np.full_like(ids, values - 1)


if __name__ == "__main__":
    app()
