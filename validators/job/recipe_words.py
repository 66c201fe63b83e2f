"""Candidates in words, for tables, pages and model cards."""

from __future__ import annotations

from validators.job.candidate_name import Candidate
from validators.job.methods import ASYMMETRIC, BF16_REST, CORRECTED, EVERY_OPERATOR, FAST, ROTATED, SMOOTH, Flag
from validators.targets import facts_of


def describe(candidate: Candidate) -> str:
    """Return a candidate in words.

    >>> from validators.job.candidate_name import decode
    >>> describe(decode("int4-g32-rtn@ort-cpu"))
    'INT4 weights in blocks of 32, symmetric, rounded to nearest'
    """
    if candidate.given:
        return f"the given file {candidate.given}, said to be {candidate.precision.upper().replace('-WEIGHTS', ' weights')}"
    cache = f", keys and values cached in INT{candidate.cache_bits}" if candidate.cache_bits else ""
    rest = _steps(candidate, BF16_REST)
    channels = "per output channel" if candidate.granularity == "pc" else "per tensor"
    graph = ", on the fused graph" if candidate.fused and candidate.precision != "fp32" else ""
    rotated, fast = _steps(candidate, ROTATED), _steps(candidate, FAST)
    how = candidate.rounding.words
    retired = f", and {candidate.retired} of an earlier version" if candidate.retired else ""
    match candidate.precision:
        case "fp32":
            return facts_of(candidate.target).fused_words
        case "bf16":
            return "bfloat16 arithmetic on the float model"
        case "fp16":
            return "float16 weights and activations" + graph
        case "int8-weights":
            return f"INT8 weights in blocks of {candidate.block_size}, symmetric, {how}{rotated}{graph}{cache}"
        case "int4":
            symmetry = ASYMMETRIC.words if candidate.asymmetric else "symmetric"
            other = f", other blocks or INT8 until noise is {candidate.sqnr_db} dB below the output"
            forms = other if candidate.sqnr_db else retired
            return f"INT4 weights in blocks of {candidate.block_size}, {symmetry}, {how}{forms}{rotated}{graph}{rest}{cache}"
        case "fp8":
            return f"FP8 E4M3 weights {channels}, activations per tensor, scale = amax / 448{fast}{graph}"
    rounded = f", {how}" if candidate.weight_method else ""
    steps = _steps(candidate, SMOOTH) + rounded + _steps(candidate, CORRECTED) + fast
    kept = f", parts left in float until noise is {candidate.sqnr_db} dB below the output" if candidate.sqnr_db else ""
    kept += retired
    if candidate.dynamic:
        return f"INT8 weights {channels}, activation ranges at run time{steps}{rotated}{kept}{graph}{cache}"
    activations = "INT8" if candidate.signed_activations else facts_of(candidate.target).int8_words
    scope = EVERY_OPERATOR.words if candidate.every_operator else "MatMul, Gemm and Conv"
    return f"INT8 weights {channels}, {activations} activations by {candidate.range_method}, {scope}{steps}{kept}{graph}{rest}"


def _steps(candidate: Candidate, *flags: Flag) -> str:
    return "".join(f", {flag.words}" for flag in flags if getattr(candidate, flag.field))
