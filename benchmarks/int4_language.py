"""What INT4 weights cost a language model in perplexity: SmolLM2-135M on Wikipedia articles.

    python benchmarks/int4_language.py build /tmp/language
    python benchmarks/int4_language.py table /tmp/language
    python benchmarks/int4_language.py perplexity /tmp/language/*.onnx --windows 12

`build` makes the float32 program and its windows (540 MB, one time). `table` makes each variant with quantgate's own pass,
scores it in a process of its own, removes it, and writes `benchmarks/results/int4_language.json` after every row; rows that
are there already are not measured again. `perplexity` compares any files with the same inputs and outputs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from figures import earlier, save
from models.language import language_pool, open_scorer, window_losses
from processes import answer_of

from tasks.measure.inventory import usable_cores
from tasks.measure.latency.ratio import ratio_estimate
from tasks.measure.metrics.perplexity import perplexity
from tasks.ptq.calibrate.grams import Gram, collect_grams
from tasks.ptq.eight_bit.tied import TableBits
from tasks.ptq.weight_only.matmul_nbits import BlockWeights, quantize_weights
from tasks.ptq.weight_only.sites import tensors_to_collect
from validators.records.measurements import Estimate

MODEL, WINDOWS_FILE, CALIBRATION_FILE = "language.onnx", "evaluation.npy", "calibration.npy"
# Calibration windows, and how many of them run at once: 16,384 rows for each Gram matrix.
CALIBRATION_WINDOWS, BATCH, GRAM_MEMORY_MB = 32, 4, 4000.0

Losses = np.ndarray[tuple[int], np.dtype[np.float64]]

app = typer.Typer(add_completion=False, help=__doc__)
Models = Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="ONNX files beside their windows.")]
Folder = Annotated[Path, typer.Argument(exists=True, file_okay=False, help="What `build` made.")]
Count = Annotated[int, typer.Option("--windows", min=2, help="Evaluation windows of 512 tokens.")]


@dataclass(frozen=True)
class Variant:
    """A row of the table: the layers' method and blocks (None is float32), and the bits of embedding and head."""

    method: str | None
    block_size: int = 32
    symmetric: bool = False
    embedding: TableBits | None = None
    head: TableBits | None = None
    accuracy_level: int = 0

    @property
    def name(self) -> str:
        layers = f"{self.method}-g{self.block_size}-{'sym' if self.symmetric else 'asym'}" if self.method else "fp32"
        level = f", accuracy_level {self.accuracy_level}" if self.accuracy_level else ""
        return f"{layers}, embedding {self.embedding or 'fp32'}, head {self.head or 'fp32'}{level}"


FLOAT = Variant(None)
LAYERS = tuple(
    Variant(method, size, symmetric)
    for size in (32, 64)
    for method in ("rtn", "hqq", "gptq", "awq")
    for symmetric in ((False,) if method == "hqq" else (False, True))
)
TIED = tuple(
    Variant(None, 32, embedding=embedding, head=head)
    for embedding, head in ((None, 8), (None, 4), (8, None), (4, None), (8, 8), (8, 4), (4, 8), (4, 4))
)
WHOLE = (
    Variant("rtn", 32, accuracy_level=4),
    Variant("gptq", 32, embedding=8, head=8),
    Variant("gptq", 32, embedding=8, head=8, accuracy_level=4),
)


@app.command()
def build(folder: Annotated[Path, typer.Argument(help="Where the program and its windows go.")]) -> None:
    """Export the float32 program and save the windows, int64 [n, 512]."""
    folder.mkdir(parents=True, exist_ok=True)
    pool = language_pool(folder)
    np.save(folder / WINDOWS_FILE, pool.evaluation)
    np.save(folder / CALIBRATION_FILE, pool.calibration)
    print(f"{pool.model}: {len(pool.calibration)} calibration and {len(pool.evaluation)} evaluation windows")


@app.command()
def table(folder: Folder, windows: Count = 12) -> None:
    """Measure every variant that the results file lacks."""
    rows: dict[str, Any] = earlier("int4_language").get("rows", {})
    missing = [variant for variant in (FLOAT, *LAYERS, *TIED, *WHOLE) if variant.name not in rows]
    grams = _grams(folder) if any(variant.method in ("gptq", "awq") for variant in missing) else {}
    for variant in missing:
        path = folder / MODEL if variant == FLOAT else _make(variant, folder, grams)
        losses = _losses(path, windows)
        rows[variant.name] = {"size_bytes": path.stat().st_size, "losses": losses.tolist()}
        if path.name != MODEL:
            path.unlink()
        _save(rows, windows)


def _grams(folder: Path) -> Mapping[str, Gram]:
    model, samples = folder / MODEL, np.load(folder / CALIBRATION_FILE)[:CALIBRATION_WINDOWS]
    tensors = tensors_to_collect(model, block_size=32, exclude=[_head_of(model)])
    starts = range(0, len(samples), BATCH)
    return collect_grams(
        model,
        tensors,
        lambda: ({"input_ids": samples[start : start + BATCH]} for start in starts),
        max_memory_mb=GRAM_MEMORY_MB,
        threads=usable_cores(),
    )


def _head_of(model: Path) -> str:
    import onnx

    nodes = onnx.load(model, load_external_data=False).graph.node
    return str(next(node.name for node in nodes if "logits" in node.output))


def _make(variant: Variant, folder: Path, grams: Mapping[str, Gram]) -> Path:
    import onnx

    model, path = folder / MODEL, folder / "variant.onnx"
    head = _head_of(model)
    excluded = [] if variant.head or variant.embedding else [head]
    if variant.method is None:
        nodes = onnx.load(model, load_external_data=False).graph.node
        excluded = [node.name for node in nodes if node.op_type == "MatMul" and node.name != head]
    weights = BlockWeights(
        variant.method or "rtn",
        variant.block_size,
        variant.symmetric,
        variant.accuracy_level,
        embedding_bits=variant.embedding,
        head_bits=variant.head,
    )
    quantize_weights(model, path, weights, grams=grams, exclude=excluded)
    return path


def _save(rows: dict[str, Any], windows: int) -> None:
    """Write the rows with perplexities and their ratios to that of the float model, and print the last one."""
    float32 = np.array(rows[FLOAT.name]["losses"])
    for row in rows.values():
        loss = np.array(row["losses"])
        ratio = _ratio(loss, float32)
        row |= {"perplexity": perplexity(loss), "ratio": ratio.value, "interval": [ratio.low, ratio.high]}
    sizes = {"windows": windows, "calibration_windows": CALIBRATION_WINDOWS}
    save("int4_language", sizes | {"rows": rows}, quiet=True)
    name, row = list(rows.items())[-1]
    print(f"{name:60} {row['perplexity']:8.2f} {row['size_bytes'] / 1e6:6.0f} MB", flush=True)


@app.command(name="perplexity")
def compare(models: Models, windows: Count = 24) -> None:
    """Perplexity of each file, and its ratio to the first one's with a paired 95 % interval over the windows."""
    losses = {model: _losses(model, windows) for model in models}
    reference = losses[models[0]]
    print(f"{windows} windows of 512 tokens; {'perplexity':>10}  ratio to the first")
    for model, loss in losses.items():
        ratio = _ratio(loss, reference)
        print(f"{model.name:32} {perplexity(loss):10.2f}  {ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})")


@app.command(hidden=True)
def score(model: Path, windows: int) -> None:
    """Print the loss of each window of one file as JSON: what `perplexity` runs for each."""
    data = np.load(model.parent / WINDOWS_FILE)[:windows]
    with open_scorer(model, usable_cores()) as scorer:
        print(json.dumps(window_losses(scorer, data).tolist()))


def _losses(model: Path, windows: int) -> Losses:
    # A process for each file: threads of sessions that share one spin against each other, and memory goes back.
    return np.array(answer_of([sys.executable, __file__, "score", str(model), str(windows)]))


def _ratio(losses: Losses, reference: Losses) -> Estimate:
    """The ratio of perplexities, with a two-sided 95 % interval by Student's t over the windows."""
    return ratio_estimate(np.exp(losses - reference)[:, None].tolist(), 0.975)


if __name__ == "__main__":
    app()
