"""Step 5, for `tensorrt`, between making and measuring: the file is linted and an engine built of it, for this worker's GPU or,
where it has none, ahead of time for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from tasks.measure.metrics.perplexity import WINDOWS_AT_ONCE
from tasks.measure.request import request_batch
from tasks.run.context import Run
from tasks.runtimes.engines.build import available, make_engine, profile_of
from tasks.runtimes.engines.build_process import copy_log, read_log
from tasks.runtimes.engines.coverage import coverage_of_layers, kernels_of_nodes
from tasks.runtimes.engines.errors import notes_in
from tasks.storage.product import Product
from tasks.targets.catalog import lint
from tasks.targets.ort_tensorrt import AS_WRITTEN
from tasks.trials.measure_accuracy import EVALUATION_BATCH_SIZE
from validators.digests import digest_file
from validators.errors import CandidateRefused
from validators.providers import CPU_PROVIDER
from validators.records.engines import BuildSettings, Engine
from validators.records.run import Inventory, SessionSettings, Variant
from validators.samples.given import Evidence, Given
from validators.samples.words import SHOWN, and_more


def with_engine(run: Run, given: Given, inventory: Inventory, variant: Variant) -> Variant:
    """The variant with its engine; where it cannot run here it is `aot-checked`, and ONNX Runtime simulates its answers.

    Ahead of time there is an engine for each compute capability that the job names; the variant gets the one that multiplies
    least in low precision.

    Raises:
        CandidateRefused: the linter finds what the builder refuses, no builder is installed, or it builds nothing.
    """
    notes = _linted(variant)
    if inventory.gpu:
        engine = _engine(run, given, inventory, variant, ())
        return replace(variant, engine=engine, notes=(*variant.notes, *notes, *_warnings(engine)))
    capabilities = run.job.engines.ahead_of_time
    # Of several in one build the builder tells the layers of one.
    engines = [_engine(run, given, inventory, variant, (capability,)) for capability in capabilities]
    engine = _least_covered(run, given, variant, engines)
    told = f"built for compute capability {' and '.join(capabilities)}, never run; answers are simulated"
    # At higher levels the CPU provider fuses FP8 pairs into kernels that do not exist.
    session = SessionSettings(
        CPU_PROVIDER, variant.session.threads, "basic", dict(AS_WRITTEN), variant.session.libraries
    )
    notes = (*variant.notes, told, *notes, *_warnings(engine))
    return replace(variant, engine=engine, session=session, proof="aot-checked", notes=notes)


def _engine(
    run: Run, given: Given, inventory: Inventory, variant: Variant, compute_capabilities: tuple[str, ...]
) -> Engine:
    """From the store, or built; the log of a build that failed is kept outside of it."""
    job, evidence, points = run.job, given.evidence, run.job.measurement.points
    build = BuildSettings(
        profile_of(evidence.inputs, job.engines, points, _shapes(evidence), accuracy_batch=_most_at_once(run)),
        job.engines.workspace_mb,
        job.engines.tf32,
        compute_capabilities,
    )
    inputs = (
        variant.digest,
        asdict(build),
        asdict(inventory.gpu) if inventory.gpu else None,
        asdict(available()),
    )
    make = partial(make_engine, variant.path, build, inventory.gpu, run.state / "timing-caches", partial(_kept, run))
    return run.store.make(Product("engine", inputs, Engine, make))[0]


def _least_covered(run: Run, given: Given, variant: Variant, engines: Sequence[Engine]) -> Engine:
    """The engine that multiplies least in low precision, of several that multiply otherwise; else the first."""
    kernels = [kernels_of_nodes(engine.layers) for engine in engines]
    if all(found == kernels[0] for found in kernels):
        return engines[0]
    batch = request_batch(given.evidence, run.job.measurement.points[0])
    found = [coverage_of_layers(variant.path, engine.layers, batch) for engine in engines]
    shares = [(coverage.share, coverage.half_share) for coverage in found]
    return engines[shares.index(min(shares))]


def _warnings(engine: Engine) -> tuple[str, ...]:
    return notes_in(read_log(engine.log))


def _kept(run: Run, log: Path) -> Path | None:
    """The builder's log as an entry of its own: the one that it belonged to is not made."""
    if not log.exists():
        return None

    return run.store.make(Product("refused-build", (digest_file(log),), Path, partial(copy_log, log)))[0]


def _shapes(evidence: Evidence) -> dict[str, list[tuple[int, ...]]]:
    """Of each input's arrays in the data that the engine must answer, that of requests first."""
    return {spec.name: [evidence.evaluation.inputs[spec.name].shape] for spec in evidence.inputs}


def _most_at_once(run: Run) -> int:
    return WINDOWS_AT_ONCE if run.job.metric == "perplexity" else EVALUATION_BATCH_SIZE


def _linted(variant: Variant) -> tuple[str, ...]:
    """What the linter says of the file, by rule, in words.

    Raises:
        CandidateRefused: `invalid`: the builder would refuse it.
    """
    findings = lint(variant.path, "tensorrt")
    wrong = [finding for finding in findings if finding.consequence in ("fails", "wrong")]
    if wrong:
        raise CandidateRefused(
            kind="invalid",
            found=f"{wrong[0].rule} at node {wrong[0].node}: {wrong[0].found}",
            expected="a file of which TensorRT builds what it says",
            fix=wrong[0].fix,
        )
    nodes: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        nodes.setdefault((finding.rule, finding.consequence), []).append(finding.node)
    return tuple(
        f"{rule} ({consequence}): {', '.join(names[:SHOWN])}{and_more(names)}"
        for (rule, consequence), names in nodes.items()
    )
