"""The files of the `ort-cuda` target: float16, and INT4 weights over it.

ONNX Runtime's CUDA provider multiplies in float16 with float32 sums, and has MatMulNBits for float16 activations with scales of
the same type (contrib_ops/cuda/quantization/matmul_nbits.cc). Its kernels for a few rows at a time read the codes as they are,
in blocks of 16 to 128; for more rows it writes the weight as float16 first, on each request, and multiplies that. QLinearConv
and QLinearMatMul it does not have: INT8 pairs would run as dequantization and a float product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tasks.ptq.build_variant import Materials, in_new_operators
from tasks.ptq.calibrate.calibration import read_ranges
from tasks.ptq.calibrate.grams import Gram
from tasks.ptq.float.fp16 import convert_to_float16
from tasks.ptq.forms import Remember, count_reasons, make_now, weight_changes
from tasks.ptq.graph.edits import scratch
from tasks.ptq.weight_only.matmul_nbits import BlockWeights, quantize_weights
from validators.job.candidate_name import Candidate
from validators.job.methods import MINMAX

# matmul_4bits.cu: with another one a single row raises.
BLOCK_SIZES = (16, 32, 64, 128)


def cuda_form(candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
    """Write the form for the CUDA provider; return the counts of changes.

    Raises:
        CandidateRefused: the model does not allow it.
    """
    prepared = materials.prepared()
    with in_new_operators(prepared, materials) as graph:
        return make_form(
            candidate,
            graph,
            materials.statistics(False),
            lambda: materials.grams(candidate, prepared),
            path,
            materials.remember(prepared),
        )


def make_form(
    candidate: Candidate,
    graph: Path,
    statistics: Path,
    grams: Callable[[], Mapping[str, Gram]],
    path: Path,
    remember: Remember = make_now,
) -> dict[str, int]:
    """Write the candidate's form of a float graph to `path`; return what was changed.

    `statistics` are what calibration saw of the graph's activations; `grams` gives Gram matrices, if the method reads any,
    and `remember` keeps the rounded weights.

    Raises:
        CandidateRefused: the model does not allow it, or the result is not valid.
    """
    with scratch() as folder:
        base = path if candidate.precision == "fp16" else folder / "float16.onnx"
        half = convert_to_float16(graph, base, read_ranges(statistics, MINMAX.word, symmetric=False))
        changes = {"nodes in float16": len(half.converted)} | count_reasons("nodes left in float32", half.left.values())
        if candidate.precision == "fp16":
            return changes
        method, block_size = candidate.rounding.word, candidate.block_size or BLOCK_SIZES[-1]
        # The kernel has no other arithmetic than that of the activations.
        weights = BlockWeights(method, block_size, not candidate.asymmetric, accuracy_level=0)
        seen = half.with_carried(grams()) if candidate.rounding.needs_grams else None
        report = quantize_weights(base, path, weights, grams=seen, remember=remember)
    return changes | weight_changes(report, "MatMul left in float")
