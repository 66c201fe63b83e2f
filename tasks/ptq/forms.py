"""Shared code of the forms for all targets: counts of changes, and rounded weights that are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

from tasks.ptq.weight_only.sites import WeightOnlyReport

# Returns the arrays of a rounded weight by a key, JSON-like values that tell weights and settings of one float graph apart:
# those of an earlier call, so that a pass that was cut off goes on, or those that the function makes now.
Remember = Callable[[tuple[Any, ...], Callable[[], Sequence[NDArray[Any]]]], Sequence[NDArray[Any]]]


def make_now(_key: tuple[Any, ...], make: Callable[[], Sequence[NDArray[Any]]]) -> Sequence[NDArray[Any]]:
    """Return the arrays of a rounded weight that is not kept."""
    return make()


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
