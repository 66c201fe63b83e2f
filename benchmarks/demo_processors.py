"""The text demo on two kinds of processor: the tables of the README, from a run for each.

    python benchmarks/demo_processors.py            # this processor, and it without VNNI: ten minutes, on an idle machine
    python benchmarks/demo_processors.py avx2       # one of them; the figures of the other are kept

Each run has a state folder of its own. Prints the tables, and writes `benchmarks/results/demo_processors.json`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from figures import earlier, write
from jobs import QUANTGATE

ROOT = Path(__file__).parents[1]
LAUNCHER = ROOT / "tests/support/other_processor.py"
KEPT = ("name", "outcome", "metric_value", "metric_drop", "speedup_p50", "coverage_macs", "size_bytes", "confirmed")


def measure(kind: str, state: Path) -> dict[str, Any]:
    """Run the demo as a processor of a kind would, and return the figures of its table."""
    told = state / "result.json"
    command = [sys.executable, str(LAUNCHER), kind, *QUANTGATE, "demo", "--result", str(told)]
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"QUANTGATE_STATE": str(state / "state")}, check=False)
    result: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
    return {
        "exit": done.returncode,
        "seconds": round(time.monotonic() - started),
        **{key: result["inventory"][key] for key in ("cpu", "cores", "isa")},
        "chosen": result["chosen"],
        "baseline": result["baseline"],
        "candidates": [{key: one[key] for key in KEPT} for one in result["candidates"]],
    }


def table(run: dict[str, Any]) -> str:
    """Return the candidates of a run as Markdown."""
    baseline = run["baseline"]
    lines = [
        "| candidate | outcome | accuracy | drop, upper bound | p50 speedup, lower bound | coverage | size |",
        "|---|---|---|---|---|---|---|",
        f"| the source, fp32 | baseline | {baseline['value']:.3f} | | {baseline['latency_p50_ms']:.2f} ms | "
        f"| {baseline['size_bytes'] / 1e6:.1f} MB |",
    ]
    for one in run["candidates"]:
        name, outcome = f"`{one['name']}`", one["outcome"]
        if one["name"] == run["chosen"]:
            name, outcome = f"**{name}**", "**promoted**"
        speed = one["speedup_p50"]
        lines.append(
            f"| {name} | {outcome} | {one['metric_value']:.3f} | {100 * one['metric_drop']['high']:+.2f} pp | "
            f"{speed['value']:.2f}x, {speed['low']:.2f}x | {one['coverage_macs']:.0%} | {one['size_bytes'] / 1e6:.1f} MB |"
        )
    return "\n".join(lines)


def main() -> None:
    sys.path.insert(0, str(LAUNCHER.parent))
    from other_processor import KINDS, own_kind

    kept = earlier("demo_processors")
    for kind in sys.argv[1:] or [own_kind(), "avx2"]:
        with tempfile.TemporaryDirectory() as state:
            kept[kind] = measure(kind, Path(state))
        write("demo_processors", {one: kept[one] for one in KINDS if one in kept})
    for kind, run in kept.items():
        print(f"\n{kind}: {run['cpu']}\n\n{table(run)}")


if __name__ == "__main__":
    main()
