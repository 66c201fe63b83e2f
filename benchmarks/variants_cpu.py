"""quantgate's choice on a CPU beside what a user would pick instead, on two real models, at several shapes of a request.

    python -m pip install --no-deps --target build/rivals -r benchmarks/rivals.txt
    python benchmarks/variants_cpu.py text image

For each model and shape, the default candidates of the class `cpu` go through the steps of a run (`flows/quantize.py`), which
chooses the fastest that passes the gate on accuracy. The rivals (`rivals.py`) get the same source, calibration samples,
evaluation samples, gate and measurement: processes of one session each, in turn with the source's. The choice then takes turns
with the fastest rivals that pass; the smallest of these ratios is the result.

Run it on a quiet machine: blocks during which others compute are measured again. What was made and measured is kept under
`QUANTGATE_STATE`, so that an interrupted run goes on where it stopped; `--again` times everything anew. Figures of models that
are not named stay as they are. Run through `tests/support/other_processor.py avx2`, it writes `variants_cpu_avx2.json`.
Decoders, with the cache that they are served with, are compared in `decoders.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from figures import earlier, save
from jobs import state_of

SUPPORT = Path(__file__).parents[1] / "tests/support"
MODEL_NAMES = ("text", "image")

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def main(
    names: Annotated[list[str], typer.Argument(help="Of text, image.")],
    again: Annotated[bool, typer.Option(help="Forget earlier latencies.")] = False,
    busy: Annotated[bool, typer.Option(help="Measure beside other processes too: rough figures.")] = False,
    few: Annotated[bool, typer.Option(help="Few samples and launches: each path works; no figures.")] = False,
) -> None:
    """Measure, and write `variants_cpu.json`; as a processor with AVX2 alone, `variants_cpu_avx2.json`."""
    sys.path.insert(0, str(SUPPORT))
    from other_processor import own_kind

    state = state_of("benchmarks", again=again)
    # Prefect and MLflow read the environment when they are imported.
    from variants_compare import compare
    from variants_models import MODELS, cut, rough

    file = "variants_cpu_avx2" if own_kind() == "avx2" else "variants_cpu"
    figures: dict[str, Any] = {"busy_machine": busy} | _earlier(file, names)
    for name in names:
        for case in MODELS[name](state):
            measured = rough(case) if busy else case
            found = compare(cut(measured) if few else measured, state / ("rivals-few" if few else "rivals") / name)
            figures.setdefault(name, {})[case.label] = found
            save(file, figures | {"geometric_mean": geometric_mean(figures)})


def _earlier(file: str, names: list[str]) -> dict[str, Any]:
    """Return the figures of the other models, with the date at which their file was written."""
    told = earlier(file)
    kept = {name: told[name] for name in MODEL_NAMES if name in told and name not in names}
    dates = told.get("dates_of_earlier", {})
    return kept | {"dates_of_earlier": {name: dates.get(name, told["date"]) for name in kept}} if kept else {}


def geometric_mean(figures: dict[str, Any]) -> float | None:
    """Of the ratios to the best rival over all models and shapes that have a choice."""
    models = [figures[name] for name in MODEL_NAMES if name in figures]
    found = [told["against_best_rival"] for shapes in models for told in shapes.values()]
    ratios = [ratio["value"] for ratio in found if ratio]
    return float(np.exp(np.log(ratios).mean())) if ratios else None


if __name__ == "__main__":
    app()
