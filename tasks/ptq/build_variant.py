"""The passes that write a candidate's artifact; which target uses which is in `tasks/targets`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from tasks.ptq import cuda_forms, openvino_forms, tensorrt_forms
from tasks.ptq.calibrate.calibration import read_ranges
from tasks.ptq.calibrate.grams import Gram
from tasks.ptq.calibrate.range_methods import Range
from tasks.ptq.eight_bit.affine import WeightBits
from tasks.ptq.eight_bit.bias_correction import correct_bias
from tasks.ptq.eight_bit.dynamic import quantize_dynamic
from tasks.ptq.eight_bit.fp8 import quantize_fp8
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.eight_bit.qdq import QdqReport, quantize_qdq
from tasks.ptq.eight_bit.smooth import SmoothedGraph
from tasks.ptq.forms import count_reasons, weight_changes
from tasks.ptq.graph.edits import custom_operators, save_model, scratch
from tasks.ptq.graph.upgrade import OPSET, convert_opset
from tasks.ptq.sensitivity import Sensitivity
from tasks.ptq.weight_only.matmul_nbits import Int4Weights, quantize_weights
from validators.errors import CandidateRefused
from validators.graph.source_graph import opset_of
from validators.job.candidate_name import Candidate, Precision
from validators.records.libraries import Libraries
from validators.samples.datasets import Arrays
from validators.targets import facts_of

LEFT = "nodes left in float"


@dataclass(frozen=True)
class Materials:
    """What the passes start from; each is a function that makes its file on first use and returns the path.

    `prepared` is the folded float graph, `smoothed` that after SmoothQuant, `fused` the one with the runtime's transformer
    fusions; `statistics` is what calibration saw of the activations of the prepared graph, or of the smoothed one; `ranking`
    the parts of the model, the most sensitive first, for a candidate of INT8; `batches` are calibration samples,
    `grams` sums over all of them for a candidate of INT4 weights and the float graph that it starts from.
    `reduced_range` says that the processor adds pairs of products in 16 bits, so that weights must leave it a bit; `libraries`
    have the custom operators of the source.
    """

    prepared: Callable[[], Path]
    fused: Callable[[], Path]
    smoothed: Callable[[], SmoothedGraph]
    statistics: Callable[[bool], Path]
    ranking: Callable[[Candidate], tuple[Sensitivity, ...]]
    batches: Callable[[], Sequence[Arrays]]
    grams: Callable[[Candidate, Path], Mapping[str, Gram]]
    reduced_range: bool = False
    libraries: Libraries = ()


def fused_float_form(_candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
    """Write the float graph after the runtime's transformer fusions; return the custom operators in it, by reason."""
    return _float_form(materials.fused(), materials, path)


def plain_float_form(_candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
    """Write the float graph as it is, for a runtime that fuses it itself when it loads."""
    return _float_form(materials.prepared(), materials, path)


def _float_form(graph: Path, materials: Materials, path: Path) -> dict[str, int]:
    model = onnx.load(graph)
    save_model(model, path)
    # Of those that the fusions made, none was left.
    before = custom_operators(onnx.load(materials.prepared(), load_external_data=False).graph).values()
    left = Counter(before) & Counter(custom_operators(model.graph).values())
    return count_reasons(LEFT, left.elements())


def int8_form(candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
    """Write the form in INT8, by Q/DQ pairs or with ranges at run time; return what was changed.

    Raises:
        CandidateRefused: the model does not allow it.
    """
    kept = materials.ranking(ranked_form(candidate))[: candidate.kept_parts] if candidate.kept_parts else ()
    nodes = [node for sensitivity in kept for node in sensitivity.part.nodes]
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
    return changes | {f"kept in float: {sensitivity.part.name}": len(sensitivity.part.nodes) for sensitivity in kept}


def ranked_form(candidate: Candidate) -> Candidate:
    """The candidate whose parts are ranked for one of INT8: before biases are corrected, which takes many times as long."""
    return replace(candidate, kept_parts=0, bias_corrected=False)


def quantize_int8(
    candidate: Candidate, materials: Materials, model: Path, path: Path, *, keep_float: Collection[str] = ()
) -> QdqReport:
    """Write the form of its float graph that a candidate of INT8 asks for; the nodes `keep_float` stay in float.

    Raises:
        CandidateRefused: the target or the model does not allow it.
    """
    # With pairs of products in 16 bits, weights must leave a bit.
    bits: WeightBits = 7 if materials.reduced_range else 8
    weights = Int8Weights(candidate.granularity == "pc", bits, candidate.weight_method or "rtn")
    if candidate.dynamic:
        return quantize_dynamic(model, path, weights=weights, keep_float=keep_float)
    return quantize_qdq(
        model,
        path,
        ranges_for(candidate, materials.statistics(candidate.smooth)),
        target=facts_of(candidate.target).pairs,
        every_operator=candidate.every_operator,
        activation="int8" if candidate.signed_activations else "uint8",
        weights=weights,
        keep_float=keep_float,
    )


def float_graph(candidate: Candidate, materials: Materials) -> Path:
    """The float model that a candidate is made from.

    Raises:
        CandidateRefused: `unsupported`: it asks for two that exclude each other.
    """
    if candidate.fused and candidate.precision == "int8" and not candidate.dynamic:
        raise CandidateRefused(
            kind="unsupported",
            found="static INT8 on the fused graph",
            expected="the unfused graph: no integer kernel with fixed ranges takes the place of fused attention",
            fix="leave out +fused, or take int8-dynamic-pc+fused",
        )
    if candidate.fused and candidate.smooth:
        raise CandidateRefused(
            kind="unsupported",
            found="SmoothQuant on the fused graph",
            expected="the unfused graph, whose activations it watches",
            fix="leave out +fused, or -smooth",
        )
    if candidate.smooth:
        return materials.smoothed().path
    return materials.fused() if candidate.fused else materials.prepared()


def int4_form(candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
    """Write the form with INT4 weights for MatMulNBits; return what was changed.

    Raises:
        CandidateRefused: the model does not allow it.
    """
    float_model = float_graph(candidate, materials)
    weights = Int4Weights(candidate.weight_method or "rtn", candidate.block_size or 32, not candidate.asymmetric)
    grams = materials.grams(candidate, float_model) if weights.needs_grams else None
    report = quantize_weights(float_model, path, weights, grams=grams)
    return weight_changes(report, LEFT)


def fp8_form(candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
    """Write the form with Q/DQ pairs in FP8; return what was changed.

    Raises:
        CandidateRefused: the model does not allow it.
    """
    with _in_new_operators(materials.prepared(), materials) as graph:
        report = quantize_fp8(graph, ranges_for(candidate, materials.statistics(False)), candidate, path)
    return {"MatMul, Gemm and Conv in FP8 E4M3": len(report.quantized)} | count_reasons(LEFT, report.left.values())


def tensorrt_form(candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
    """Write the form for TensorRT; return what was changed.

    Raises:
        CandidateRefused: the model does not allow it.
    """
    with _in_new_operators(float_graph(candidate, materials), materials) as graph:
        return tensorrt_forms.make_form(candidate, graph, materials.statistics(candidate.smooth), path)


def cuda_form(candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
    """Write the form for the CUDA provider; return what was changed.

    Raises:
        CandidateRefused: the model does not allow it.
    """
    prepared = materials.prepared()
    with _in_new_operators(prepared, materials) as graph:
        return cuda_forms.make_form(
            candidate, graph, materials.statistics(False), lambda: materials.grams(candidate, prepared), path
        )


@contextmanager
def _in_new_operators(graph: Path, materials: Materials) -> Iterator[Path]:
    """A float graph in operators of `OPSET`, with the names of its tensors; the graph itself where it has them.

    Forms for GPUs, and FP8, are written in types that operators of older opsets do not take.

    Raises:
        CandidateRefused: `unsupported`: onnx cannot upgrade it, or the result computes something else.
    """
    if opset_of(onnx.load(graph, load_external_data=False)) >= OPSET:
        yield graph
        return
    with scratch() as folder:
        convert_opset(graph, folder / "upgraded.onnx", lambda _: materials.batches()[0], materials.libraries)
        yield folder / "upgraded.onnx"


def ranges_for(candidate: Candidate, statistics: Path) -> dict[str, Range]:
    """The range of each activation as the candidate asks for it; FP8, which has a sign, takes the extremes."""
    if facts_of(candidate.target).pairs == "ort-openvino":
        return openvino_forms.ranges_for_openvino(statistics, candidate.range_method or "minmax")
    return read_ranges(statistics, candidate.range_method or "minmax", symmetric=candidate.precision == "fp8")


# The passes of ONNX Runtime's CPU provider, by precision.
PASSES: Mapping[Precision, Callable[[Candidate, Materials, Path], dict[str, int]]] = {
    "fp32": fused_float_form,
    "int8": int8_form,
    "int4": int4_form,
    "fp8": fp8_form,
}
