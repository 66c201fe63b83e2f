"""Custom expectations: drift of a column, the share of each label, and a model's view of the samples, with charts.

Importing this module imports Great Expectations (4 s): import it inside the function that needs it.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import asdict
from html import escape
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from validators.calibration.charts import draw_bars, draw_shares
from validators.calibration.label_coverage import find_short_labels
from validators.calibration.representation import RADIUS_QUANTILE, covered_share
from validators.samples.drift import count_in_bins, expect_psi_by_chance, find_edges, find_signs, measure_psi
from validators.samples.words import percent

_show_warning = warnings.showwarning
with warnings.catch_warnings():
    # Great Expectations imports sre_constants and sre_parse, deprecated since Python 3.11, for one annotation.
    warnings.filterwarnings("ignore", r"module 'sre_\w+' is deprecated", DeprecationWarning)
    from great_expectations.execution_engine.pandas_execution_engine import PandasExecutionEngine
    from great_expectations.expectations.expectation import BatchExpectation, ColumnAggregateExpectation
    from great_expectations.expectations.metrics.column_aggregate_metric_provider import (
        ColumnAggregateMetricProvider,
        column_aggregate_value,
    )
    from great_expectations.render.components import LegacyDiagnosticRendererType, RenderedGraphContent
    from great_expectations.render.renderer.renderer import renderer

    # The import also redirects every later warning of the process to logging, where nobody would see it.
    if warnings.showwarning is not _show_warning:
        logging.captureWarnings(False)

SHOWN_TENSORS = 10


class ColumnCountsInBins(ColumnAggregateMetricProvider):
    """Metric that counts the values of a column between given edges."""

    metric_name = "column.counts_in_bins"
    value_keys = ("edges",)

    @column_aggregate_value(engine=PandasExecutionEngine)
    def _pandas(cls, column: pd.Series[float], edges: list[float], **_: Any) -> list[int]:  # noqa: N805  # the decorator makes it a class method
        return list(count_in_bins(np.asarray(column, dtype=np.float64), edges))


class _Charted:
    """Part of an expectation that shows a chart behind its observed value."""

    @staticmethod
    def _chart(asked: dict[str, Any], found: dict[str, Any]) -> Any:
        """Return the chart, or None, for the arguments of the expectation and the details of its result."""

    @classmethod
    @renderer(renderer_type=LegacyDiagnosticRendererType.OBSERVED_VALUE)
    def _diagnostic_observed_value_renderer(cls, *_: Any, result: Any = None, **__: Any) -> Any:
        text = BatchExpectation._get_observed_value_from_evr(result=result)
        details = result.result.get("details") if result else None
        chart = cls._chart(result.expectation_config.kwargs, details) if details else None
        if not chart:
            return text
        styling = {"classes": ["col-12", "p-0"]}
        return [text, RenderedGraphContent(content_block_type="graph", graph=chart, styling=styling)]


class ExpectColumnToFollowReference(_Charted, ColumnAggregateExpectation):
    """Expectation of at most `max_signs` of two drift signs between a column and a reference, given by its binned counts.

    The caller computes `p_value`: its correction needs the p-values of all columns, and an expectation sees only one.
    """

    edges: list[float]
    reference_counts: list[int]
    p_value: float
    max_psi: float
    min_p_value: float
    max_signs: int

    metric_dependencies: ClassVar[tuple[str, ...]] = ("column.counts_in_bins",)
    # Of the fields, the only one that a metric takes.
    success_keys: ClassVar[tuple[str, ...]] = ("edges",)

    def _validate(self, metrics: dict[str, Any], *_: Any, **__: Any) -> Any:
        counts = metrics["column.counts_in_bins"]
        psi, by_chance = measure_psi(counts, self.reference_counts), expect_psi_by_chance(counts, self.reference_counts)
        signs = find_signs(
            counts, self.reference_counts, self.p_value, max_psi=self.max_psi, min_p_value=self.min_p_value
        )
        # The page accepts plain Python numbers only, not numpy's.
        details = {
            "psi": psi,
            "psi_by_chance": by_chance,
            "p_value": self.p_value,
            "signs": list(signs),
            "counts": counts,
        }
        observed = f"PSI {psi:.3f} ({by_chance:.3f} by chance), corrected KS p-value {self.p_value:.3g}"
        return _judged(len(signs) <= self.max_signs, observed, details)

    @staticmethod
    def _chart(asked: dict[str, Any], found: dict[str, Any]) -> Any:
        # A column has two rows, which allow one sign and none. The chart is drawn once: in the first row that failed, since the
        # page can hide successes, or else in the first row.
        if asked["max_signs"] != (0 if len(found["signs"]) == 1 else 1):
            return None
        return draw_shares(asked["edges"], found["counts"], asked["reference_counts"])


class ExpectColumnToCoverLabels(ColumnAggregateExpectation):
    """Expectation that each label occurs with at least `min_share` times its share of the reference counts."""

    labels: list[int | str]
    reference_counts: list[int]
    min_share: float

    metric_dependencies: ClassVar[tuple[str, ...]] = ("column.value_counts",)

    def _validate(self, metrics: dict[str, Any], *_: Any, **__: Any) -> Any:
        found = metrics["column.value_counts"]
        counts = {label if isinstance(label, str) else int(label): int(count) for label, count in found.items()}
        reference = dict(zip(self.labels, self.reference_counts, strict=True))
        short = find_short_labels(counts, reference, self.min_share)
        missing = "; ".join(f"{escape(str(s.label))}: {s.count}, needs {s.needed}" for s in short[:20])
        observed = f"{len(counts)} values; {missing or 'none too rare'}"
        return _judged(not short, observed, {"short": [asdict(label) for label in short]})


class ColumnNumbers(ColumnAggregateMetricProvider):
    """Metric that returns the finite numbers of a column."""

    metric_name = "column.numbers"

    @column_aggregate_value(engine=PandasExecutionEngine)
    def _pandas(cls, column: pd.Series[float], **_: Any) -> list[float]:  # noqa: N805  # the decorator makes it a class method
        return [float(value) for value in column if np.isfinite(value)]


class ExpectRepresentationToFollowReference(_Charted, ColumnAggregateExpectation):
    """Expectation that the p-value is at least its bound, or the squared maximum mean discrepancy at most its own.

    The column holds coordinates along the first component, used for the chart only (if `drawn`). The caller runs the test, over
    all dimensions.
    """

    reference_values: list[float]
    mmd: float
    p_value: float
    max_mmd: float
    min_p_value: float
    drawn: bool

    metric_dependencies: ClassVar[tuple[str, ...]] = ("column.numbers",)

    def _validate(self, metrics: dict[str, Any], *_: Any, **__: Any) -> Any:
        observed = f"squared discrepancy {self.mmd:.4g}, p-value {self.p_value:.3g}"
        details = _compare(metrics["column.numbers"], self.reference_values)
        return _judged(self.p_value >= self.min_p_value or self.mmd <= self.max_mmd, observed, details)

    @staticmethod
    def _chart(asked: dict[str, Any], found: dict[str, Any]) -> Any:
        return _draw(found, "place along the first component") if asked["drawn"] else None


class ExpectColumnToCoverReference(_Charted, ColumnAggregateExpectation):
    """Expectation that at least `min_share` of the reference distances are within the radius of the column's distances."""

    reference_distances: list[float]
    min_share: float

    metric_dependencies: ClassVar[tuple[str, ...]] = ("column.numbers",)

    def _validate(self, metrics: dict[str, Any], *_: Any, **__: Any) -> Any:
        among = metrics["column.numbers"]
        share = covered_share(np.array(among), np.array(self.reference_distances))
        radius = float(np.quantile(among, RADIUS_QUANTILE))
        observed = f"{share:.1%} of the reference within the radius {radius:.4g}"
        return _judged(share >= self.min_share, observed, {"share": share, **_compare(among, self.reference_distances)})

    @staticmethod
    def _chart(_: dict[str, Any], found: dict[str, Any]) -> Any:
        return _draw(found, "distance to the nearest calibration sample")


class ExpectRangesToHold(_Charted, BatchExpectation):
    """Expectation that no tensor has a share above `max_share` outside its calibrated range."""

    tensors: list[str]
    shares: list[float]
    max_share: float
    what: str

    metric_dependencies: ClassVar[tuple[str, ...]] = ("table.row_count",)

    def _validate(self, *_: Any, **__: Any) -> Any:
        largest = max(self.shares, default=0.0)
        order = sorted(range(len(self.shares)), key=lambda place: -self.shares[place])[:SHOWN_TENSORS]
        where = f", in {self.tensors[order[0]]}" if largest > 0 else ""
        details = {
            "tensors": [self.tensors[place] for place in order],
            "shares": [self.shares[place] for place in order],
        }
        return _judged(largest <= self.max_share, f"at most {percent(largest)} of the {self.what}{where}", details)

    @staticmethod
    def _chart(asked: dict[str, Any], found: dict[str, Any]) -> Any:
        if not found["tensors"]:
            return None
        return draw_bars(found["tensors"], found["shares"], f"% of {asked['what']} outside the range")


def _judged(success: bool, observed: str, details: dict[str, Any]) -> dict[str, Any]:
    return {"success": success, "result": {"observed_value": observed, "details": details}}


def _compare(values: list[float], reference: list[float]) -> dict[str, Any]:
    edges = find_edges(np.array(reference))
    return {
        "edges": list(edges),
        "counts": list(count_in_bins(np.array(values), edges)),
        "reference_counts": list(count_in_bins(np.array(reference), edges)),
    }


def _draw(found: dict[str, Any], title: str) -> Any:
    return draw_shares(found["edges"], found["counts"], found["reference_counts"], title)
