"""Step 5, for `tensorrt`, between making and measuring: lint the file and build an engine from it.

The engine is for this worker's GPU, or without one, built ahead of time for other GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from tasks.engines.catalog import lint
from tasks.engines.tensorrt.build import available, make_engine, settings_of
from tasks.engines.tensorrt.build_process import copy_log, read_log
from tasks.engines.tensorrt.coverage import coverage_of_layers, kernels_of_nodes
from tasks.engines.tensorrt.errors import notes_in
from tasks.measure.metrics.perplexity import WINDOWS_AT_ONCE
from tasks.measure.request import request_batch
from tasks.run.context import Run
from tasks.storage.product import Product
from tasks.trials.measure_accuracy import EVALUATION_BATCH_SIZE
from validators.digests import digest_file
from validators.errors import CandidateRefused
from validators.job.metric_facts import metric_facts
from validators.records.engines import BuiltEngine
from validators.records.run import Inventory, SessionSettings, Variant
from validators.samples.run_inputs import RunInputs
from validators.samples.words import SHOWN, and_more

# ONNX Runtime 1.31.1 rewrites Q/DQ pairs also at the level `basic`: float biases become integers, pairs are moved and
# duplicated, and MatMul with INT4 weights becomes Gemm. The simulation must compute the pairs that TensorRT reads.
AS_WRITTEN = {
    "optimization.disable_specified_optimizers": "WeightBiasQuantization;QDQPropagationTransformer;MatMulAddFusion"
}


def with_engine(run: Run, run_inputs: RunInputs, inventory: Inventory, variant: Variant) -> Variant:
    """Return the variant with its engine. Without a GPU it is `aot-checked`, and ONNX Runtime simulates its answers.

    Ahead of time, an engine is built for each compute capability that the job names. The variant gets the engine with the
    smallest share of low-precision multiplications.

    Raises:
        CandidateRefused: the linter finds a fault that the builder refuses, no builder is installed, or the build fails.
    """
    notes = _linted(variant)
    if inventory.gpu:
        engine = _engine(run, run_inputs, inventory, variant, ())
        return replace(variant, engine=engine, notes=(*variant.notes, *notes, *_warnings(engine)))
    capabilities = run.job.engines.ahead_of_time
    # In a build for several capabilities, the builder reports the layers of one only.
    engines = [_engine(run, run_inputs, inventory, variant, (capability,)) for capability in capabilities]
    engine = _least_covered(run, run_inputs, variant, engines)
    told = f"built for compute capability {' and '.join(capabilities)}, never run; answers are simulated"
    # At higher optimization levels the CPU provider fuses FP8 pairs into kernels that do not exist.
    session = SessionSettings.reference(variant.session.threads, "basic", AS_WRITTEN, variant.session.libraries)
    notes = (*variant.notes, told, *notes, *_warnings(engine))
    return replace(variant, engine=engine, session=session, proof="aot-checked", notes=notes)


def _engine(
    run: Run, run_inputs: RunInputs, inventory: Inventory, variant: Variant, compute_capabilities: tuple[str, ...]
) -> BuiltEngine:
    """Return the engine from the store, or build it. The log of a failed build becomes a separate entry."""
    build = settings_of(run.job, run_inputs.evidence, compute_capabilities, accuracy_batch=_most_at_once(run))
    inputs = (
        variant.digest,
        asdict(build),
        asdict(inventory.gpu) if inventory.gpu else None,
        asdict(available()),
    )
    make = partial(make_engine, variant.path, build, inventory.gpu, run.state / "timing-caches", partial(_kept, run))
    return run.store.make(Product("engine", inputs, BuiltEngine, make))[0]


def _least_covered(run: Run, run_inputs: RunInputs, variant: Variant, engines: Sequence[BuiltEngine]) -> BuiltEngine:
    """Return the engine with the smallest share of low-precision multiplications; the first if all use the same kernels."""
    kernels = [kernels_of_nodes(engine.layers) for engine in engines]
    if all(found == kernels[0] for found in kernels):
        return engines[0]
    batch = request_batch(run_inputs.evidence, run.job.measurement.points[0])
    found = [coverage_of_layers(variant.path, engine.layers, batch) for engine in engines]
    shares = [(coverage.share, coverage.half_share) for coverage in found]
    return engines[shares.index(min(shares))]


def _warnings(engine: BuiltEngine) -> tuple[str, ...]:
    return notes_in(read_log(engine.log))


def _kept(run: Run, log: Path) -> Path | None:
    """Store the builder's log as a separate entry, since a failed build makes no engine entry; None without a log."""
    if not log.exists():
        return None

    return run.store.make(Product("refused-build", (digest_file(log),), Path, partial(copy_log, log)))[0]


def _most_at_once(run: Run) -> int:
    return WINDOWS_AT_ONCE if metric_facts(run.job.metric).kind == "windows" else EVALUATION_BATCH_SIZE


def _linted(variant: Variant) -> tuple[str, ...]:
    """Lint the file; return one line per rule and consequence.

    Raises:
        CandidateRefused: `invalid`: the builder would refuse the file.
    """
    findings = lint(variant.path, "tensorrt")
    wrong = [finding for finding in findings if finding.consequence in ("fails", "wrong")]
    if wrong:
        raise CandidateRefused(
            kind="invalid",
            found=f"{wrong[0].rule} at node {wrong[0].node}: {wrong[0].found}",
            expected="a file that TensorRT builds as it is written",
            fix=wrong[0].fix,
        )
    nodes: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        nodes.setdefault((finding.rule, finding.consequence), []).append(finding.node)
    return tuple(
        f"{rule} ({consequence}): {', '.join(names[:SHOWN])}{and_more(names)}"
        for (rule, consequence), names in nodes.items()
    )
