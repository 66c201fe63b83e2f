"""Figures of the benchmarks: JSON files with all that a reader needs to judge them, and shares with their intervals."""

from __future__ import annotations

import json
import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import stats

from tasks.measure.inventory import processor_name, this_processor, usable_cores
from tasks.runtimes.ort import installed_runtime

RESULTS = Path(os.environ.get("BENCHMARK_RESULTS", Path(__file__).parent / "results"))
RESULTS.mkdir(parents=True, exist_ok=True)
PARTS = ("numpy", "scipy", "scikit-learn", "great-expectations", "onnx")


def share(hits: int, n: int) -> dict[str, Any]:
    """A share with its count and 95 % interval by C. J. Clopper and E. S. Pearson, Biometrika 26 (1934): never too narrow.

    >>> [round(end, 3) for end in share(0, 200)["interval"]]
    [0.0, 0.018]
    """
    found = stats.binomtest(hits, n).proportion_ci(0.95, method="exact")
    return {"count": hits, "share": hits / n, "interval": [float(found.low), float(found.high)]}


def earlier(name: str) -> dict[str, Any]:
    """Return the figures of `<name>.json`; empty if there is no such file."""
    path = RESULTS / f"{name}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def write(name: str, document: dict[str, Any]) -> None:
    """Write `<name>.json` with nothing else in it."""
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def save(name: str, figures: dict[str, Any], *, quiet: bool = False) -> None:
    """Write `<name>.json` with date, machine, load and versions, and print the figures unless `quiet`."""
    runtime, version = installed_runtime()
    where = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cpu": processor_name(),
        "isa": list(this_processor().isa),
        "threads": usable_cores(),
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "versions": {"python": platform.python_version(), runtime: version}
        | {part: metadata.version(part) for part in PARTS},
    }
    write(name, figures | where)
    if not quiet:
        print(json.dumps(figures, indent=1))


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Print rows as a table; a share as one column, without its count and interval."""
    flat = [{key: cell["share"] if isinstance(cell, dict) else cell for key, cell in row.items()} for row in rows]
    print(pd.DataFrame(flat).to_string(index=False, float_format="{:.4f}".format), flush=True)
