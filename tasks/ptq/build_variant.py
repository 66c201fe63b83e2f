"""From a candidate to its variant: one explicit table from precision to pass."""

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
from tasks.ptq.eight_bit.qdq import QdqReport, quantize_qdq
from tasks.ptq.eight_bit.smooth import SmoothedGraph
from tasks.ptq.forms import count_reasons, weight_changes
from tasks.ptq.graph.edits import custom_operators, model_bytes, notes_of, save_model, scratch
from tasks.ptq.graph.upgrade import OPSET, convert_opset
from tasks.ptq.sensitivity import Sensitivity
from tasks.ptq.sessions import session_settings
from tasks.ptq.weight_only.matmul_nbits import quantize_weights
from validators.digests import digest_model, digest_values
from validators.errors import CandidateRefused
from validators.graph.source_graph import opset_of
from validators.job.candidate_name import Candidate
from validators.records.libraries import Libraries
from validators.records.run import Variant
from validators.samples.datasets import Arrays
from validators.targets import is_on_gpu

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


def make_variant(
    candidate: Candidate,
    materials: Materials,
    folder: Path,
    *,
    threads: int,
    provider_options: Mapping[str, str] | None = None,
) -> Variant:
    """Make the candidate's artifact, `folder/model.onnx`, check it and describe it; `provider_options` are the job's.

    Raises:
        CandidateRefused: the target or the model does not allow it, or the pass made an invalid file.
    """
    refuse_other_targets(candidate)
    path = folder / "model.onnx"
    changes = _pass_of(candidate)(candidate, materials, path)
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise CandidateRefused(
            kind="invalid",
            found=f"the pass made an invalid file: {str(error).splitlines()[0]}",
            expected="a file that passes onnx.checker",
            fix="report it with the source model; take another candidate meanwhile",
        ) from error
    return Variant(
        candidate=candidate.name,
        path=path,
        digest=_digest(path, materials.libraries),
        size_bytes=model_bytes(path),
        session=session_settings(candidate, threads, materials.libraries, provider_options),
        proof="simulated" if candidate.is_simulated else "measured",
        changes=changes,
        notes=(*_notes(candidate, materials), *(f"{about} {note}" for about, note in notes_of(path).items())),
    )


def _digest(path: Path, libraries: Libraries) -> str:
    """That of the model and, where there are some, of the libraries that it is approved with."""
    digest = digest_model(path)
    return digest_values(digest, [library.digest for library in libraries]) if libraries else digest


def _notes(candidate: Candidate, materials: Materials) -> tuple[str, ...]:
    if candidate.is_simulated:
        return ("FP8 has no kernels on a CPU: numerics are simulated, latency is not measured",)
    if candidate.precision == "int8" and materials.reduced_range and not is_on_gpu(candidate.target):
        return ("this processor adds pairs of INT8 products in 16 bits: weights have 7 bits, so that no sum saturates",)
    return ()


def refuse_other_targets(candidate: Candidate) -> None:
    """Refuse what this version cannot make, with the reason.

    Raises:
        CandidateRefused: `unsupported`.
    """
    if candidate.target in _REFUSE_RECIPE:
        _REFUSE_RECIPE[candidate.target](candidate)
    if candidate.precision == "fp16" and candidate.target == "ort-cpu":
        raise CandidateRefused(
            kind="unsupported",
            found="fp16 on ort-cpu",
            expected="a precision with CPU kernels",
            fix="ONNX Runtime's CPU provider computes fp16 in fp32: take int8 or fp32-fused",
        )


def _fused_float(candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
    # OpenVINO fuses the plain graph itself when it loads.
    model = onnx.load(materials.prepared() if candidate.target == "ort-openvino" else materials.fused())
    save_model(model, path)
    # Of those that the fusions made, none was left.
    before = custom_operators(onnx.load(materials.prepared(), load_external_data=False).graph).values()
    left = Counter(before) & Counter(custom_operators(model.graph).values())
    return count_reasons(LEFT, left.elements())


def _int8(candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
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
    per_channel = candidate.granularity == "pc"
    # With pairs of products in 16 bits, weights must leave a bit.
    bits: WeightBits = 7 if materials.reduced_range else 8
    if candidate.dynamic:
        return quantize_dynamic(model, path, per_channel=per_channel, weight_bits=bits, keep_float=keep_float)
    return quantize_qdq(
        model,
        path,
        ranges_for(candidate, materials.statistics(candidate.smooth)),
        target="ort-openvino" if candidate.target == "ort-openvino" else "ort-cpu",
        every_operator=candidate.every_operator,
        per_channel=per_channel,
        activation="int8" if candidate.signed_activations else "uint8",
        weight_bits=bits,
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


def _int4(candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
    float_model = float_graph(candidate, materials)
    method = candidate.weight_method or "rtn"
    report = quantize_weights(
        float_model,
        path,
        block_size=candidate.block_size or 32,
        symmetric=not candidate.asymmetric,
        method=method,
        grams=materials.grams(candidate, float_model) if method in ("gptq", "awq") else None,
    )
    return weight_changes(report, LEFT)


def _fp8(candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
    with _in_new_operators(materials.prepared(), materials) as graph:
        report = quantize_fp8(graph, ranges_for(candidate, materials.statistics(False)), candidate, path)
    return {"MatMul, Gemm and Conv in FP8 E4M3": len(report.quantized)} | count_reasons(LEFT, report.left.values())


def _tensorrt(candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
    with _in_new_operators(float_graph(candidate, materials), materials) as graph:
        return tensorrt_forms.make_form(candidate, graph, materials.statistics(candidate.smooth), path)


def _cuda(candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
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
    if candidate.target == "ort-openvino":
        return openvino_forms.ranges_for_openvino(statistics, candidate.range_method or "minmax")
    return read_ranges(statistics, candidate.range_method or "minmax", symmetric=candidate.precision == "fp8")


def _pass_of(candidate: Candidate) -> Callable[[Candidate, Materials, Path], dict[str, int]]:
    return _PASSES_OF_TARGET.get(candidate.target, {}).get(candidate.precision) or _PASSES[candidate.precision]


_PASSES: dict[str, Callable[[Candidate, Materials, Path], dict[str, int]]] = {
    "fp32": _fused_float,
    "int8": _int8,
    "int4": _int4,
    "fp8": _fp8,
}
_PASSES_OF_TARGET: dict[str, dict[str, Callable[[Candidate, Materials, Path], dict[str, int]]]] = {
    "ort-cuda": {"fp16": _cuda, "int4": _cuda},
    "ort-tensorrt": dict.fromkeys(("fp16", "int8", "int4", "fp8"), _tensorrt),
    "tensorrt": dict.fromkeys(("fp16", "int8", "int4", "fp8"), _tensorrt),
}
_REFUSE_RECIPE: dict[str, Callable[[Candidate], None]] = {
    "ort-openvino": openvino_forms.refuse_recipe,
    "ort-cuda": cuda_forms.refuse_recipe,
    "ort-tensorrt": tensorrt_forms.refuse_recipe,
    "tensorrt": tensorrt_forms.refuse_recipe,
}
