"""Which targets a model reaches at each opset: every default candidate made from models that torch exports.

    python benchmarks/opset_matrix.py    # 7 minutes of processor time

Each source goes through the first step of a run, and each candidate through the pass that makes it. A file is checked by
onnx, by the target's linter where there is one, and by its outputs and fused kernels on ONNX Runtime's CPU provider; the files
of `tensorrt` at some opsets are built ahead of time by TensorRT-RTX. Nothing runs on a GPU.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from exported_models import LABELS, LENGTH, SIDE, TOKENS, cnn, lstm, transformer
from figures import save
from real_builds import build

from tasks.engines.catalog import find_target, lint
from tasks.engines.tensorrt.build import available
from tasks.engines.variants import make_variant, session_settings
from tasks.evidence.resolve_source import resolve_source
from tasks.evidence.target_inventory import take_inventory
from tasks.measure.latency.patience import RunPatience
from tasks.ptq.build_variant import Materials
from tasks.run.clock import Clock
from tasks.run.context import Run
from tasks.run.footprint import Footprint
from tasks.run.loaded_run import with_inputs
from tasks.runtimes.ort import describe_inputs, describe_outputs, open_session, run_outputs
from tasks.storage.locks import FolderLocks
from tasks.storage.store import Store
from tasks.trials.materials import materials_of
from validators.errors import CandidateRefused
from validators.graph.source_graph import opset_of
from validators.job.candidate_name import Candidate, decode
from validators.job.read_job import parse_job
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays, load_samples
from validators.samples.evidence import Evidence
from validators.targets import built_in_engines, facts_of

MODELS: dict[str, Callable[[Path, int], Path]] = {"transformer": transformer, "cnn": cnn, "lstm": lstm}
OPSETS = (11, 13, 14, 17, 18, 20, 21)
# Those that take ONNX.
ENGINES = tuple(name for name in built_in_engines() if facts_of(name).runs_sources and not facts_of(name).generates)
# Builds take the longest: one opset below the least that passes take, one that exporters write most, the newest.
BUILT_OPSETS = (11, 17, 21)
SAMPLES = 64
# One kernel may take in the bias or the sum before it, or be the INT8 form of the other.
FAMILY = {
    **dict.fromkeys(("LayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization"), "norm"),
    **dict.fromkeys(("Gelu", "BiasGelu", "FastGelu"), "gelu"),
    **dict.fromkeys(("Attention", "QAttention", "MultiHeadAttention"), "attention"),
    **dict.fromkeys(("LSTM", "DynamicQuantizeLSTM"), "lstm"),
}
# Refusals that are right, by pattern of the candidate and of its reason.
RIGHT_REFUSALS = (
    (r"fp32-fused@ort-(cpu|cuda)|.*\+fused@.*", r"no attention, layer normalization or GELU pattern"),
    (r"int4-g128-.*", r"blocks of 128 do not divide its 64 channels"),
)
# The largest difference of the logits, in units of the largest logit, that precision explains.
MOST_ERROR = {"fp32": 1e-4, "fp16": 0.01, "int8": 0.25, "int4": 0.4, "fp8": 0.25}
# ONNX Runtime 1.31.1 would store the float16 biases of convolutions as INT32 with scales that float16 rounds to zero.
CPU = SessionSettings("CPUExecutionProvider", 1, "basic").without_spinning()
EXCEPT = ("WeightBiasQuantization",)


@dataclass(frozen=True)
class Cell:
    """One candidate of one model at one opset.

    `opset` is that of the file; `kernels` counts the fused kernels that ONNX Runtime's CPU provider makes of it, by family;
    `error` is the largest difference of the logits in units of the largest; `findings` are rules of the target's linter;
    `built` tells whether TensorRT-RTX built it, None where that was not tried. `faults` is empty where all is right.
    """

    candidate: str
    outcome: str
    reason: str = ""
    opset: int = 0
    kernels: dict[str, int] = field(default_factory=dict)
    error: float | None = None
    findings: tuple[str, ...] = ()
    built: bool | None = None
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bench:
    """A source as a run takes it in, and all that candidates are made from."""

    exported: Path
    source: Path
    materials: Materials
    batch: Arrays
    exact: NDArray[Any]
    kernels: dict[str, int]

    def make(self, candidate: Candidate, folder: Path, *, with_build: bool = False) -> Cell:
        """The candidate's file, or its refusal, and what is wrong with either."""
        try:
            variant = make_variant(candidate, self.materials, folder, threads=1)
        except CandidateRefused as error:
            right = any(
                re.fullmatch(name, candidate.name) and re.search(reason, error.found) for name, reason in RIGHT_REFUSALS
            )
            faults = () if right else (f"{error.kind}: {error.found}",)
            return Cell(candidate.name, "refused", error.found, faults=faults)
        target, on_cpu = candidate.target, variant.session.provider == CPU.provider
        found = _logits(variant.path, variant.session if on_cpu else CPU, self.batch)
        error = float(np.abs(found - self.exact).max() / np.abs(self.exact).max())
        has_rules = find_target(target).lint_rules
        findings = tuple(sorted({one.rule for one in lint(variant.path, target)})) if has_rules else ()
        kernels = fused_kernels(variant.path, variant.session, folder) if on_cpu else {}
        built, faults = None, []
        if not error <= MOST_ERROR[candidate.precision]:
            faults.append(f"the logits differ by {error:.3g} of the largest")
        if on_cpu and not candidate.is_simulated and not self._keeps_kernels(candidate, kernels):
            faults.append(f"fused kernels {kernels}, where the source has {self.kernels}")
        if with_build:
            made = build(variant.path)[0]
            built = made.engine
            faults += made.errors
        opset = opset_of(onnx.load(variant.path, load_external_data=False))
        return Cell(candidate.name, "made", "", opset, kernels, float(f"{error:.3g}"), findings, built, tuple(faults))

    def _keeps_kernels(self, candidate: Candidate, kernels: dict[str, int]) -> bool:
        """Whether a file has the source's fused kernels; the fused graph may have more."""
        if candidate.fused:
            return all(kernels.get(family, 0) >= count for family, count in self.kernels.items())
        return kernels == self.kernels


def open_bench(model: str, opset: int, folder: Path) -> Bench:
    """Export a model, take it in as a run does, and prepare what candidates are made from."""
    exported = MODELS[model](folder / f"{model}.onnx", opset)
    rng = np.random.default_rng(0)
    arrays: dict[str, NDArray[Any]] = (
        {"pixels": rng.normal(size=(2 * SAMPLES, 3, SIDE, SIDE)).astype(np.float32)}
        if model == "cnn"
        else {"input_ids": rng.integers(0, TOKENS, (2 * SAMPLES, LENGTH))}
    )
    labels = rng.integers(0, LABELS, 2 * SAMPLES)
    halves = {"calibration": slice(SAMPLES), "evaluation": slice(SAMPLES, None)}
    for role, rows in halves.items():
        np.savez(folder / f"{role}.npz", label=labels[rows], **{name: array[rows] for name, array in arrays.items()})
    job = parse_job({"source": str(exported), "data": {role: f"{role}.npz" for role in halves}}, base=folder)
    store = Store(folder / "store")
    run = Run(job, folder, "", store, Clock(), FolderLocks(folder), Footprint(job.budgets, store), RunPatience(0))
    source = resolve_source.fn(run)
    with open_session(source.onnx_path, CPU) as session:
        inputs, output = describe_inputs(session), describe_outputs(session)[0]
    calibration = load_samples(folder / "calibration.npz", inputs, label="label", role="calibration")
    evaluation = load_samples(folder / "evaluation.npz", inputs, label="label", role="evaluation")
    evidence = Evidence(inputs, output, calibration, evaluation, None, None, np.zeros(SAMPLES, bool))
    materials = materials_of(with_inputs(run, source, evidence, take_inventory("ort-cpu")))
    batch = next(evaluation.batches(SAMPLES))
    settings = session_settings(decode("fp32-fused@ort-cpu"), 1)
    return Bench(
        exported,
        source.onnx_path,
        materials,
        batch,
        _logits(exported, settings, batch),
        fused_kernels(exported, settings, folder),
    )


def fused_kernels(model: Path, settings: SessionSettings, folder: Path) -> dict[str, int]:
    """How many fused kernels of each family the runtime makes of a model."""
    with open_session(model, settings, optimized_model=folder / "optimized.onnx"):
        pass
    nodes = onnx.load(folder / "optimized.onnx", load_external_data=False).graph.node
    return dict(sorted(Counter(FAMILY[node.op_type] for node in nodes if node.op_type in FAMILY).items()))


def cells(model: str, opset: int, targets: Collection[str], builds: bool) -> dict[str, list[Cell]]:
    """All default candidates of some targets, of one model at one opset, by target."""
    with tempfile.TemporaryDirectory(prefix="quantgate-") as name:
        bench = open_bench(model, opset, Path(name))
        return {
            target: [
                bench.make(decode(one), Path(name), with_build=builds and target == "tensorrt")
                for one in facts_of(target).default_candidates
            ]
            for target in targets
        }


def _logits(model: Path, settings: SessionSettings, batch: Arrays) -> NDArray[Any]:
    with open_session(model, settings, without=EXCEPT if settings is CPU else ()) as session:
        return run_outputs(session, batch, ["logits"])[0]


def main(
    models: Annotated[list[str] | None, typer.Option("--model", help="Only these models.")] = None,
    opsets: Annotated[list[int] | None, typer.Option("--opset", help="Only these opsets.")] = None,
) -> None:
    """Make every cell, print what is wrong, and write `opset_matrix.json`."""
    can_build = "tensorrt_rtx" in available()
    rows: list[dict[str, Any]] = []
    for model in models or MODELS:
        for opset in opsets or OPSETS:
            found = cells(model, opset, ENGINES, can_build and opset in BUILT_OPSETS)
            rows += [{"model": model, "opset": opset, "target": target} | _row(some) for target, some in found.items()]
            wrong = [f"{cell.candidate}: {fault}" for some in found.values() for cell in some for fault in cell.faults]
            made = sum(cell.outcome == "made" for some in found.values() for cell in some)
            print(f"{model} opset {opset}: {made} files made", *wrong, sep="\n  ", flush=True)
    save("opset_matrix", {"rows": rows, "faults": sum(row["faults"] for row in rows)})


def _row(some: Sequence[Cell]) -> dict[str, Any]:
    described = [
        {key: value for key, value in asdict(cell).items() if value not in ("", (), {}, None)} for cell in some
    ]
    return {"faults": sum(len(cell.faults) for cell in some), "candidates": described}


if __name__ == "__main__":
    typer.run(main)
