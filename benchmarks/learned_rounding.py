"""What rounding costs by method: the demos' models with weights alone quantized, and with Q/DQ pairs.

    python benchmarks/learned_rounding.py --state ~/quantgate-benchmark

Weights are quantized on the calibration samples and everything is measured on the evaluation samples: accuracy, its difference
from the float model with a 95 % interval of paired samples, and the squared error of the outputs as a share of their variance.
INT4 of convolutions has no kernel in any engine; its weights are computed back to float.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from figures import save
from numpy.typing import NDArray

from tasks.demo import image, text
from tasks.engines.ort.pairs import PAIRS
from tasks.measure.inventory import usable_cores
from tasks.ptq.calibrate.calibration import calibrate, read_ranges
from tasks.ptq.calibrate.grams import Gram, collect_grams
from tasks.ptq.calibrate.in_order import collect_in_order
from tasks.ptq.eight_bit.affine import WEIGHT_LIMIT, read_weight
from tasks.ptq.eight_bit.int8_weights import Int8Weights, layers_to_learn
from tasks.ptq.eight_bit.qdq import quantize_qdq
from tasks.ptq.graph.edits import initializers, name_nodes, output_channel_axis, weighted_nodes
from tasks.ptq.graph.prepare import prepare_graph
from tasks.ptq.weight_only.matmul_nbits import BlockWeights, quantize_weights
from tasks.runtimes.ort import open_session, run_batches
from validators.graph.stored import from_array, to_array
from validators.records.run import DataFile, SessionSettings
from validators.samples.datasets import Samples

Array = NDArray[Any]
# Symmetric INT4 by output channel: of the benchmark alone.
WEIGHT_LIMIT[4] = 7


def main(state: Annotated[Path, typer.Option(help="Folder of the demos' assets and models.")]) -> None:
    """Measure both demos and write the figures."""
    found: dict[str, Any] = {}
    for name, demo in (("text", text.build(state)), ("image", image.build(state))):
        with TemporaryDirectory() as folder:
            graph = Path(folder) / "prepared.onnx"
            prepare_graph(_as_onnx(name, demo.model_path, Path(folder)), graph)
            found[name] = Bench(
                graph, demo.calibration_path, demo.evaluation_path, every_operator=name == "image"
            ).rows()
        save("learned_rounding", found, quiet=True)


def _as_onnx(name: str, path: Path, folder: Path) -> Path:
    if name == "text":
        return path
    import torch

    example = torch.zeros(2, 3, image.SIZE_PIXELS, image.SIZE_PIXELS)
    onnx.save(text.to_onnx(image.load_model(path), (example,), {"image": {0: "batch"}}), folder / "image.onnx")
    return folder / "image.onnx"


def _samples(path: Path, names: list[str]) -> Samples:
    with np.load(path) as arrays:
        labels = arrays["label"]
        return Samples(DataFile(path, "0" * 64, len(labels)), {name: arrays[name] for name in names}, labels)


class Bench:
    """One model with its data."""

    def __init__(self, graph: Path, calibration: Path, evaluation: Path, *, every_operator: bool) -> None:
        self.graph, self.every_operator = graph, every_operator
        names = [value.name for value in onnx.load(graph).graph.input]
        drawn, self.samples = (_samples(path, names) for path in (calibration, evaluation))
        self.labels = self.samples.labels
        self.statistics = graph.with_name("statistics.npz")
        calibrate(graph, drawn, self.statistics, threads=usable_cores(), max_memory_mb=3000)
        self.batches = list(drawn.batches(8))
        products, self.convolutions = layers_to_learn(graph)
        started = time.monotonic()
        self.sums = collect_grams(
            graph, dict(products.values()), lambda: self.batches, max_memory_mb=3000, threads=usable_cores()
        )
        self.gram_seconds = time.monotonic() - started
        self.grams = {node: self.sums[name] for node, (name, _) in products.items()}
        self.float_answers = self.answers(graph)

    def seen(self, weights: Int8Weights) -> dict[str, Gram]:
        """Return the Gram matrix of each layer, by node."""
        settings, rounded = SessionSettings.reference(usable_cores()), weights.round_convolution
        return self.grams | collect_in_order(
            self.graph, self.convolutions, self.batches, rounded, settings, max_memory_mb=3000
        )

    def answers(self, path: Path) -> Array:
        """Return the logits of all evaluation samples."""
        with open_session(path, SessionSettings.reference(usable_cores(), "basic")) as session:
            return run_batches(session, self.samples.batches(50), session.get_outputs()[0].name)

    def rows(self) -> dict[str, Any]:
        """Return the figures of each form and method."""
        forms = {f"weights alone, {bits} bits per channel": partial(self._weights, bits=bits) for bits in (8, 7, 4)}
        forms |= {f"Q/DQ, {bits} bits per channel": partial(self._pairs, bits=bits) for bits in (8, 7)}
        methods = dict.fromkeys(forms, ("rtn", "learned"))
        if not self.every_operator:
            blocks = {
                "INT4 in blocks of 32, symmetric": partial(self._blocks, symmetric=True),
                "INT4 in blocks of 32, with zero points": partial(self._blocks, symmetric=False),
            }
            methods |= dict.fromkeys(blocks, ("rtn", "gptq", "learned"))
            forms |= blocks
        rows = {"float accuracy": self._accuracy(self.float_answers), "gram seconds": round(self.gram_seconds, 1)}
        for form, make in forms.items():
            rows[form] = {}
            for method in methods[form]:
                rows[form][method] = self._row(make, method)
                print(form, method, rows[form][method], flush=True)
        return rows

    def _accuracy(self, answers: Array) -> float:
        return float((answers.argmax(axis=-1) == self.labels).mean())

    def _row(self, make: Callable[[Path, str], None], method: str) -> dict[str, Any]:
        path = self.graph.with_name("variant.onnx")
        started = time.monotonic()
        make(path, method)
        seconds = time.monotonic() - started
        answers, reference = self.answers(path), self.float_answers
        right = [(one.argmax(axis=-1) == self.labels).astype(float) for one in (answers, reference)]
        lost = right[1] - right[0]
        half = 1.96 * lost.std(ddof=1) / len(lost) ** 0.5
        error = ((answers - reference) ** 2).sum() / ((reference - reference.mean(axis=0)) ** 2).sum()
        return {
            "accuracy": self._accuracy(answers),
            "drop": float(lost.mean()),
            "drop interval": [float(lost.mean() - half), float(lost.mean() + half)],
            "relative output error": float(error),
            "seconds": round(seconds, 1),
        }

    def _weights(self, path: Path, method: str, bits: int) -> None:
        proto = onnx.load(self.graph)
        name_nodes(proto.graph)
        constants, weights = initializers(proto.graph), Int8Weights(True, bits, method)  # type: ignore[arg-type]  # 4 bits are of this file
        seen = self.seen(weights) if weights.method == "learned" else {}
        for node, weight in weighted_nodes(proto.graph):
            values, axis = to_array(weight), output_channel_axis(node, weight)
            made = read_weight(*weights.quantize(values, axis, gram=seen.get(node.name)), axis)
            constants[weight.name].CopyFrom(from_array(made, weight.name))
        onnx.save(proto, path)

    def _pairs(self, path: Path, method: str, bits: int) -> None:
        weights = Int8Weights(True, bits, method)  # type: ignore[arg-type]  # 7 or 8
        quantize_qdq(
            self.graph,
            path,
            read_ranges(self.statistics, "mse", symmetric=False),
            rules=PAIRS,
            every_operator=self.every_operator,
            activation="uint8",
            weights=weights,
            grams=(lambda _nodes: self.seen(weights)) if method == "learned" else None,
        )

    def _blocks(self, path: Path, method: str, symmetric: bool) -> None:
        grams: Mapping[str, Gram] = {
            name: Gram(gram.matrix.copy(), gram.mean_absolute, gram.rows) for name, gram in self.sums.items()
        }
        quantize_weights(self.graph, path, BlockWeights(method, 32, symmetric, accuracy_level=0), grams=grams)  # type: ignore[arg-type]  # a name of the table


if __name__ == "__main__":
    sys.exit(typer.run(main))
