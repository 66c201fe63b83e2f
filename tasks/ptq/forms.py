"""What the forms for every target share: how a recipe that has none is refused, and how changes are told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tasks.ptq.weight_only.matmul_nbits import WeightOnlyReport
from validators.errors import CandidateRefused


def refuse_any(target: str, wrong: Mapping[str, tuple[bool, str]]) -> None:
    """Refuse a recipe of which anything is so that the target has no form for: `{what: (is it so, what to take instead)}`.

    Raises:
        CandidateRefused: `unsupported`.
    """
    for found, (is_so, expected) in wrong.items():
        if is_so:
            raise CandidateRefused(
                kind="unsupported", found=f"{found} for {target}", expected=expected, fix="take another candidate"
            )


def count_reasons(what: str, reasons: Iterable[str]) -> dict[str, int]:
    """How many were left out of a form, by reason.

    >>> count_reasons("nodes left in float", ["no weight", "no weight", "bias"])
    {'nodes left in float: no weight': 2, 'nodes left in float: bias': 1}
    """
    return {f"{what}: {reason}": count for reason, count in Counter(reasons).items()}


def weight_changes(report: WeightOnlyReport, left: str) -> dict[str, int]:
    """What a pass over weights alone changed; `left` says what became of the others."""
    changes = {"embedding and head as one table in INT8": len(report.tied)} if report.tied else {}
    changes |= {"Gemm split into MatMul and Add": report.gemm_split, "MatMul in INT4": len(report.quantized)}
    changes |= count_reasons(left, (reason for _, reason in report.left))
    if report.factors_folded or report.factors_inserted:
        changes |= {"factors folded": report.factors_folded, "factors multiplied in": report.factors_inserted}
    return changes
