"""Samples that a variant made worse, and how far its outputs moved: what engineers ask for first after a failure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.measure.metrics.drops import row_losses
from tasks.measure.metrics.reduction import answers_of
from tasks.reporting.tables import Column, ReportTable
from tasks.run.loaded_run import LoadedRun
from tasks.run.user_functions import job_metric
from validators.plain_text import figure
from validators.records.measurements import Accuracy
from validators.records.run import Trial

SHOWN = 10
# Longest label shown, in characters.
_LABEL = 40


@dataclass(frozen=True)
class Changes:
    """Effects of a variant on samples: the table of those that became worse, and each one's ratio of signal to noise in dB."""

    worst: ReportTable
    sqnr_db: NDArray[np.float64]


def changes_of(run: LoadedRun, baseline: Accuracy | None, trials: Iterable[Trial]) -> dict[str, Changes]:
    """Return the effects of each variant on the samples that choose; empty for a metric whose rows span several samples."""
    if baseline is None or baseline.samples_a_row != 1:
        return {}
    chosen = np.flatnonzero(~run.evidence.confirmation)
    return {
        trial.candidate: Changes(
            worst_samples(run, baseline, trial.accuracy, chosen), sqnr_of_samples(trial.accuracy, chosen)
        )
        for trial in trials
        if trial.accuracy
    }


def sqnr_of_samples(accuracy: Accuracy, chosen: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return 10 log10(signal / noise) of each chosen sample, infinite without noise; empty where it was not measured."""
    if accuracy.noise_path is None:
        return np.empty(0)
    signal, noise = np.load(accuracy.noise_path)[chosen].T
    with np.errstate(divide="ignore", invalid="ignore"):
        found: NDArray[np.float64] = 10 * np.log10(signal / noise)
    return found


def worst_samples(run: LoadedRun, baseline: Accuracy, accuracy: Accuracy, chosen: NDArray[np.intp]) -> ReportTable:
    """Return the table of samples that became worse, by loss and then by noise; rows are numbered as in the data, from 0."""
    samples, metric = run.evidence.evaluation, job_metric(run.job)
    before, after = (row_losses(metric, np.load(one.scores_path)) for one in (baseline, accuracy))
    if before is None or after is None:
        return ReportTable("flips", "", (), ())
    lost = chosen[after[chosen] > before[chosen]]
    sqnr = np.full(len(samples), np.nan)
    if accuracy.noise_path is not None:
        sqnr[chosen] = sqnr_of_samples(accuracy, chosen)
    order = lost[np.lexsort((sqnr[lost], (before - after)[lost]))][:SHOWN]
    answers = answers_of(baseline), answers_of(accuracy)
    columns, rows = [Column("Sample", "name")], [[str(row)] for row in order]

    def add(heading: str, look: str, texts: Iterable[str]) -> None:
        columns.append(Column(heading, look))
        for cells, text in zip(rows, texts, strict=True):
            cells.append(text)

    if samples.labels is not None and samples.labels.ndim == 1:
        add("Label", "text", (str(samples.labels[row])[:_LABEL] for row in order))
    if answers[0] is not None and answers[1] is not None:
        add("Source says", "text", (str(answers[0][row]) for row in order))
        add("Variant says", "text", (str(answers[1][row]) for row in order))
    else:
        add("Loss of the source", "number", (figure(float(before[row])) for row in order))
        add("Loss of the variant", "number", (figure(float(after[row])) for row in order))
    if accuracy.noise_path is not None:
        add("SQNR dB", "number", (f"{sqnr[row]:.1f}" for row in order))
    return ReportTable("flips", "samples that became worse", columns, rows)
