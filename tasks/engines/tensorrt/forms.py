"""The files of the target `tensorrt`: float16, and INT8, FP8 or INT4 over it.

TensorRT 11 takes every type from the file, so that each form is one of the whole graph: first all is float16 that can be, then
Q/DQ pairs go into that, with scales in the type of the tensor that they are for (another one is a type mismatch to its parser).
What goes where is in `fp16_rules.py` and, for the pairs, in `tasks/ptq/eight_bit/placement.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tasks.ptq.build_variant import Materials, float_graph, in_new_operators, slow_parts_of
from tasks.ptq.calibrate.calibration import read_ranges
from tasks.ptq.calibrate.range_methods import Range
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.eight_bit.placement import IN_HALF
from tasks.ptq.eight_bit.qdq import quantize_qdq
from tasks.ptq.float.fp16 import convert_to_float16
from tasks.ptq.forms import count_reasons, weight_changes
from tasks.ptq.graph.edits import scratch
from tasks.ptq.slow_parts import SlowParts
from tasks.ptq.weight_only.int4_blocks import BLOCK_SIZES, quantize_blocks
from validators.job.candidate_name import Candidate
from validators.job.methods import MINMAX


def tensorrt_form(candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
    """Write the form for TensorRT; return the counts of changes.

    Raises:
        CandidateRefused: the model does not allow it.
    """
    slow = slow_parts_of(candidate, materials) if candidate.fast else SlowParts()
    return quantize_for_tensorrt(candidate, materials, path, keep_float=slow.nodes) | slow.changes


def quantize_for_tensorrt(
    candidate: Candidate, materials: Materials, path: Path, *, keep_float: Collection[str] = ()
) -> dict[str, int]:
    """Write the form for TensorRT with the products `keep_float` in float16; return the counts of changes.

    Raises:
        CandidateRefused: see `tensorrt_form`.
    """
    with in_new_operators(float_graph(candidate, materials), materials) as graph:
        statistics = materials.statistics(candidate.smooth)
        return make_form(candidate, graph, statistics, path, keep_float=keep_float)


def make_form(
    candidate: Candidate, graph: Path, statistics: Path, path: Path, *, keep_float: Collection[str] = ()
) -> dict[str, int]:
    """Write the candidate's form of a float graph to `path`, given what calibration saw; return what was changed.

    `keep_float` names products that stay in float16 in an INT8 or FP8 form.

    Raises:
        CandidateRefused: the model does not allow it, or the result is not valid.
    """
    with scratch() as folder:
        base = path if candidate.precision == "fp16" else folder / "float16.onnx"
        half = convert_to_float16(graph, base, read_ranges(statistics, MINMAX.word, symmetric=False))
        changes = {"nodes in float16": len(half.converted)} | count_reasons("nodes left in float32", half.left.values())
        if candidate.precision == "fp16":
            return changes
        if candidate.precision == "int4":
            report = quantize_blocks(base, path, block_size=candidate.block_size or BLOCK_SIZES[-1])
            return changes | weight_changes(report, "MatMul left in float16")
        ranges = half.with_carried(read_ranges(statistics, candidate.ranges.word, symmetric=True))
        return changes | _quantize(candidate, base, ranges, path, keep_float)


def _quantize(
    candidate: Candidate, base: Path, ranges: dict[str, Range], path: Path, keep_float: Collection[str]
) -> dict[str, int]:
    is_fp8 = candidate.precision == "fp8"
    report = quantize_qdq(
        base,
        path,
        ranges,
        rules=IN_HALF,
        every_operator=candidate.every_operator,
        activation="e4m3" if is_fp8 else "int8",
        weights=Int8Weights(candidate.granularity == "pc"),
        keep_float=keep_float,
    )
    precision = "FP8 E4M3" if is_fp8 else "INT8"
    left = (reason for node, reason in report.left.items() if node not in keep_float)
    return {f"nodes in {precision}": len(report.quantized)} | count_reasons("nodes not quantized", left)
