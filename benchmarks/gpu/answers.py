"""What a variant answers and which kernels ran."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu.bundle import Bundle
from tasks.measure.metrics.classification import ACCURACY
from tasks.measure.metrics.metric import Metric
from tasks.measure.metrics.perplexity import PERPLEXITY, score_batches
from tasks.runtimes.coverage import measure_coverage
from tasks.runtimes.ort import failures_refused
from tasks.runtimes.runner import open_runner
from validators.records.measurements import Coverage
from validators.records.run import SessionSettings, Variant
from validators.samples.datasets import TensorSpec
from validators.target_facts import TENSORRT

METRICS: dict[str, Metric] = {"accuracy": ACCURACY, "perplexity": PERPLEXITY}


@dataclass(frozen=True)
class Inspected:
    """The metric's rows float64 `(n, k)`, its value, and the coverage."""

    rows: NDArray[np.float64]
    value: float
    coverage: Coverage


def inspect(variant: Variant, bundle: Bundle, batch_size: int) -> Inspected:
    """Coverage of a request of that size, and the metric on all evaluation samples.

    Raises:
        CandidateRefused: the runtime does not load or run the variant, or something else would.
    """
    coverage = coverage_of(variant, bundle.request(batch_size))
    rows, value = rows_of(variant.loaded, variant.session, bundle)
    return Inspected(rows, value, coverage)


def rows_of(model: Path, settings: SessionSettings, bundle: Bundle) -> tuple[NDArray[np.float64], float]:
    """The rows of the bundle's metric, and its value."""
    notes = bundle.notes
    with open_runner(model, settings) as runner, failures_refused():
        output = next(spec for spec in runner.outputs if spec.name == notes.output)
        batches = bundle.evaluation.batches(notes.evaluation_batch)
        return rows_from((runner.run(batch, [notes.output])[0] for batch in batches), bundle, output)


def rows_from(outputs: Iterable[NDArray[Any]], bundle: Bundle, output: TensorSpec) -> tuple[NDArray[np.float64], float]:
    """The rows of the bundle's metric from the outputs on its evaluation samples, batch by batch, and its value."""
    metric, samples = METRICS[bundle.notes.metric], bundle.evaluation
    scored = score_batches(outputs, samples, output) if metric is PERPLEXITY else np.concatenate(list(outputs))
    rows = metric.rows(scored, samples.labels, None)
    return rows, metric.value(rows)


def coverage_of(variant: Variant, batch: dict[str, NDArray[Any]]) -> Coverage:
    """The kernels that ran; of an engine, its layers as the runtime tells them."""
    if variant.session.provider != TENSORRT or variant.engine is None:
        return measure_coverage(variant.path, variant.session, batch)
    from tasks.engines.tensorrt.coverage import coverage_of_layers
    from tasks.engines.tensorrt.layers import parse_layers_json, with_times
    from tasks.engines.tensorrt.runner import inspect_engine

    text, times = inspect_engine(variant.engine.path, batch)
    return coverage_of_layers(variant.path, with_times(parse_layers_json(text), times), batch)
