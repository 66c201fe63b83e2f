"""Passes that write a candidate's artifact; each engine lists its passes in its room of `tasks/engines`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import onnx

from tasks.ptq.calibrate.calibration import read_ranges
from tasks.ptq.calibrate.grams import Gram
from tasks.ptq.calibrate.in_order import collect_in_order
from tasks.ptq.calibrate.patches import Patches
from tasks.ptq.calibrate.range_methods import Range
from tasks.ptq.eight_bit.affine import WeightBits
from tasks.ptq.eight_bit.bias_correction import correct_bias
from tasks.ptq.eight_bit.dynamic import quantize_dynamic
from tasks.ptq.eight_bit.int8_weights import Int8Weights, layers_to_learn
from tasks.ptq.eight_bit.placement import EXPLICIT, PairRules
from tasks.ptq.eight_bit.qdq import QdqReport, quantize_qdq
from tasks.ptq.eight_bit.smooth import SmoothedGraph
from tasks.ptq.eight_bit.tied import untie
from tasks.ptq.forms import Remember, count_reasons, make_now, weight_changes
from tasks.ptq.graph.edits import custom_operators, scratch
from tasks.ptq.graph.equal_floats import refuse_unequal
from tasks.ptq.graph.upgrade import OPSET, convert_opset
from tasks.ptq.search import FLOAT, Form, Part, find_point
from tasks.ptq.sensitivity import Sensitivity
from tasks.ptq.slow_parts import WORTH, SlowParts
from tasks.ptq.weight_only.matmul_nbits import BlockForm, BlockWeights, quantize_weights
from tasks.ptq.weight_only.sites import tensors_to_collect
from validators.errors import CandidateRefused
from validators.graph.source_graph import opset_of
from validators.graph.stored import load_model, save_model
from validators.job.candidate_name import FUSED, CacheBits, Candidate
from validators.job.given_file import GivenFile
from validators.job.methods import FAST, ROTATED, SMOOTH
from validators.processors import Processor
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays
from validators.targets import is_on_gpu

LEFT = "nodes left in float"


@dataclass(frozen=True)
class Materials:
    """Inputs of the passes. Each is a function that makes its file on first use and returns the path.

    `prepared` is the folded float graph, `smoothed` the graph after SmoothQuant, `fused` the graph with the runtime's
    transformer fusions, `rotated` that of a decoder after a rotation. `statistics` are the calibration statistics of the
    activations, of the smoothed graph if its argument is true, else of the prepared one. `ranking` returns the parts of the
    model for an INT8 candidate, most sensitive first. `batches` are calibration samples; `grams` are Gram matrices over all of
    them, for a candidate and the float graph that it starts from, in at most `memory_mb` (1e6 bytes). `processor` is the one
    that the variant is made for, and decides the bits of its weights. `libraries` hold the custom operators of the source.
    `program` is its exported PyTorch program, if it was one; a compiler tunes code for `threads`. `slow_parts` returns the
    products that an INT8 candidate makes slower. `companions` are the files beside a decoder's graph: its configuration and
    tokenizer. `cache_ranges` are those of its caches in so many bits. `pairs` are the rules of the candidate's engine for Q/DQ
    pairs. `given` is the file of a candidate that another tool made of `source`. `remember` keeps rounded weights of a graph.
    """

    prepared: Callable[[], Path]
    fused: Callable[[], Path]
    smoothed: Callable[[], SmoothedGraph]
    statistics: Callable[[bool], Path]
    ranking: Callable[[Candidate], tuple[Sensitivity, ...]]
    batches: Callable[[], Sequence[Arrays]]
    grams: Callable[[Candidate, Path], Mapping[str, Gram]]
    processor: Processor
    libraries: Libraries = ()
    program: Path | None = None
    threads: int = 1
    slow_parts: Callable[[Candidate], SlowParts] = lambda _candidate: SlowParts()
    companions: tuple[Path, ...] = ()
    cache_ranges: Callable[[CacheBits], Path] | None = None
    pairs: PairRules = EXPLICIT
    given: GivenFile | None = None
    source: Path = Path()
    rotated: Callable[[], Path] | None = None
    parts: Callable[[Candidate], tuple[Part, ...]] = lambda _candidate: ()
    memory_mb: Callable[[], float] = lambda: math.inf
    remember: Callable[[Path], Remember] = lambda _float_model: make_now


def fused_float_form(_candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
    """Write the float graph after the runtime's transformer fusions; return the custom operators in it, by reason."""
    return _float_form(materials.fused(), materials, path)


def plain_float_form(_candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
    """Write the float graph unchanged, for a runtime that fuses it on load."""
    return _float_form(materials.prepared(), materials, path)


def _float_form(graph: Path, materials: Materials, path: Path) -> dict[str, int]:
    model = load_model(graph)
    save_model(model, path)
    # Operators that the fusions made were not left in float.
    before = custom_operators(onnx.load(materials.prepared(), load_external_data=False).graph).values()
    left = Counter(before) & Counter(custom_operators(model.graph).values())
    return count_reasons(LEFT, left.elements())


def int8_form(candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
    """Write the INT8 form, with Q/DQ pairs or with ranges at run time; return the counts of changes.

    Raises:
        CandidateRefused: the model does not allow it.
    """
    kept = [part.nodes for part, form in searched_forms(candidate, materials) if form.name == FLOAT]
    slow = slow_parts_of(candidate, materials) if candidate.fast else SlowParts()
    nodes = [*slow.nodes, *(node for part in kept for node in part.nodes)]
    float_model = float_graph(candidate, materials)
    report = quantize_int8(candidate, materials, float_model, path, keep_float=nodes)
    changes = {"nodes in INT8": len(report.quantized)}
    changes |= count_reasons(LEFT, (reason for node, reason in report.left.items() if node not in nodes))
    if candidate.smooth:
        smoothed = materials.smoothed()
        changes |= {
            "tensors smoothed where they are made": smoothed.folded,
            "tensors smoothed by a Mul": smoothed.multiplied,
        }
    if candidate.bias_corrected:
        corrected = correct_bias(float_model, path, path, materials.batches(), materials.libraries)
        changes["biases corrected"] = len(corrected.largest)
    changes |= slow.changes
    return changes | {f"kept in float: {part.name}": len(part.nodes) for part in kept}


def ranked_form(candidate: Candidate) -> Candidate:
    """Return the candidate whose parts are ranked for another one: without a search, and steps that take far longer."""
    method = None if candidate.precision == "int8" else candidate.weight_method
    return replace(candidate, sqnr_db=0, bias_corrected=False, fast=False, weight_method=method)


def searched_forms(candidate: Candidate, materials: Materials) -> list[tuple[Part, Form]]:
    """Return the parts whose forms a search changes, with these forms; none without a search.

    Raises:
        CandidateRefused: `unsupported`: no forms of the candidate's parts have so little noise.
    """
    if not candidate.sqnr_db:
        return []
    parts = materials.parts(ranked_form(candidate))
    point = find_point(parts, candidate.sqnr_db)
    if point is None:
        raise CandidateRefused(
            kind="unsupported",
            found=f"no forms of the {len(parts)} parts with noise {candidate.sqnr_db} dB below the output",
            expected="a lower level, or more precise forms",
            fix="lower the level in the candidate's name, or take a candidate with smaller blocks",
        )
    return [(part, part.forms[form]) for part, form in zip(parts, point.assignment, strict=True) if form]


def slow_parts_of(candidate: Candidate, materials: Materials) -> SlowParts:
    """Return the products that a `-fast` candidate leaves in float.

    Raises:
        CandidateRefused: `unsupported`: there are none.
    """
    found = materials.slow_parts(candidate)
    if found.nodes:
        return found
    if found.timed:
        lacking = "no product without which a request has fewer microseconds in its kernels"
        expected = f"products that low precision slows down, and a request {WORTH}x as fast with them in float"
    else:
        lacking = "no product with pairs whose removal would leave fewer layers to the engine"
        expected = "products that the engine computes in float; others are timed on a GPU, and none is here"
    raise CandidateRefused(
        kind="unsupported",
        found=lacking,
        expected=expected,
        fix=f"take the candidate without -{FAST.word}, which is the same",
    )


def quantize_int8(
    candidate: Candidate, materials: Materials, model: Path, path: Path, *, keep_float: Collection[str] = ()
) -> QdqReport:
    """Quantize `model` as the INT8 candidate asks; the nodes `keep_float` stay in float.

    Raises:
        CandidateRefused: the target or the model does not allow it.
    """
    bits = weight_bits(candidate, materials.processor)
    weights = Int8Weights(candidate.granularity == "pc", bits, candidate.rounding.word)
    if candidate.dynamic and materials.pairs.place_weights is None:
        return quantize_dynamic(model, path, weights=weights, keep_float=keep_float)
    grams = None
    if candidate.rounding.needs_grams:
        products, convolutions = layers_to_learn(model)
        _check_learnable(candidate, [*products, *convolutions])
        grams = partial(_grams, candidate, materials, model, weights, products, convolutions)
    report = quantize_qdq(
        model,
        path,
        None if candidate.dynamic else ranges_for(candidate, materials.statistics(candidate.smooth), materials.pairs),
        rules=materials.pairs,
        every_operator=candidate.every_operator,
        activation="int8" if candidate.signed_activations else "uint8",
        weights=weights,
        keep_float=keep_float,
        grams=grams,
        remember=materials.remember(model),
    )
    if not materials.pairs.rest_at_run_time:
        return report
    # What has no pairs: recurrent layers, and bodies, whose tensors have no calibrated ranges.
    rest = quantize_dynamic(path, path, weights=weights, keep_float=keep_float, rest=True)
    left = {name: why for name, why in (report.left | rest.left).items() if name not in rest.quantized}
    return QdqReport((*report.quantized, *rest.quantized), left)


def _check_learnable(candidate: Candidate, layers: Collection[str]) -> None:
    """Raise CandidateRefused if every weight would be rounded to nearest under the name of another method."""
    if candidate.granularity == "pt" or not layers:
        raise CandidateRefused(
            kind="unsupported",
            found=candidate.rounding.words + (" with one scale for a whole weight" if layers else " of no layer"),
            expected="a scale for each output channel of a MatMul, Gemm or Conv with a constant weight and fixed padding",
            fix=f"take -pc, or leave out -{candidate.rounding.word}",
        )


def _grams(
    candidate: Candidate,
    materials: Materials,
    model: Path,
    weights: Int8Weights,
    products: Mapping[str, tuple[str, int]],
    convolutions: Mapping[str, Patches],
    nodes: Collection[str],
) -> dict[str, Gram]:
    """Return the Gram matrices of what these nodes read, by node; see `collect_grams` and `collect_in_order`."""
    read = {node: name for node, (name, _) in products.items() if node in nodes}
    sums = materials.grams(candidate, model) if read else {}
    in_order = collect_in_order(
        model,
        {node: patches for node, patches in convolutions.items() if node in nodes},
        materials.batches(),
        weights.round_convolution,
        SessionSettings.reference(materials.threads, libraries=materials.libraries).without_spinning(),
        max_memory_mb=materials.memory_mb(),
    )
    return {node: sums[name] for node, name in read.items()} | in_order


def gram_inputs(candidate: Candidate, float_model: Path) -> dict[str, int]:
    """Return the activations that a candidate's rounding needs Gram matrices of, with their channels; see `collect_grams`."""
    if candidate.precision == "int8":
        return dict(layers_to_learn(float_model)[0].values())
    return dict(tensors_to_collect(float_model, block_size=candidate.block_size or 32))


def quantize_without(
    candidate: Candidate, materials: Materials, model: Path, path: Path, keep_float: Collection[str]
) -> Collection[str]:
    """Quantize `model` as the INT8 candidate, or one of weights alone, asks, but for some nodes; return those quantized.

    All names are those of `model`.

    Raises:
        CandidateRefused: the target or the model does not allow it, or nothing is left to quantize.
    """
    if candidate.precision == "int8":
        return quantize_int8(candidate, materials, model, path, keep_float=keep_float).quantized
    nodes = {node.name for node in onnx.load(model, load_external_data=False).graph.node}
    report = quantize_weights(model, path, block_weights(candidate), exclude=keep_float)
    made = [*report.quantized, *report.looked_up]
    # `split_gemm` calls the product of a Gemm by its name.
    return [name if name in nodes else name.removesuffix("_MatMul") for name in made]


def weight_bits(candidate: Candidate, processor: Processor) -> WeightBits:
    """Return the bits of weights that are multiplied by 8-bit activations on this processor, if no GPU multiplies them.

    Sums of two products in 16 bits saturate unless weights use 7 bits.
    """
    return 7 if processor.adds_pairs_in_16_bits and not is_on_gpu(candidate.target) else 8


def float_graph(candidate: Candidate, materials: Materials) -> Path:
    """Return the float model that a candidate is made from.

    Raises:
        CandidateRefused: `unsupported`: the candidate combines steps that exclude each other.
    """
    if candidate.fused and candidate.precision == "int8" and not candidate.dynamic:
        raise CandidateRefused(
            kind="unsupported",
            found="static INT8 on the fused graph",
            expected="the unfused graph: no integer kernel with fixed ranges replaces fused attention",
            fix="leave out +fused, or take int8-dynamic-pc+fused",
        )
    if candidate.fused and candidate.smooth:
        raise CandidateRefused(
            kind="unsupported",
            found="SmoothQuant on the fused graph",
            expected="the unfused graph, whose activations SmoothQuant measures",
            fix=f"leave out {FUSED}, or -{SMOOTH.word}",
        )
    if candidate.rotated and (candidate.smooth or candidate.fused):
        raise CandidateRefused(
            kind="unsupported",
            found="a rotation with " + ("SmoothQuant" if candidate.smooth else "the transformer fusions"),
            expected="one of them: each rewrites the prepared graph",
            fix=f"leave out -{ROTATED.word}",
        )
    if candidate.smooth:
        return materials.smoothed().path
    if candidate.rotated:
        assert materials.rotated, "only targets of decoders take rotated graphs"
        return materials.rotated()
    return materials.fused() if candidate.fused else materials.prepared()


def block_weights(candidate: Candidate) -> BlockWeights:
    """Return the settings of a candidate of weights alone."""
    return BlockWeights(
        candidate.rounding.word,
        candidate.block_size or 32,
        not candidate.asymmetric,
        bits=4 if candidate.precision == "int4" else 8,
    )


def weights_form(candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
    """Write the form with INT4 or INT8 weights for MatMulNBits; return the counts of changes.

    Raises:
        CandidateRefused: the model does not allow it.
    """
    float_model = float_graph(candidate, materials)
    searched = searched_forms(candidate, materials)
    forms = {node: BlockForm.read(form.name) for part, form in searched for node in part.nodes.nodes}
    weights = replace(block_weights(candidate), forms=forms)
    grams = materials.grams(candidate, float_model) if candidate.rounding.needs_grams else None

    def check(scaled: Path) -> None:
        batch, method = materials.batches()[0], candidate.weight_method
        refuse_unequal(float_model, scaled, batch, materials.libraries, f"the scaling of {method}", "another method")

    report = quantize_weights(
        float_model, path, weights, grams=grams, check=check, remember=materials.remember(float_model)
    )
    copies = untie(path) if materials.pairs.untied else 0
    stored = {"constants stored twice, for the embedding and for the head": copies} if copies else {}
    return weight_changes(report, LEFT) | stored


def fp8_form(candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
    """Write the form with Q/DQ pairs in FP8; return the counts of changes.

    Raises:
        CandidateRefused: the model does not allow it.
    """
    with in_new_operators(materials.prepared(), materials) as graph:
        report = quantize_qdq(
            graph,
            path,
            ranges_for(candidate, materials.statistics(False), EXPLICIT),
            rules=EXPLICIT,
            every_operator=False,
            activation="e4m3",
            weights=Int8Weights(candidate.granularity == "pc"),
        )
    return {"MatMul, Gemm and Conv in FP8 E4M3": len(report.quantized)} | count_reasons(LEFT, report.left.values())


@contextmanager
def in_new_operators(graph: Path, materials: Materials) -> Iterator[Path]:
    """Yield the float graph upgraded to `OPSET`, with the same tensor names, or the graph itself if it is new enough.

    Forms for GPUs, and FP8, use types that operators of older opsets do not accept.

    Raises:
        CandidateRefused: `unsupported`: onnx cannot upgrade the graph, or the result gives other outputs.
    """
    if opset_of(onnx.load(graph, load_external_data=False)) >= OPSET:
        yield graph
        return
    with scratch() as folder:
        convert_opset(graph, folder / "upgraded.onnx", lambda _: materials.batches()[0], materials.libraries)
        yield folder / "upgraded.onnx"


def ranges_for(candidate: Candidate, statistics: Path, rules: PairRules) -> dict[str, Range]:
    """Return the range of each activation by the candidate's method and an engine's rules; FP8 uses the extremes."""
    method = candidate.ranges.word
    ranges = read_ranges(statistics, method, symmetric=rules.symmetric == "always")
    if rules.symmetric != "below zero":
        return ranges
    even = read_ranges(statistics, method, symmetric=True)
    return {name: (low, high) if low >= 0 else even[name] for name, (low, high) in ranges.items()}
