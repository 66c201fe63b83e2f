"""Candidates of a bundled model, made by quantgate's own passes and kept in a store; engines where TensorRT runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from gpu.answers import rows_of
from gpu.apart import apart
from gpu.bundle import Bundle
from tasks.engines.variants import make_variant, session_settings
from tasks.measure.inventory import this_processor, usable_cores
from tasks.ptq.build_variant import Materials, gram_inputs
from tasks.ptq.calibrate.calibration import make_statistics
from tasks.ptq.calibrate.grams import Gram, collect_grams
from tasks.ptq.calibrate.pass_batches import pass_batches
from tasks.ptq.eight_bit.smooth import SmoothedGraph
from tasks.ptq.eight_bit.smoothed_graph import make_smoothed
from tasks.ptq.graph.edits import model_bytes
from tasks.ptq.graph.prepare import make_fused, make_prepared
from tasks.ptq.sensitivity import Sensitivity
from tasks.runtimes.coverage import measure_coverage
from tasks.runtimes.runner import open_runner
from tasks.storage.product import Product, code_of
from tasks.storage.store import Store
from validators.digests import digest_model
from validators.errors import CandidateRefused
from validators.job.candidate_name import Candidate, decode
from validators.records.engines import BuildSettings, BuiltEngine, ShapeRange
from validators.records.run import Gpu, SessionSettings, Variant
from validators.samples.datasets import Arrays
from validators.target_facts import CPU_PROVIDER, TENSORRT
from validators.targets import facts_of_provider, is_on_gpu

# The name of the source at its own precision among the candidates.
FLOAT = "fp32"
CALIBRATION_MEMORY_MB = 4000.0
# Batch size of passes that look at one layer after the other.
PASS_BATCH_SIZE = 4


@dataclass(frozen=True)
class Reference:
    """The source on the CPU: the metric's rows in an `.npy` file, its value, and multiply-accumulates of one sample."""

    rows: Path
    value: float
    macs: int


@dataclass(frozen=True)
class Workshop:
    """Where candidates of one model are made."""

    store: Store
    bundle: Bundle
    gpu: Gpu | None
    seconds: float

    @property
    def _key(self) -> tuple[str, str]:
        return digest_model(self.bundle.source), self.bundle.calibration.file.digest

    def reference(self) -> Reference:
        """What the source answers on ONNX Runtime's CPU provider, which all drops are held against."""
        settings = SessionSettings(CPU_PROVIDER, usable_cores())

        def make(folder: Path) -> Reference:
            rows, value = apart(rows_of, self.bundle.source, settings, self.bundle, seconds=self.seconds)
            np.save(folder / "rows.npy", rows)
            seen = apart(measure_coverage, self.bundle.source, settings, self.bundle.request(1), seconds=self.seconds)
            return Reference(folder / "rows.npy", value, sum(seen.macs_by_kernel.values()))

        # This module is none of our packages: its maker names the code that it calls.
        inputs = (*self._key, self.bundle.evaluation.file.digest, code_of(measure_coverage), code_of(open_runner))
        return self.store.make(Product("reference", inputs, Reference, make))[0]

    def variant(self, name: str, target: str) -> Variant:
        """The candidate's variant, ready to be loaded; `fp32` is the source itself.

        Raises:
            CandidateRefused: it cannot be made for the target.
        """
        candidate = Candidate("fp16", target) if name == FLOAT else decode(f"{name}@{target}")
        settings = session_settings(candidate, usable_cores())
        if is_on_gpu(target):
            self._refuse_missing(settings.provider)
        if name == FLOAT:
            source = self.bundle.source
            made = Variant(f"{FLOAT}@{target}", source, digest_model(source), model_bytes(source), settings)
        else:
            # The materials of a variant have code of their own.
            code = [code_of(each) for each in (make_prepared, make_smoothed, make_statistics)]
            make = partial(make_variant, candidate, self._materials(), threads=usable_cores())
            inputs = (candidate.name, *self._key, PASS_BATCH_SIZE, code)
            made = self.store.make(Product("variant", inputs, Variant, make))[0]
        return replace(made, engine=self._engine(made)) if target == "tensorrt" else made

    def _refuse_missing(self, provider: str) -> None:
        """Refuse before anything is made for what could not run it here."""
        import onnxruntime

        if provider == TENSORRT:
            from tasks.engines.tensorrt.build import available

            here = self.gpu is not None and bool(available())
        else:
            here = facts_of_provider(provider).on_gpu and provider in onnxruntime.get_available_providers()
        if not here:
            raise CandidateRefused(
                kind="unsupported",
                found=f"no GPU's {provider} here",
                expected="the runtime with that provider, and a GPU",
                fix="put its wheels among those that the environment is made from",
            )

    def _engine(self, variant: Variant) -> BuiltEngine:
        from tasks.engines.tensorrt.build import build_engine

        build = BuildSettings(profile=profile_of(self.bundle))

        make = partial(build_engine, variant.path, build, gpu=self.gpu, timing_caches=self.store.root / "timing")
        return self.store.make(Product("engine", (variant.digest, build, self.gpu), BuiltEngine, make))[0]

    def _materials(self) -> Materials:
        source, samples, store = self.bundle.source, self.bundle.calibration, self.store

        def prepared() -> Path:
            return store.make(Product("prepared", self._key, Path, partial(make_prepared, source, ())))[0]

        def fused() -> Path:
            return store.make(Product("fused", self._key, Path, partial(make_fused, source, ())))[0]

        def smoothed() -> SmoothedGraph:
            make = partial(make_smoothed, prepared, samples, PASS_BATCH_SIZE, 0, (), True)
            return store.make(Product("smoothed", (*self._key, PASS_BATCH_SIZE), SmoothedGraph, make))[0]

        def statistics(of_smoothed: bool) -> Path:
            graph: Callable[[], Path] = (lambda: smoothed().path) if of_smoothed else prepared
            make = partial(make_statistics, graph, samples, usable_cores(), lambda: CALIBRATION_MEMORY_MB, None, ())
            return store.make(Product("statistics", (*self._key, of_smoothed), Path, make))[0]

        def ranking(candidate: Candidate) -> tuple[Sensitivity, ...]:
            raise CandidateRefused(
                kind="unsupported",
                found=f"{candidate.name}, which ranks the parts of the model",
                expected="a candidate without -<N>db",
                fix="parts are ranked in a run of quantgate, not here",
            )

        def grams(candidate: Candidate, float_model: Path) -> Mapping[str, Gram]:
            return collect_grams(
                float_model,
                gram_inputs(candidate, float_model),
                lambda: samples.batches(PASS_BATCH_SIZE),
                max_memory_mb=CALIBRATION_MEMORY_MB,
                threads=usable_cores(),
            )

        def batches() -> list[Arrays]:
            return pass_batches(samples, PASS_BATCH_SIZE)

        return Materials(prepared, fused, smoothed, statistics, ranking, batches, grams, this_processor())


def profile_of(bundle: Bundle) -> dict[str, ShapeRange]:
    """One profile for all that is asked of a model: single samples to the largest batch, requests' lengths to whole samples.

    It is fastest for the middle one of the request sizes.
    """
    sizes = sorted(bundle.notes.batch_sizes)
    most = max(*sizes, bundle.notes.evaluation_batch)
    profile = {}
    for name, array in bundle.evaluation.inputs.items():
        asked = bundle.request(1)[name].shape[1:]
        profile[name] = ShapeRange((1, *asked), (sizes[len(sizes) // 2], *asked), (most, *array.shape[1:]))
    return profile
