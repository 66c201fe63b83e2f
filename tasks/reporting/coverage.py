"""Facts about the kernels that ran, for a candidate's details."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.reporting import formats
from validators.gates.coverage import name_kernels
from validators.records.measurements import Coverage

SHOWN_NODES = 8


def coverage_facts(coverage: Coverage) -> tuple[tuple[str, str], ...]:
    """Return labelled facts: nodes in float, the share of time in low precision, unfused Q/DQ, inserted kernels.

    >>> found = Coverage({"QGemm": 8, "Gemm": 2}, ("QGemm",), ("head",), (), us_by_kernel={"QGemm": 3.0, "Gemm": 1.0})
    >>> coverage_facts(found)
    (('in float, largest first', 'head'), ('kernel time in low precision', '75.0 %'))
    """
    facts = [("in float, largest first", _nodes(coverage.float_nodes)), ("in 16 bits", _nodes(coverage.half_nodes))]
    if coverage.time_share is not None:
        facts.append(("kernel time in low precision", f"{formats.percent(coverage.time_share)} %"))
        facts.append(("Q/DQ not fused", _kernels(name_kernels(coverage.unfused), coverage.unfused_time)))
        kinds = ", ".join(f"{count} {kind}" for kind, count in coverage.inserted_counts.items())
        named = f"{kinds}: {name_kernels(coverage.inserted)}" if kinds else ""
        facts.append(("inserted beside the baseline", _kernels(named, coverage.inserted_time)))
    return tuple(fact for fact in facts if fact[1])


def _nodes(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_NODES} more" if len(names) > SHOWN_NODES else ""
    return ", ".join(names[:SHOWN_NODES]) + more


def _kernels(named: str, share: float | None) -> str:
    return f"{named}; {formats.percent(share)} % of kernel time" if named else ""
