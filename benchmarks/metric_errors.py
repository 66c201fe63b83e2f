"""How often a variant that loses exactly the tolerance passes, by simulation, for the metrics of one task each.

    python benchmarks/metric_errors.py

Each kind is a population with a known drop, the tolerance of its experiments: rows of many samples, of which an experiment
draws n with replacement. Embeddings are drawn anew, since a score depends on all samples. All by the functions that a run
is judged with.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer
from figures import earlier, print_rows, save, share
from metric_errors_draws import (
    Drawn,
    binary,
    boxes,
    classes,
    embeddings,
    maps,
    masks,
    metric_of,
    multilabel,
    rows_of,
    texts,
    tokens,
)

from tasks.measure.metrics.drops import estimate_drop
from tasks.measure.metrics.metric import Metric
from validators.gates.accuracy import judge_drop
from validators.job.job_gates import Gates
from validators.records.measurements import Estimate

CONFIDENCE, SAMPLES = 0.95, (200, 500, 2000)
POPULATION = 200_000

app = typer.Typer(add_completion=False, help=__doc__)


@dataclass(frozen=True)
class MetricKind:
    """A metric with the population that it is simulated on; `grouped` kinds are drawn anew, in clusters of their labels."""

    name: str
    metric: Metric
    draw: Callable[[np.random.Generator, int], Drawn]
    population: int = POPULATION
    grouped: bool = False


# Share of the experiments for each of `SAMPLES`.
SHARES = (1.0, 1.0, 0.5)
KINDS = (
    MetricKind("token_accuracy", metric_of("token_accuracy"), tokens, 50_000),
    MetricKind("pixel_accuracy", metric_of("pixel_accuracy"), maps, 50_000),
    MetricKind("iou", metric_of("iou"), maps, 50_000),
    MetricKind("dice", metric_of("dice"), maps, 50_000),
    MetricKind("iou of a mask", metric_of("iou"), masks, 50_000),
    MetricKind("pr_auc, 20 % positive", metric_of("pr_auc"), binary(0.2, 1.5, 0.35)),
    MetricKind("pr_auc, 5 % positive", metric_of("pr_auc"), binary(0.05, 2.0, 0.3)),
    MetricKind("f1_multilabel", metric_of("f1_multilabel"), multilabel),
    MetricKind("f1_multilabel_micro", metric_of("f1_multilabel_micro"), multilabel),
    MetricKind("log_loss", metric_of("log_loss", scores="logits"), classes(1.0, 0.35)),
    MetricKind("ece, overconfident", metric_of("ece", scores="logits"), classes(1.6, 0.0, 1.12)),
    MetricKind("ece, overconfident, noise", metric_of("ece", scores="logits"), classes(1.6, 0.7)),
    MetricKind("ece, calibrated", metric_of("ece", scores="logits"), classes(1.0, 0.0, 1.12)),
    MetricKind("ece, calibrated, noise", metric_of("ece", scores="logits"), classes(1.0, 0.5)),
    MetricKind("recall_at_k, pairs", metric_of("recall_at_k", k=1), embeddings(2, 0.2), 0, True),
    MetricKind("recall_at_k, fours", metric_of("recall_at_k", k=4), embeddings(4, 0.2), 0, True),
    MetricKind("ndcg", metric_of("ndcg", k=10), embeddings(4, 0.2), 0, True),
    MetricKind("mrr", metric_of("mrr"), embeddings(4, 0.2), 0, True),
    MetricKind("exact_match", metric_of("exact_match"), texts(0.12), 20_000),
    MetricKind("bleu", metric_of("bleu"), texts(0.12), 20_000),
    MetricKind("rouge", metric_of("rouge"), texts(0.12), 20_000),
    MetricKind("map50", metric_of("map50"), boxes, 20_000),
    MetricKind("map", metric_of("map"), boxes, 20_000),
    # Noise that costs 2 points of recall.
    MetricKind("recall_binary", metric_of("recall_binary"), binary(0.5, 1.5, 0.465)),
)


@app.command()
def run(
    experiments: Annotated[int, typer.Option(help="simulated experiments a cell")] = 2000,
    seed: Annotated[int, typer.Option(help="seed of the first cell")] = 1,
    only: Annotated[str, typer.Option(help="kinds whose name starts with this")] = "",
    name: Annotated[str, typer.Option(help="name of the results")] = "metric_errors",
) -> None:
    """Simulate all kinds, and write `benchmarks/results/metric_errors.json`; kinds that are in the file already stay."""
    cells = earlier(name).get("cells", [])
    for number, kind in enumerate(KINDS):
        if not kind.name.startswith(only) or any(cell["kind"] == kind.name for cell in cells):
            continue
        cells += _cells(kind, seed + 1000 * number, experiments)
        figures = {"experiments": experiments, "seed": seed, "confidence": CONFIDENCE, "cells": cells}
        save(name, figures, quiet=True)
    print_rows(cells)


def _cells(kind: MetricKind, seed: int, experiments: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    before, after = rows_of(kind.metric, kind.draw(rng, kind.population)) if kind.population else (None, None)
    found = []
    for n, part in zip(SAMPLES, SHARES, strict=True):
        start, count = time.perf_counter(), round(experiments * part)
        drops = []
        for _ in range(count):
            if before is None or after is None:
                drawn = kind.draw(rng, n)
                rows, clusters = rows_of(kind.metric, drawn), drawn[0]
            else:
                chosen = rng.integers(0, len(before), n)
                rows, clusters = (before[chosen], after[chosen]), None
            drops.append(estimate_drop(kind.metric, *rows, CONFIDENCE, seed=0, clusters=clusters))
        # Of embeddings drawn anew, the mean drop is the truth to a few hundredths of its spread.
        truth = (
            float(np.mean([drop.value for drop, _ in drops]))
            if before is None or after is None
            else (1 if kind.metric.higher_is_better else -1) * (kind.metric.value(before) - kind.metric.value(after))
        )
        found.append(_cell(kind, n, truth, drops, time.perf_counter() - start))
        print_rows(found[-1:])
    return found


def _cell(kind: MetricKind, n: int, truth: float, drops: list[tuple[Estimate, str]], seconds: float) -> dict[str, Any]:
    outcomes = {
        ratio: [
            judge_drop(drop, Gates(max_drop=ratio * truth, confidence=CONFIDENCE), n=n, method=method).outcome
            for drop, method in drops
        ]
        for ratio in (1.0, 2.0, 4.0)
    }
    return {
        "kind": kind.name,
        "metric": kind.metric.name,
        "n": n,
        "experiments": len(drops),
        "drop": truth,
        "mean_estimate": float(np.mean([drop.value for drop, _ in drops])),
        "pass_at_tolerance": share(outcomes[1.0].count("pass"), len(drops)),
        "averages_pass_at_tolerance": share(sum(drop.value <= truth for drop, _ in drops), len(drops)),
        "fail_at_tolerance": share(outcomes[1.0].count("fail"), len(drops)),
        "pass_at_half_the_tolerance": share(outcomes[2.0].count("pass"), len(drops)),
        "pass_at_a_quarter": share(outcomes[4.0].count("pass"), len(drops)),
        "seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    app()
