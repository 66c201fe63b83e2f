"""Inputs of the candidates, and their variants; each is made once and kept in the store."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tasks.engines.catalog import code_of_engine, find_target
from tasks.engines.engine import ProfileCosts
from tasks.engines.given import files_of
from tasks.engines.variants import make_variant, refuse_other_targets, session_settings
from tasks.evidence.given.source import with_local_file
from tasks.measure.inventory import usable_cores
from tasks.measure.request import request_batch
from tasks.ptq.build_variant import (
    Materials,
    block_weights,
    float_graph,
    gram_inputs,
    quantize_int8,
    quantize_without,
    ranked_form,
    searched_forms,
)
from tasks.ptq.calibrate.calibration import ONE_AT_A_TIME, make_statistics
from tasks.ptq.calibrate.grams import Gram, collect_grams
from tasks.ptq.calibrate.pass_batches import few_samples, pass_batch_size, pass_batches
from tasks.ptq.eight_bit.qdq import QdqReport
from tasks.ptq.eight_bit.smooth import SmoothedGraph
from tasks.ptq.eight_bit.smoothed_graph import make_smoothed
from tasks.ptq.forms import Remember
from tasks.ptq.graph.edits import initializers, scratch
from tasks.ptq.graph.prepare import make_fused, make_prepared
from tasks.ptq.graph.rotate import make_rotated
from tasks.ptq.kv_cache import make_cache_ranges
from tasks.ptq.search import FLOAT, Form, Part
from tasks.ptq.sensitivity import SensitivePart, Sensitivity, find_parts, noise_meter, rank_parts
from tasks.ptq.slow_parts import SlowParts, find_slow_parts
from tasks.ptq.weight_only.block_parts import find_block_parts
from tasks.run.context import Run
from tasks.run.loaded_run import LoadedRun
from tasks.runtimes.coverage import macs_as_written
from tasks.storage.product import Product
from validators.digests import digest_file
from validators.errors import CandidateRefused
from validators.job.candidate_name import CacheBits, Candidate
from validators.job.methods import NEAREST
from validators.records.engines import BuildSettings
from validators.records.run import Inventory, Refusal, SessionSettings, Source, Variant
from validators.samples.datasets import Arrays, Samples

# Share of a float model's time that its parts cost at least if all stay in float.
LEAST_COST = 0.01
# The Gram matrices of this process's last pass, in files without names: candidates that differ in their blocks, and all
# attempts of a search, read the same. More than so many bytes are collected again.
LAST_GRAMS: dict[tuple[Any, ...], dict[str, Gram]] = {}
MOST_KEPT_BYTES = 4e9


@dataclass(frozen=True)
class MadeVariant:
    """The result of making a candidate: a variant, or a refusal that will not change."""

    variant: Variant | None = None
    refusal: Refusal | None = None


@dataclass(frozen=True)
class _Ranking:
    """The parts of a model, the most sensitive first."""

    parts: tuple[Sensitivity, ...]


@dataclass(frozen=True)
class _Noise:
    """Noise of quantizing some nodes, over the power of the output: a step of a ranking, which may be cut off."""

    power: float


@dataclass(frozen=True)
class _RoundedWeight:
    """Archive of a rounded weight: a step of a candidate, which may be cut off, and of others with the same form."""

    file: Path


@dataclass(frozen=True)
class _Forms:
    """The parts of a model with the forms that a search chooses from."""

    parts: tuple[Part, ...]


def as_refusal(error: CandidateRefused) -> Refusal:
    """Return the refusal that an error stands for."""
    return Refusal(error.kind, f"{error.found}; expected {error.expected}; {error.fix}", error.log)


def variant_from_store(run: LoadedRun, candidate: Candidate) -> tuple[MadeVariant, bool]:
    """Return a candidate's variant, or the refusal that it ended in, and whether the store had it."""
    evidence = run.evidence
    calibration = evidence.calibration or evidence.evaluation
    threads = run.job.measurement.points[0].threads or usable_cores()
    told = run.job.given_files.get(candidate.name)
    endings = find_target(candidate.target).takes
    given = with_local_file(run, told, endings) if told else None
    materials = replace(materials_of(run), given=given)
    files = files_of(given, endings, custom_operators=bool(run.libraries)) if given else ()
    inputs = (
        candidate.name,
        # Smoothing draws rows by the seed, a rotation its matrix.
        run.job.seed if candidate.is_seeded else None,
        # Another judged output, or another profile, may find other forms and products.
        _searched(candidate, materials) if candidate.sqnr_db else None,
        _slow_nodes(candidate, materials) if candidate.fast else None,
        *_graph_inputs(run.source, run.inventory),
        digest_file(run.source.program) if run.source.program else None,
        calibration.file.digest,
        threads,
        # A refusal of what is not portable must not be found by a job that does not ask for it.
        asdict(materials.processor),
        [asdict(library) for library in run.libraries],
        run.job.provider_options,
        # A refusal for lack of memory is stored, and must not outlive a larger limit.
        run.job.calibration.max_memory_mb,
        run.job.budgets.memory_mb,
        code_of_engine(candidate.target),
        *(
            [given.model_dump(mode="json") | {"file": given.file.name}, [digest_file(file) for file in files]]
            if given
            else ()
        ),
    )
    make = partial(_make_variant, candidate, materials, threads, run.job.provider_options)
    return run.store.make(Product("variant", inputs, MadeVariant, make))


def _searched(candidate: Candidate, materials: Materials) -> list[tuple[tuple[str, ...], str]]:
    refuse_other_targets(candidate, materials.processor)  # before measurements that would be in vain
    return [(part.nodes.nodes, form.name) for part, form in searched_forms(candidate, materials)]


def _slow_nodes(candidate: Candidate, materials: Materials) -> tuple[str, ...]:
    refuse_other_targets(candidate, materials.processor)  # before a profile that would be in vain
    return materials.slow_parts(candidate).nodes


def _make_variant(
    candidate: Candidate, materials: Materials, threads: int, options: Mapping[str, str], folder: Path
) -> MadeVariant:
    try:
        return MadeVariant(make_variant(candidate, materials, folder, threads=threads, provider_options=options))
    except CandidateRefused as error:
        if error.kind == "infrastructure":
            raise
        return MadeVariant(refusal=as_refusal(error))


def materials_of(run: LoadedRun) -> Materials:
    """Return the float graphs and calibration files, each made on first use and kept in the store."""
    source, evidence = run.source, run.evidence
    # Files of other tools need no calibration: their answers are compared on evaluation samples then.
    calibration = evidence.calibration or evidence.evaluation
    fixed_batch, seed = evidence.batch_axis, run.job.seed
    threads = run.job.measurement.points[0].threads or usable_cores()
    processor = run.job.processor_of(run.inventory)
    few = partial(few_samples, calibration, fixed_batch)
    prepared_file = prepared_product(run, source, run.inventory, few)
    make_graph = partial(make_fused, source.onnx_path, run.libraries, samples=few)
    fused_file = Product("fused", _graph_inputs(run.source, run.inventory), Path, make_graph)

    def prepared() -> Path:
        return run.store.make(prepared_file)[0]

    def fused() -> Path:
        return run.store.make(fused_file)[0]

    smoothed_graph = Product(
        "smoothed",
        (prepared_file, calibration.file.digest, seed),
        SmoothedGraph,
        # In a decoder a Mul before each product of the attention costs time; without it SmolLM2-135M lost no more.
        partial(make_smoothed, prepared, calibration, fixed_batch, seed, run.libraries, not source.companions),
    )

    def smoothed() -> SmoothedGraph:
        return run.store.make(smoothed_graph)[0]

    rotated_graph = Product(
        "rotated",
        (prepared_file, calibration.file.digest, seed),
        Path,
        partial(make_rotated, prepared, calibration, fixed_batch, seed, run.libraries),
    )

    def room_mb() -> float:
        return run.footprint.room_mb(run.job.calibration.max_memory_mb)

    def statistics(of_smoothed: bool) -> Path:
        graph: Callable[[], Path] = (lambda: smoothed().path) if of_smoothed else prepared
        make = partial(make_statistics, graph, calibration, threads, room_mb, fixed_batch, run.libraries)
        inputs = (smoothed_graph if of_smoothed else prepared_file, calibration.file.digest, of_smoothed)
        return run.store.make(Product("statistics", inputs, Path, make))[0]

    def by_rules_of(candidate: Candidate) -> Materials:
        return replace(materials, pairs=find_target(candidate.target).pairs)

    def of_parts(candidate: Candidate) -> tuple[Any, ...]:
        return (
            *_graph_inputs(run.source, run.inventory),
            candidate.name,
            calibration.file.digest,
            evidence.output.name,
            seed if candidate.is_seeded else None,
            processor.isa,
            code_of_engine(candidate.target),
        )

    def ranking(candidate: Candidate) -> tuple[Sensitivity, ...]:
        inputs = of_parts(candidate)
        make = partial(_make_ranking, run, by_rules_of(candidate), candidate, inputs)
        return run.store.make(Product("ranking", inputs, _Ranking, make))[0].parts

    def parts(candidate: Candidate) -> tuple[Part, ...]:
        unit, point = cost_unit(run, candidate), run.job.measurement.points[0]
        # Costs in bytes are of the file alone.
        timed = (evidence.evaluation.file.digest, asdict(point), run.inventory.device_key) if unit == "µs" else ()
        inputs = (*of_parts(candidate), unit, *timed)
        make = partial(_make_forms, run, by_rules_of(candidate), candidate, unit)
        return run.store.make(Product("forms", inputs, _Forms, make))[0].parts

    def slow_parts(candidate: Candidate) -> SlowParts:
        plain, point = ranked_form(candidate), run.job.measurement.points[0]
        builds = _builds(run, candidate)
        inputs = (
            *_graph_inputs(run.source, run.inventory),
            plain.name,
            calibration.file.digest,
            evidence.evaluation.file.digest,
            seed if candidate.smooth else None,
            asdict(point),
            run.inventory.device_key,
            [asdict(library) for library in run.libraries],
            [asdict(build) for build in builds],
            code_of_engine(candidate.target),
        )
        make = partial(_make_slow_parts, run, by_rules_of(plain), builds, plain)
        return run.store.make(Product("slow-parts", inputs, SlowParts, make))[0]

    def grams(candidate: Candidate, float_model: Path) -> Mapping[str, Gram]:
        wanted = gram_inputs(candidate, float_model)
        key = (float_model, calibration.file.digest, fixed_batch, *wanted.items())
        with ONE_AT_A_TIME:
            if key not in LAST_GRAMS:
                LAST_GRAMS.clear()
                found = collect_grams(
                    float_model,
                    wanted,
                    lambda: calibration.batches(pass_batch_size(fixed_batch)),
                    max_memory_mb=room_mb(),
                    threads=threads,
                    libraries=run.libraries,
                )
                if sum(gram.matrix.nbytes for gram in found.values()) > MOST_KEPT_BYTES:
                    return found
                for gram in found.values():
                    gram.matrix.flags.writeable = False
                LAST_GRAMS[key] = found
            return LAST_GRAMS[key]

    def remember(float_model: Path) -> Remember:
        def rounded(key: tuple[Any, ...], make: Callable[[], Sequence[NDArray[Any]]]) -> list[NDArray[Any]]:
            inputs = (float_model, calibration.file.digest, fixed_batch, *key)
            product = Product("rounded-weight", inputs, _RoundedWeight, partial(_make_rounded_weight, make))
            with np.load(run.store.make(product)[0].file) as archive:
                return list(archive.values())

        return rounded

    def cache_ranges(bits: CacheBits) -> Path:
        make = partial(make_cache_ranges, prepared, calibration, threads, fixed_batch, bits)
        inputs = (prepared_file, calibration.file.digest, fixed_batch, bits)
        return run.store.make(Product("cache-ranges", inputs, Path, make))[0]

    materials = Materials(
        prepared,
        fused,
        smoothed,
        statistics,
        ranking,
        lambda: pass_batches(calibration, fixed_batch),
        grams,
        processor,
        libraries=run.libraries,
        program=source.program,
        threads=threads,
        slow_parts=slow_parts,
        companions=source.companions,
        cache_ranges=cache_ranges,
        source=source.onnx_path,
        rotated=lambda: run.store.make(rotated_graph)[0],
        parts=parts,
        memory_mb=room_mb,
        remember=remember,
    )
    return materials


def prepared_product(
    run: Run, source: Source, inventory: Inventory, samples: Callable[[], Arrays] | None = None
) -> Product[Path]:
    """Return the float graph that quantizers start from, compared with the source on `samples`.

    Calibrated ranges refer to its tensors.
    """
    make = partial(make_prepared, source.onnx_path, run.libraries, samples=samples)
    return Product("prepared", _graph_inputs(source, inventory), Path, make)


def _graph_inputs(source: Source, inventory: Inventory) -> tuple[Any, ...]:
    return source.digest, sorted(inventory.runtimes.items())


def _make_slow_parts(
    run: LoadedRun, materials: Materials, builds: Sequence[BuildSettings], candidate: Candidate, _folder: Path
) -> SlowParts:
    batch = request_batch(run.evidence, run.job.measurement.points[0])
    with run.clock.work("find slow parts"):
        builder = find_target(candidate.target).builder
        if builder is not None:
            caches = run.state / "timing-caches"
            return builder.slow_parts(candidate, materials, builds, run.inventory.gpu, batch, caches)

        def quantize(model: Path, keep_float: Collection[str], path: Path) -> QdqReport:
            return quantize_int8(candidate, materials, model, path, keep_float=keep_float)

        # Others may compute at the same time: one thread waits for no other.
        settings = session_settings(candidate, 1, run.libraries).without_spinning()
        profile_costs = _costs_on_target(candidate)
        return find_slow_parts(
            float_graph(candidate, materials), quantize, lambda models: profile_costs(models, batch, settings)
        )


def _builds(run: LoadedRun, candidate: Candidate) -> tuple[BuildSettings, ...]:
    """Return the settings of the engines that tell a candidate's slow parts; none where no engine is built."""
    builder = find_target(candidate.target).builder
    if builder is None:
        return ()
    job = run.job
    capabilities = [()] if run.inventory.gpu else [(name,) for name in job.engines.ahead_of_time]
    # Engines of the variant accept more samples at once, for accuracy; here they run one request.
    most = max(point.batch_size for point in job.measurement.points)
    return tuple(builder.settings(job, run.evidence, names, accuracy_batch=most) for names in capabilities)


def _make_ranking(
    run: LoadedRun, materials: Materials, candidate: Candidate, inputs: tuple[Any, ...], _folder: Path
) -> _Ranking:
    float_model, quantize = float_graph(candidate, materials), _quantize(candidate, materials)
    with scratch() as folder:
        everything = quantize(float_model, (), folder / "all.onnx")
    graph = onnx.load(float_model, load_external_data=False).graph
    parts = find_parts(graph, everything, by_input=candidate.dynamic)

    def remember(nodes: Collection[str], measure: Callable[[], float]) -> float:
        make = partial(_make_noise, measure)
        return run.store.make(Product("noise", (*inputs, sorted(nodes)), _Noise, make))[0].power

    with run.clock.work("rank parts"):
        seen, fixed_batch = _noise_inputs(run), run.evidence.batch_axis
        return _Ranking(rank_parts(float_model, parts, quantize, *seen, fixed_batch=fixed_batch, remember=remember))


def _make_noise(measure: Callable[[], float], _folder: Path) -> _Noise:
    return _Noise(measure())


def _make_rounded_weight(make: Callable[[], Sequence[NDArray[Any]]], folder: Path) -> _RoundedWeight:
    np.savez(folder / "weight.npz", *make())
    return _RoundedWeight(folder / "weight.npz")


def _quantize(candidate: Candidate, materials: Materials) -> Callable[[Path, Collection[str], Path], Collection[str]]:
    """Return a function that quantizes a model as the candidate asks, but for some nodes."""
    return lambda model, keep_float, path: quantize_without(candidate, materials, model, path, keep_float)


def _noise_inputs(run: LoadedRun) -> tuple[Samples, str, SessionSettings]:
    """Return what noise is measured on: calibration samples, the judged output, and how the runtime loads a model."""
    settings = SessionSettings.reference(usable_cores(), libraries=run.libraries).without_spinning()
    return run.evidence.calibration or run.evidence.evaluation, run.evidence.output.name, settings


def cost_unit(run: LoadedRun, candidate: Candidate) -> str:
    """Return the unit of what forms of a candidate's parts cost: `bytes` or `µs`."""
    return "bytes" if candidate.precision != "int8" or run.job.objective == "size" else "µs"


def _make_forms(run: LoadedRun, materials: Materials, candidate: Candidate, unit: str, _folder: Path) -> _Forms:
    if candidate.precision == "int8":
        ranking = materials.ranking(candidate)
        costs = _float_costs(run, materials, candidate, unit, [one.part for one in ranking])
        forms = [
            (Form("int8", one.noise, 0.0), Form(FLOAT, 0.0, cost)) for one, cost in zip(ranking, costs, strict=True)
        ]
        return _Forms(tuple(map(Part, (one.part for one in ranking), forms)))
    float_model = float_graph(candidate, materials)
    grams, bits = materials.grams(candidate, float_model), materials.pairs.table_bits
    parts = find_block_parts(float_model, block_weights(candidate), grams, table_bits=bits)
    # Errors of weights become noise in the judged output by one factor for each part, or one for all of a decoder: to quantize
    # hundreds of its products one after the other takes longer than the candidates that it could save.
    plain = replace(candidate, weight_method=NEAREST.word)
    if find_target(candidate.target).facts.generates:
        nodes = {node for part in parts for node in part.nodes.nodes}
        with noise_meter(float_model, nodes, _quantize(plain, materials), *_noise_inputs(run)) as noise_of:
            whole = noise_of(nodes)
        error = sum(part.forms[0].noise for part in parts)
        return _Forms(tuple(_scaled(part, whole, error) for part in parts))
    noises = {node: one.noise for one in materials.ranking(plain) for node in one.part.nodes}

    def noise_in_output(part: Part) -> float:
        # `split_gemm` calls the product of a Gemm by another name than the ranking.
        return sum(noises.get(node, noises.get(node.removesuffix("_MatMul"), 0.0)) for node in part.nodes.nodes)

    return _Forms(tuple(_scaled(part, noise_in_output(part), part.forms[0].noise) for part in parts))


def _scaled(part: Part, noise: float, error: float) -> Part:
    """Return a part with the noise of its forms in the output, where that of some error in its own form is `noise`.

    A form without any error has no noise. Where a weight lies on the grid of its own form, so that nothing was measured, the
    noise of forms with an error is unknown, and counts as infinite.
    """
    factor = noise / error if error else math.inf
    forms = (replace(form, noise=form.noise * factor if form.noise else 0.0) for form in part.forms)
    return replace(part, forms=tuple(forms))


def _float_costs(
    run: LoadedRun,
    materials: Materials,
    candidate: Candidate,
    unit: str,
    parts: Sequence[SensitivePart],
) -> list[float]:
    """Return what each part costs more in float than in INT8, in the unit.

    A part whose kernels cannot be told apart in the profile costs its share of the multiply-accumulates, where a node without
    any counts as one. None costs less than its share of `LEAST_COST`: a part in float needs conversions around it, which its
    kernels' times do not have.
    """
    model = float_graph(candidate, materials)
    if unit == "bytes":
        graph = onnx.load(model, load_external_data=False).graph
        sizes = {name: math.prod(constant.dims) for name, constant in initializers(graph).items()}
        numbers = {node.name: sum(sizes.get(name, 0) for name in node.input) for node in graph.node}
        # A number has 4 bytes in float and 1 in INT8.
        return [sum(3.0 * numbers[node] + 1 for node in part.nodes) for part in parts]
    batch = request_batch(run.evidence, run.job.measurement.points[0])
    counted = dict(macs_as_written(model, batch))
    macs = [sum(counted.get(node, 0) + 1.0 for node in part.nodes) for part in parts]
    settings = session_settings(candidate, 1, run.libraries).without_spinning()
    with run.clock.work("profile parts"), scratch() as folder:
        quantized = folder / "int8.onnx"
        _quantize(candidate, materials)(model, (), quantized)
        in_float, in_int8 = _costs_on_target(candidate)([model, quantized], batch, settings)
    known = [part_cost(part.nodes, in_int8.by_node, in_float.by_node) for part in parts]
    of_known = sum(cost for cost in known if cost is not None)
    per_mac = of_known / max(1.0, sum(one for one, cost in zip(macs, known, strict=True) if cost is not None))
    least = LEAST_COST * in_float.total / sum(macs)
    return [max(one * least, one * per_mac if cost is None else cost) for one, cost in zip(macs, known, strict=True)]


def _costs_on_target(candidate: Candidate) -> ProfileCosts:
    profile_costs = find_target(candidate.target).profile_costs
    assert profile_costs, "engines without a profile search no INT8, and leave no slow products in float"
    return profile_costs


def part_cost(nodes: tuple[str, ...], quantized: Mapping[str, float], in_float: Mapping[str, float]) -> float | None:
    """Return the additional time of the nodes in float over INT8, given both times by node; None if any is unknown.

    >>> part_cost(("a", "b"), {"a": 3.0, "b": 4.0}, {"a": 9.0, "b": 5.0}), part_cost(("a",), {"a": 3.0}, {})
    (7.0, None)
    """
    if any(node not in times for node in nodes for times in (quantized, in_float)):
        return None
    return sum(in_float[node] - quantized[node] for node in nodes)
