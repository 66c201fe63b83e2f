"""Candidates in words, for tables, pages and the card of a version."""

from __future__ import annotations

from validators.job.candidate_name import Candidate


def describe(candidate: Candidate) -> str:
    """A candidate in words.

    >>> from validators.job.candidate_name import decode
    >>> describe(decode("int4-g32-rtn@ort-cpu"))
    'INT4 weights in blocks of 32, symmetric, rounded to nearest'
    """
    channels = "per output channel" if candidate.granularity == "pc" else "per tensor"
    graph = ", on the fused graph" if candidate.fused and candidate.precision != "fp32" else ""
    match candidate.precision:
        case "fp32" if candidate.target == "ort-openvino":
            return "the float model as OpenVINO fuses it when it loads, computed in float32"
        case "fp32":
            return "the float model after the runtime's transformer fusions"
        case "fp16":
            return "float16 weights and activations" + graph
        case "int4":
            how = {
                "rtn": "rounded to nearest",
                "hqq": "by half-quadratic splitting",
                "gptq": "by GPTQ",
                "awq": "by AWQ",
            }[candidate.weight_method or "rtn"]
            symmetry = "asymmetric" if candidate.asymmetric else "symmetric"
            return f"INT4 weights in blocks of {candidate.block_size}, {symmetry}, {how}{graph}"
        case "fp8":
            return f"FP8 E4M3 weights {channels}, activations per tensor, scale = amax / 448{graph}"
    steps = (", smoothed" if candidate.smooth else "") + (", biases corrected" if candidate.bias_corrected else "")
    kept = f", the {candidate.kept_parts} most sensitive parts left in float" if candidate.kept_parts else ""
    if candidate.dynamic:
        return f"INT8 weights {channels}, activation ranges at run time{steps}{kept}{graph}"
    plain = "INT8 or UINT8" if candidate.target == "ort-openvino" else "UINT8"
    activations = "INT8" if candidate.signed_activations else plain
    scope = "every operator" if candidate.every_operator else "MatMul, Gemm and Conv"
    return (
        f"INT8 weights {channels}, {activations} activations by {candidate.range_method}, {scope}{steps}{kept}{graph}"
    )
