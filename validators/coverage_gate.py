"""Gates on what really ran: the share in low-precision kernels, and kernels that exist."""

from __future__ import annotations

from validators.job_gates import Gates
from validators.measurements import Coverage
from validators.recipe import decode
from validators.records import Variant
from validators.verdicts import Outcome, Verdict


def judge_coverage(candidate: str, coverage: Coverage, gates: Gates) -> Verdict | None:
    """The coverage gate: an INT8 file that runs float kernels fails it. Float candidates have nothing to cover.

    What ran in kernels of unknown precision may have been either: where that decides, the outcome is inconclusive.
    """
    if gates.min_coverage is None or decode(candidate).precision in ("fp32", "fp16"):
        return None
    floats = ", ".join(coverage.float_nodes[:5]) + (" ..." if len(coverage.float_nodes) > 5 else "")
    share, most = coverage.share, coverage.share + coverage.unknown
    outcome: Outcome = (
        "pass" if share >= gates.min_coverage else "inconclusive" if most >= gates.min_coverage else "fail"
    )
    hidden = f"; {coverage.unknown:.0%} in kernels that the provider does not name" if coverage.unknown else ""
    where = f"; in float: {floats}" if floats or not hidden else ""
    return Verdict(
        gate="coverage",
        outcome=outcome,
        value=share,
        bound=gates.min_coverage,
        direction="at_least",
        low=share if coverage.unknown else None,
        high=most if coverage.unknown else None,
        method="multiply-accumulates by kernel, from the runtime's profile",
        reason="" if outcome == "pass" else f"{share:.0%} of multiply-accumulates ran in low precision{hidden}{where}",
    )


def judge_simulation(variant: Variant) -> Verdict | None:
    """A simulated precision is never promoted: its speed here says nothing, and no kernel here runs it."""
    if not variant.is_simulated:
        return None
    return Verdict(
        gate="real_kernels",
        outcome="fail",
        value=0.0,
        bound=1.0,
        direction="at_least",
        reason="simulated: the target has no kernels for this precision",
    )
