"""quantgate's choice on a CPU beside what a user would pick instead, on three real models, at several shapes of a request.

    python benchmarks/variants_cpu.py text image language

For each model and shape, quantgate's candidates go through the steps of a run (`flows/quantize.py`), which chooses the fastest
that passes the gate on accuracy. The rivals (`rivals.py`) get the same source, calibration samples, evaluation samples, gate
and measurement: processes of one session each, in turn with the source's. The choice then takes turns with every rival that
passes; the smallest of these ratios is the result. Run it on a quiet machine: blocks during which others compute are measured
again. The language model is fetched and exported first (120 MB, then 540 MB on disk).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from calibration_figures import save

from tasks.run.settings import prepare_environment, state_folder

RESULTS = Path(__file__).parent / "results"

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def main(
    names: Annotated[list[str], typer.Argument(help="Of text, image, language.")],
    results: Annotated[Path, typer.Option(help="Where the figures go.")] = RESULTS,
) -> None:
    """Measure, and write `variants_cpu.json`."""
    os.environ.setdefault("QUANTGATE_STATE", str(Path(".quantgate/benchmarks").resolve()))
    prepare_environment(state_folder())
    # Prefect and MLflow read the environment when they are imported.
    from variants_compare import compare, describe
    from variants_models import MODELS

    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="quantgate-rivals-") as folder:
        for name in names:
            for case in MODELS[name](state_folder()):
                figures.setdefault(name, {})[case.label] = describe(compare(case, Path(folder, name)))
                save(results, "variants_cpu", figures | {"geometric_mean": geometric_mean(figures)})


def geometric_mean(figures: dict[str, Any]) -> float | None:
    """Of the ratios to the best rival over all models and shapes that have a choice."""
    found = [told["against_best_rival"] for shapes in figures.values() for told in shapes.values()]
    ratios = [ratio["value"] for ratio in found if ratio]
    return float(np.exp(np.log(ratios).mean())) if ratios else None


if __name__ == "__main__":
    app()
