"""Where the benchmarks' figures go: JSON with all that a reader needs to judge them, and the picture of the power."""

from __future__ import annotations

import json
import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from tasks.measure.inventory import this_processor, usable_cores
from tasks.runtimes.ort import installed_runtime

PARTS = ("numpy", "scipy", "scikit-learn", "great-expectations")
# M. Okabe and K. Ito, "Color Universal Design", 2008: told apart in every kind of colour blindness, and by shape as well.
LINES = (("refused", "refused", "#D55E00", "o"), ("refused_or_warned", "refused or warned", "#0072B2", "s"))


def interval(hits: int, n: int) -> list[float]:
    """The 95 % interval of a share by C. J. Clopper and E. S. Pearson, Biometrika 26 (1934): never too narrow.

    >>> [round(end, 3) for end in interval(0, 200)]
    [0.0, 0.018]
    """
    found = stats.binomtest(hits, n).proportion_ci(0.95, method="exact")
    return [float(found.low), float(found.high)]


def share(hits: int, n: int) -> dict[str, Any]:
    """A share with its count and interval."""
    return {"count": hits, "share": hits / n, "interval": interval(hits, n)}


def save(folder: Path, name: str, figures: dict[str, Any], *, quiet: bool = False) -> None:
    """Write `<name>.json` with date, machine, load and versions, and print the figures unless `quiet`."""
    runtime, version = installed_runtime()
    where = {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": _cpu(),
        "isa": list(this_processor().isa),
        "threads": usable_cores(),
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "versions": {"python": platform.python_version(), runtime: version}
        | {part: metadata.version(part) for part in PARTS},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(figures | where, indent=1) + "\n", encoding="utf-8")
    if not quiet:
        print(json.dumps(figures, indent=1))


def draw_power(folder: Path, drifts: dict[str, Any]) -> None:
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
    figure.savefig(folder / "power.png", dpi=150)
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


def _cpu() -> str:
    """The processor's name. `platform.processor()` is empty on many Linux systems."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
