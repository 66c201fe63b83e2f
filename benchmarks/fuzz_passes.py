"""Take random small models through every candidate of the processor engines (`tests/support/fuzz.py` has the promises).

    python benchmarks/fuzz_passes.py 0 1000

Findings end up in `benchmarks/results/fuzz_passes.json`: models, candidates, refusals by reason, the largest errors, and every
promise that was broken and engine that differs, with its seed. Seeds that the file covers already stay, where it begins at
the same one.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from figures import earlier, save

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from fuzz import ENGINE_BOUND, check_model


def main(
    first: Annotated[int, typer.Argument(help="First seed.")] = 0,
    end: Annotated[int, typer.Argument(help="Seed after the last one.")] = 1000,
) -> None:
    """Check the models of these seeds, and write figures after each."""
    before = earlier("fuzz_passes")
    if before.get("seeds", [None])[0] != first:
        before = {}
    kinds: Counter[str] = Counter(before.get("kinds"))
    refused = {name: Counter(of) for name, of in before.get("refused", {}).items()}
    largest: dict[str, dict[str, float]] = before.get("largest", {})
    broken: list[dict[str, Any]] = before.get("broken", [])
    noted: list[dict[str, Any]] = before.get("noted", [])
    for seed in range(before.get("seeds", [first, first])[1], end):
        with tempfile.TemporaryDirectory(prefix="quantgate-") as folder:
            try:
                steps, findings = check_model(seed, Path(folder, "model"))
            except Exception as error:  # a crash is a finding, and the next model is another one
                broken.append({"seed": seed, "broken": f"{type(error).__name__}: {error}"[:300]})
                print(broken[-1], flush=True)
                continue
        kinds.update(set(steps))
        for found in findings:
            if found.refused:
                refused.setdefault(found.candidate, Counter())[found.refused.split(" (n")[0][:60]] += 1
                continue
            errors = largest.setdefault(found.candidate, {"of_file": 0.0, "of_engine": 0.0})
            for name in errors:
                errors[name] = max(errors[name], round(float(getattr(found, name)), 4))
            if not found.broken and found.of_engine > ENGINE_BOUND:
                noted.append({"seed": seed, "steps": steps, **vars(found)})
            if found.broken:
                broken.append({"seed": seed, "steps": steps, **vars(found)})
                print(broken[-1], flush=True)
        figures = {
            "seeds": [first, seed + 1],
            "kinds": kinds,
            "broken": broken,
            "noted": noted,
            "largest": largest,
            "refused": refused,
        }
        save("fuzz_passes", figures, quiet=True)


if __name__ == "__main__":
    typer.run(main)
