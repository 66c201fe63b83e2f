"""Coverage gates: the shares of multiply-accumulates and of time in low-precision kernels, and that such kernels exist.

Rules by precision and proof:

INT8, INT4, FP8    both shares in kernels of 8 bits or fewer; 4-bit or 8-bit weights count, since the kernel reads those
FP16, BF16         both shares in kernels of 16 bits or fewer: on a CPU ONNX Runtime silently casts a float16 file to float32
FP32               no coverage gate
any, on OpenVINO   nothing in 16 bits unless the candidate asks for bfloat16, which is the runtime's default
simulated          as its precision, plus `real_kernels`: without a kernel both fail, and nothing is promoted
aot-checked        as its precision, by the layers of the built engine; `real_kernels` is inconclusive
"""

from __future__ import annotations

from collections.abc import Sequence

from validators.job.candidate_name import HALF_PRECISIONS, decode
from validators.job.job_gates import Gates
from validators.records.measurements import Coverage, KernelTime
from validators.records.run import Variant
from validators.records.verdicts import Outcome, Verdict
from validators.samples.words import first_few
from validators.target_facts import TargetFacts
from validators.targets import facts_of_provider


def judge_coverage(candidate: str, coverage: Coverage, gates: Gates) -> Verdict | None:
    """Judge the share of multiply-accumulates in low-precision kernels; None for FP32 or if the gate is off.

    On OpenVINO what ran in 16 bits unasked fails, of FP32 too.

    An INT8 file that runs float kernels fails. If kernels of unknown precision could decide, the outcome is inconclusive.
    Operators for which the engine has no low-precision kernel do not count, unless there are no others; the verdict names them.
    """
    precision = decode(candidate).precision
    if gates.min_coverage is None:
        return None
    if coverage.half_nodes and _facts_of(coverage).rewrites and not decode(candidate).in_bf16:
        return _fail_unasked(coverage)
    if precision == "fp32":
        return None
    share = coverage.half_share if precision in HALF_PRECISIONS else coverage.share
    excluded = "" if precision in HALF_PRECISIONS or not 0 < coverage.possible < 1 else _name_excluded(coverage)
    if excluded:
        share = min(share / coverage.possible, 1.0)
    most = min(share + coverage.unknown / (coverage.possible if excluded else 1), 1.0)
    outcome: Outcome = (
        "pass" if share >= gates.min_coverage else "inconclusive" if most >= gates.min_coverage else "fail"
    )
    hidden = f"; {coverage.unknown:.0%} in kernels that the provider does not name" if coverage.unknown else ""
    ran = f"{share:.0%} of multiply-accumulates ran in {_bits(precision)}{hidden}"
    return Verdict(
        gate="coverage",
        outcome=outcome,
        value=share,
        bound=gates.min_coverage,
        direction="at_least",
        low=share if coverage.unknown else None,
        high=most if coverage.unknown else None,
        method=f"multiply-accumulates by kernel, from {_facts_of(coverage).coverage_source}{excluded}",
        reason="" if outcome == "pass" else ran + excluded + _told(precision, coverage),
    )


def _fail_unasked(coverage: Coverage) -> Verdict:
    unasked = coverage.half_share - coverage.share
    return Verdict(
        gate="coverage",
        outcome="fail",
        value=unasked,
        bound=0.0,
        direction="at_most",
        method=f"multiply-accumulates in 16 bits, from {_facts_of(coverage).coverage_source}",
        reason=f"{unasked:.0%} of multiply-accumulates ran in 16 bits unasked: {first_few(coverage.half_nodes)}",
    )


def _name_excluded(coverage: Coverage) -> str:
    nodes = [f"{node.name} ({node.kernel})" for node in coverage.nodes_without_form]
    return f"; without {1 - coverage.possible:.0%} in operators that have no low-precision kernel: {first_few(nodes)}"


def judge_time_coverage(candidate: str, coverage: Coverage, gates: Gates) -> Verdict | None:
    """Judge the share of the time of all kernels; inconclusive if the runtime reports no times. Off unless a job sets it."""
    precision = decode(candidate).precision
    if gates.min_time_coverage is None or precision == "fp32":
        return None
    share = coverage.half_time_share if precision in HALF_PRECISIONS else coverage.time_share
    outcome: Outcome = "inconclusive" if share is None else "pass" if share >= gates.min_time_coverage else "fail"
    ran = "the runtime reports no times" if share is None else f"{share:.0%} of kernel time was in {_bits(precision)}"
    return Verdict(
        gate="time_coverage",
        outcome=outcome,
        value=share,
        bound=gates.min_time_coverage,
        direction="at_least",
        method=f"median time by kernel, from {_facts_of(coverage).coverage_source}",
        reason="" if outcome == "pass" else ran + _told(precision, coverage),
    )


def judge_simulation(variant: Variant) -> Verdict | None:
    """Judge the gate `real_kernels`: never pass a variant that did not run on its target. None for a measured variant.

    A simulated precision has no kernel on the target. An engine that was only built ahead of time has no known answers and
    no known latency.
    """
    if variant.proof == "measured":
        return None
    is_simulated = variant.proof == "simulated"
    return Verdict(
        gate="real_kernels",
        outcome="fail" if is_simulated else "inconclusive",
        value=0.0,
        bound=1.0,
        direction="at_least",
        reason="simulated: the target has no kernels for this precision"
        if is_simulated
        else "aot-checked: the engine was built and inspected, but never run; a worker with the GPU can measure it",
    )


def name_kernels(kernels: Sequence[KernelTime]) -> str:
    """Name the slowest kernels, and say how many more there are.

    >>> name_kernels([KernelTime(name, "Cast", "CPUExecutionProvider", 1.0) for name in "abcdefg"])
    'a, b, c, d, e and 2 more'
    """
    longest = sorted(kernels, key=lambda kernel: -kernel.microseconds)
    return first_few([kernel.name for kernel in longest])


def _facts_of(coverage: Coverage) -> TargetFacts:
    """Return the facts of the provider that ran all kernels; those of none if there were several."""
    return facts_of_provider(coverage.providers[0] if len(coverage.providers) == 1 else "")


def _told(precision: str, coverage: Coverage) -> str:
    """Name a few of the kernels that ran in float, on another provider, unfused, or inserted by the runtime."""
    back = coverage.float_nodes if precision in HALF_PRECISIONS else (*coverage.float_nodes, *coverage.half_nodes)
    elsewhere = sorted(kernel for kernel in coverage.macs_by_kernel if " on " in kernel)
    parts = []
    if not coverage.possible:
        parts.append("the engine has no low-precision kernel for any of its products")
    if back:
        parts.append(f"in float: {first_few(back)}")
    if elsewhere:
        parts.append(f"by another provider: {first_few(elsewhere)}")
    if coverage.unfused:
        took = f"{coverage.unfused_time:.0%} of the time"
        parts.append(f"{len(coverage.unfused)} Q/DQ not fused, {took}: {name_kernels(coverage.unfused)}")
    if coverage.inserted:
        kinds = ", ".join(f"{count} {kind}" for kind, count in coverage.inserted_counts.items())
        took = f"{coverage.inserted_time:.0%} of the time"
        parts.append(f"inserted {kinds}, {took}: {name_kernels(coverage.inserted)}")
    return "".join(f"; {part}" for part in parts)


def _bits(precision: str) -> str:
    return "16 bits or fewer" if precision in HALF_PRECISIONS else "low precision"
