"""What INT4 weights cost a language model in perplexity: SmolLM2-135M on Wikipedia articles.

    python benchmarks/int4_language.py build /tmp/language
    python benchmarks/int4_language.py rtn /tmp/language --block-size 32
    python benchmarks/int4_language.py rtn /tmp/language --block-size 64 --symmetric
    python benchmarks/int4_language.py perplexity /tmp/language/*.onnx --windows 12

`build` makes the float32 program and its windows (540 MB, one time), `rtn` a variant with ONNX Runtime's own
round-to-nearest, `perplexity` compares any files with the same inputs and outputs, each in a process of its own.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from tasks.demo.language import language_pool, open_scorer, perplexity, window_losses
from tasks.measure.inventory import usable_cores

WINDOWS_FILE = "evaluation.npy"

app = typer.Typer(add_completion=False, help=__doc__)
Models = Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="ONNX files beside their windows.")]
Count = Annotated[int, typer.Option("--windows", min=2, help="Evaluation windows of 512 tokens.")]


@app.command()
def build(folder: Annotated[Path, typer.Argument(help="Where the program and its windows go.")]) -> None:
    """Export the float32 program and save the windows, int64 [n, 512]."""
    folder.mkdir(parents=True, exist_ok=True)
    pool = language_pool(folder)
    np.save(folder / WINDOWS_FILE, pool.evaluation)
    np.save(folder / "calibration.npy", pool.calibration)
    print(f"{pool.model}: {len(pool.calibration)} calibration and {len(pool.evaluation)} evaluation windows")


@app.command()
def rtn(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="What `build` made.")],
    block_size: Annotated[int, typer.Option(help="Weights along K that share a scale.")] = 32,
    symmetric: Annotated[bool, typer.Option("--symmetric", help="Without zero points.")] = False,
) -> None:
    """Quantize the layers' weights with ONNX Runtime's MatMulNBitsQuantizer: round to nearest, float arithmetic."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    model = onnx.load(folder / "language.onnx")
    # Two lines for each of the program's 1,400 nodes otherwise.
    logging.getLogger(MatMulNBitsQuantizer.__module__).setLevel(logging.WARNING)
    quantizer = MatMulNBitsQuantizer(model, block_size=block_size, is_symmetric=symmetric, accuracy_level=0)
    quantizer.process()
    path = folder / f"rtn-g{block_size}-{'symmetric' if symmetric else 'asymmetric'}.onnx"
    onnx.save_model(quantizer.model.model, path)
    count = sum(node.op_type == "MatMulNBits" for node in quantizer.model.model.graph.node)
    print(f"{path}: {count} MatMulNBits, {path.stat().st_size / 1e6:.0f} MB")


@app.command(name="perplexity")
def compare(models: Models, windows: Count = 24) -> None:
    """Perplexity of each file, and its ratio to the first one's with a paired 95 % interval over the windows."""
    losses = {model: _losses(model, windows) for model in models}
    reference = losses[models[0]]
    print(f"{windows} windows of 512 tokens; {'perplexity':>10}  ratio to the first")
    for model, loss in losses.items():
        low, high = _interval(loss - reference)
        ratio = float(np.exp((loss - reference).mean()))
        print(f"{model.name:32} {perplexity(loss):10.2f}  {ratio:.3f} ({low:.3f} to {high:.3f})")


@app.command(hidden=True)
def score(model: Path, windows: int) -> None:
    """Print the loss of each window of one file as JSON: what `perplexity` runs for each."""
    data = np.load(model.parent / WINDOWS_FILE)[:windows]
    with open_scorer(model, usable_cores()) as scorer:
        print(json.dumps(window_losses(scorer, data).tolist()))


def _losses(model: Path, windows: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    # A process for each file: threads of sessions that share one spin against each other, and memory goes back.
    command = [sys.executable, __file__, "score", str(model), str(windows)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{model}: {run.stderr.strip()}")
    return np.array(json.loads(run.stdout.splitlines()[-1]))


def _interval(differences: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    """95 % interval of exp(mean difference), by Student's t over the windows."""
    from scipy import stats

    half = stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences)
    mean = differences.mean()
    return float(np.exp(mean - half)), float(np.exp(mean + half))


if __name__ == "__main__":
    app()
