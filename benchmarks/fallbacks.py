"""Silent fallbacks: what a file's label and its operators say, and what the runtime says.

    python benchmarks/fallbacks.py              # minutes: the programs of torch-inductor are compiled
    python benchmarks/fallbacks.py openvino     # the rows of one engine; those of the others are kept

Prints the table, and writes `benchmarks/results/fallbacks.json`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from fallback_cuda import PLANTED, Planted
from fallback_inductor import ARRAYS, PACKAGE, PROGRAMS, TOLD, Program
from fallback_openvino import OPENVINO_PLANTS
from fallback_plants import ON_CPU, PLANTS, Plant
from figures import earlier, write
from numpy.typing import NDArray

from tasks.engines.variants import session_settings
from tasks.runtimes.coverage import coverage_of, measure_coverage, profile_kernels
from tasks.runtimes.macs import MAC_RULES
from tasks.runtimes.runner import open_runner
from validators.errors import CandidateRefused
from validators.gates.coverage import judge_coverage
from validators.graph.source_graph import QUANTIZED_OPERATORS
from validators.job.candidate_name import decode
from validators.job.job_gates import Gates
from validators.plain_text import markdown_table
from validators.records.measurements import Coverage
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays

SAMPLES = 64
Row = dict[str, Any]


def rows_of(makers: Iterable[Callable[[Path], Row]]) -> list[Row]:
    """Rows that are made in a folder each."""
    found = []
    for make in makers:
        with tempfile.TemporaryDirectory() as folder:
            found.append(make(Path(folder)))
    return found


def cuda_row(planted: Planted) -> Row:
    """A row of the CUDA provider by a profile that was written by hand."""
    coverage = coverage_of(planted.graph, planted.events, "CUDAExecutionProvider", planted.requests)
    return _row(planted.name, planted.label, None, None, planted.counted, coverage)


# The rows by the engine of their label.
ENGINES: dict[str, Callable[[], list[Row]]] = {
    "ort-cpu": lambda: rows_of(partial(row, plant) for plant in PLANTS),
    "openvino": lambda: rows_of(partial(row, plant) for plant in OPENVINO_PLANTS),
    "torch-inductor": lambda: rows_of(partial(inductor_row, *one) for one in PROGRAMS.items()),
    "ort-cuda": lambda: [cuda_row(planted) for planted in PLANTED],
}


def row(plant: Plant, folder: Path) -> Row:
    """One line: the label, agreement with float, the count of operators, the runtime's word and the gate's."""
    before, after = plant.save(folder)
    batch = draw_batch(before)
    outputs = [answers(path, plant.settings, batch) for path in (before, after)]
    baseline = profile_kernels(before, ON_CPU, batch)
    coverage = measure_coverage(after, plant.settings, batch, baseline=baseline)
    agreement = float((outputs[0].argmax(axis=1) == outputs[1].argmax(axis=1)).mean())
    counted = count_operators(onnx.load(after).graph)
    return _row(plant.name, plant.label, agreement, sqnr_db(*outputs), counted, coverage)


def inductor_row(name: str, program: Program, folder: Path) -> Row:
    """The same for a program; the float twin is PyTorch's."""
    script = Path(__file__).with_name("fallback_inductor.py")
    subprocess.run([sys.executable, "-W", "ignore", str(script), name, str(folder)], check=True)
    with np.load(folder / ARRAYS) as archive:
        batch, reference = {"x": archive["x"]}, archive["float"].astype(np.float64).reshape(SAMPLES, -1)
    settings = session_settings(decode(program.label), 1)
    counted = json.loads((folder / TOLD).read_text(encoding="utf-8"))["operators_counted"]
    agreement = noise = None
    try:
        outputs = answers(folder / PACKAGE, settings, batch)
        agreement = float((reference.argmax(axis=1) == outputs.argmax(axis=1)).mean())
        noise = sqnr_db(reference, outputs)
        coverage = measure_coverage(folder / PACKAGE, settings, batch)
    except CandidateRefused as refusal:
        # The package does not run; or, before the gate: a label in float32 accepts no products in 16 bits.
        claim = _claim(f"TorchInductor: {name}", program.label, agreement, noise, counted)
        return claim | {"coverage_macs": None, "kernels": {}, "verdict": "refused", "reason": refusal.found}
    return _row(f"TorchInductor: {name}", program.label, agreement, noise, counted, coverage)


def _claim(name: str, label: str, agreement: float | None, sqnr: float | None, counted: float) -> Row:
    return {"file": name, "label": label, "agreement": agreement, "sqnr_db": sqnr, "operators_counted": counted}


def _row(name: str, label: str, agreement: float | None, sqnr: float | None, counted: float, coverage: Coverage) -> Row:
    verdict = judge_coverage(label, coverage, Gates())
    assert verdict is not None
    return _claim(name, label, agreement, sqnr, counted) | {
        "coverage_macs": verdict.value,
        "kernels": coverage.macs_by_kernel,
        "float_nodes": coverage.float_nodes,
        "unfused": [kernel.name for kernel in coverage.unfused],
        "inserted": coverage.inserted_counts,
        "verdict": verdict.outcome,
        "reason": verdict.reason,
    }


def draw_batch(model: Path) -> Arrays:
    """Normal samples as the model takes them."""
    (given,) = onnx.load(model, load_external_data=False).graph.input
    shape = [axis.dim_value for axis in given.type.tensor_type.shape.dim[1:]]
    return {given.name: np.random.default_rng(0).normal(size=(SAMPLES, *shape)).astype(np.float32)}


def answers(model: Path, settings: SessionSettings, batch: Arrays) -> NDArray[np.float64]:
    """The output, `(samples, values)`."""
    with open_runner(model, settings) as runner:
        output: NDArray[np.float64] = runner.run(batch, [runner.outputs[0].name])[0].astype(np.float64)
    return output.reshape(-1, SAMPLES).T if len(output) != SAMPLES else output.reshape(SAMPLES, -1)


def sqnr_db(reference: NDArray[np.float64], outputs: NDArray[np.float64]) -> float | None:
    """Signal to noise in decibels; None where there is no noise."""
    noise = float(((reference - outputs) ** 2).sum())
    return 10 * float(np.log10((reference**2).sum() / noise)) if noise else None


def count_operators(graph: onnx.GraphProto) -> float:
    """The share of products that a count of the file's operators takes for quantized, 0 to 1.

    Those of integer types, those that read a DequantizeLinear, however far off, and those in float16.
    """
    marked = {tensor.name for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT16}
    products, quantized = 0, 0
    for node in graph.node:
        is_integer = node.op_type.startswith(QUANTIZED_OPERATORS)
        if is_integer or marked.intersection(node.input):
            marked |= set(node.output)
        if node.op_type in MAC_RULES:
            products += 1
            quantized += is_integer or bool(marked.intersection(node.input))
            marked -= set(node.output)
    return quantized / products


def table(found: list[Row]) -> str:
    head = ("file", "label", "agrees with float", "operators counted", "runtime: MACs", "kernels", "verdict")
    rows = []
    for each in found:
        noise = f", {each['sqnr_db']:.0f} dB" if each["sqnr_db"] else ""
        agrees = "" if each["agreement"] is None else f"{each['agreement']:.0%}{noise}"
        measured = "" if each["coverage_macs"] is None else f"{each['coverage_macs']:.0%}"
        told = (each["file"], f"`{each['label']}`", agrees, f"{each['operators_counted']:.0%}", measured)
        rows.append((*told, ", ".join(each["kernels"]), each["verdict"]))
    return markdown_table(head, rows)


def main(engines: Sequence[str]) -> None:
    """The table, measured anew for these engines, or for all."""
    before: list[Row] = earlier("fallbacks").get("rows", [])
    found = []
    for engine, measure in ENGINES.items():
        kept = [row for row in before if row["label"].endswith(f"@{engine}")]
        found += kept if engines and engine not in engines else measure()
    versions = {name: metadata.version(name) for name in ("onnxruntime", "openvino")}
    write("fallbacks", {**versions, "samples": SAMPLES, "rows": found})
    print(table(found))


if __name__ == "__main__":
    main(sys.argv[1:])
