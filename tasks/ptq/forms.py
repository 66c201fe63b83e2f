"""Shared code of the forms for all targets: counts of changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tasks.ptq.weight_only.sites import WeightOnlyReport


def count_reasons(what: str, reasons: Iterable[str]) -> dict[str, int]:
    """Count the reasons, each key prefixed with `what`.

    >>> count_reasons("nodes left in float", ["no weight", "no weight", "bias"])
    {'nodes left in float: no weight': 2, 'nodes left in float: bias': 1}
    """
    return {f"{what}: {reason}": count for reason, count in Counter(reasons).items()}


def weight_changes(report: WeightOnlyReport, left: str) -> dict[str, int]:
    """Count the changes of a weight-only pass; `left` prefixes the reasons of the nodes left out."""
    changes = {"embedding and head as one table in INT8": len(report.tied)} if report.tied else {}
    changes |= {f"embedding in INT{bits}": count for bits, count in Counter(report.looked_up.values()).items()}
    changes["Gemm split into MatMul and Add"] = report.gemm_split
    changes |= {f"MatMul in INT{bits}": count for bits, count in Counter(report.quantized.values()).items()}
    changes |= count_reasons(left, report.left.values())
    if report.factors_folded or report.factors_inserted:
        changes |= {"factors folded": report.factors_folded, "factors multiplied in": report.factors_inserted}
    return changes
