"""Step 5, for targets that build engines of files: lint the file and build an engine from it, before it is measured.

The engine is for this worker's GPU, or without one, built ahead of time for other GPUs.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from tasks.engines.catalog import find_target, lint
from tasks.engines.engine import Builder
from tasks.measure.metrics.perplexity import WINDOWS_AT_ONCE
from tasks.measure.request import request_batch
from tasks.run.context import Run
from tasks.run.loaded_run import LoadedRun
from tasks.storage.product import Product
from tasks.trials.measure_accuracy import EVALUATION_BATCH_SIZE
from validators.digests import digest_file
from validators.errors import CandidateRefused
from validators.job.metric_facts import metric_facts
from validators.records.engines import BuiltEngine
from validators.records.run import SessionSettings, Variant
from validators.samples.words import first_few
from validators.targets import facts_of_provider


def with_engine(run: LoadedRun, variant: Variant) -> Variant:
    """Return the variant with its engine, if its target builds engines of files; any other variant as it is.

    Without a GPU it is `aot-checked`, and ONNX Runtime simulates its answers. Ahead of time, an engine is built for each
    compute capability that the job names. The variant gets the engine with the smallest share of low-precision products.

    Raises:
        CandidateRefused: the linter finds a fault that the builder refuses, no builder is installed, or the build fails.
    """
    target = find_target(facts_of_provider(variant.session.provider).name)
    builder = target.builder
    if builder is None:
        return variant
    notes = (*variant.notes, *_linted(variant, target.name))
    if run.inventory.gpu:
        engine = _engine(builder, run, variant, ())
        return replace(variant, engine=engine, notes=(*notes, *builder.warnings(engine)))
    capabilities = run.job.engines.ahead_of_time
    # In a build for several capabilities, the builder reports the layers of one only.
    engines = [_engine(builder, run, variant, (capability,)) for capability in capabilities]
    batch = partial(request_batch, run.evidence, run.job.measurement.points[0])
    engine = builder.least_covered(variant.path, engines, batch)
    told = f"built for compute capability {' and '.join(capabilities)}, never run; answers are simulated"
    # At higher optimization levels the CPU provider fuses FP8 pairs into kernels that do not exist.
    entries, libraries = dict(builder.as_written), variant.session.libraries
    session = SessionSettings.reference(variant.session.threads, "basic", entries, libraries)
    notes = (*variant.notes, told, *notes[len(variant.notes) :], *builder.warnings(engine))
    return replace(variant, engine=engine, session=session, proof="aot-checked", notes=notes)


def _engine(builder: Builder, run: LoadedRun, variant: Variant, compute_capabilities: tuple[str, ...]) -> BuiltEngine:
    """Return the engine from the store, or build it. The log of a failed build becomes a separate entry."""
    build = builder.settings(run.job, run.evidence, compute_capabilities, accuracy_batch=_most_at_once(run))
    inputs = (
        variant.digest,
        asdict(build),
        asdict(run.inventory.gpu) if run.inventory.gpu else None,
        builder.available(),
    )
    make = partial(
        builder.make_engine,
        variant.path,
        build,
        run.inventory.gpu,
        run.state / "timing-caches",
        partial(_kept, builder, run),
    )
    return run.store.make(Product("engine", inputs, BuiltEngine, make))[0]


def _kept(builder: Builder, run: Run, log: Path) -> Path | None:
    """Store the builder's log as a separate entry, since a failed build makes no engine entry; None without a log."""
    if not log.exists():
        return None
    return run.store.make(Product("refused-build", (digest_file(log),), Path, partial(builder.copy_log, log)))[0]


def _most_at_once(run: Run) -> int:
    return WINDOWS_AT_ONCE if metric_facts(run.job.metric).kind == "windows" else EVALUATION_BATCH_SIZE


def _linted(variant: Variant, target: str) -> tuple[str, ...]:
    """Lint the file; return one line per rule and consequence.

    Raises:
        CandidateRefused: `invalid`: the builder would refuse the file.
    """
    findings = lint(variant.path, target)
    wrong = [finding for finding in findings if finding.consequence in ("fails", "wrong")]
    if wrong:
        raise CandidateRefused(
            kind="invalid",
            found=f"{wrong[0].rule} at node {wrong[0].node}: {wrong[0].found}",
            expected="a file that the builder takes as it is written",
            fix=wrong[0].fix,
        )
    nodes: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        nodes.setdefault((finding.rule, finding.consequence), []).append(finding.node)
    return tuple(f"{rule} ({consequence}): {first_few(names)}" for (rule, consequence), names in nodes.items())
