"""One look at a champion's traffic: drift, saturation, and agreement with the source, as figures with evidence."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.measure.activations import Ranges, open_tapped, view_samples
from tasks.measure.inventory import take_inventory
from tasks.measure.metrics.values import signal_and_noise
from tasks.measure.taps import find_taps, taps_of
from tasks.run.context import Run, log
from tasks.runtimes.runner import InRequests, open_runner
from tasks.trials.materials import prepared_product
from tasks.trials.measure_accuracy import EVALUATION_BATCH_SIZE, request_size
from tasks.watch.alarms import DRIFT_BY_CHANCE, DRIFT_STAKES, Signal, weigh, weigh_columns
from tasks.watch.subject import WatchedChampion
from validators.calibration.disjoint import compare_disjoint
from validators.calibration.evidence import see
from validators.calibration.model_view import ModelView
from validators.digests import digest_samples
from validators.errors import CandidateRefused, DataError
from validators.job.job_data import CalibrationBounds
from validators.job.job_watch import Watch
from validators.job.metric_facts import metric_facts
from validators.samples.datasets import Samples
from validators.samples.drift import count_in_bins, expect_psi_by_chance, find_signs, measure_psi
from validators.targets import facts_of_provider


@dataclass(frozen=True)
class LookFindings:
    """Findings of one look: the signals behind alarms, the figures of the trend by name, and notes on what was not measured."""

    signals: tuple[Signal, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def look_at_traffic(run: Run, watch: Watch, watched: WatchedChampion, traffic: Samples) -> LookFindings:
    """Measure everything possible of a champion on a sample of its traffic.

    A failed measurement becomes a note, and the others continue.
    """
    found = LookFindings(figures={"samples": len(traffic)}, notes=watched.notes)
    for measure in (_drift, _saturation, _disagreement):
        try:
            one = measure(run, watch, watched, traffic)
            found = LookFindings(found.signals + one.signals, found.figures | one.figures, found.notes + one.notes)
        except (CandidateRefused, DataError) as error:
            log.warning("watch: %s is not known: %s", measure.__name__[1:], error.found)
            found = replace(found, notes=(*found.notes, f"{measure.__name__[1:]} is not measured: {error.found}"))
    return found


def _drift(run: Run, _: Watch, watched: WatchedChampion, traffic: Samples) -> LookFindings:
    """Compare the traffic with the calibration data, by the source's own view of both."""
    calibration, bounds = watched.calibration, run.job.calibration
    if calibration is None:
        return LookFindings()
    view = None
    if bounds.model_samples:
        with open_tapped(
            watched.source.onnx_path,
            run.reference_session,
            lambda graph: find_taps(graph, watched.output.name, bounds.representation),
        ) as tapped:
            view = view_samples(
                tapped,
                calibration,
                traffic,
                most=bounds.model_samples,
                fixed_batch=watched.batch_axis,
                seed=run.job.seed,
            )
    signs, figures = find_drift(calibration, traffic, view, bounds, seed=run.job.seed)
    drifts = float(bool(signs))
    evidence = weigh(np.array([drifts]), DRIFT_BY_CHANCE, DRIFT_STAKES)
    signal = Signal("drift", drifts, DRIFT_BY_CHANCE, evidence, "; ".join(signs) or "no sign of drift")
    return LookFindings((signal,), figures | {"drift": drifts})


def find_drift(
    calibration: Samples, traffic: Samples, view: ModelView | None, bounds: CalibrationBounds, *, seed: int
) -> tuple[list[str], dict[str, float]]:
    """Return the signs that recent traffic drifted from the calibration samples, in words, and the figures behind them by name.

    The checks are those of step 3, without those of the data file; a sign is a finding that refuses calibration data there.
    The signs are: a statistic with both its population stability index and its Kolmogorov-Smirnov p-value beyond their bounds;
    discrepancy and p-value in the model's representation both beyond theirs; too few requests near a calibration sample there.
    `view` is the model's view of both, or None if the model did not run.

    Raises:
        DataError: an input of the traffic has a finite value in no sample.
    """
    # The champion's calibration samples exclude its evaluation data, which resembles the traffic.
    compared = compare_disjoint(calibration, traffic, digest_samples(traffic.inputs), bounds, seed, is_evaluation=True)
    signs: list[str] = []
    figures: dict[str, float] = {}
    for one in compared.comparisons:
        counts = count_in_bins(compared.statistics[one.statistic], one.edges)
        above_chance = measure_psi(counts, one.reference_counts) - expect_psi_by_chance(counts, one.reference_counts)
        figures["psi_max"] = max(figures.get("psi_max", 0.0), above_chance)
        figures["drift_p_value"] = min(figures.get("drift_p_value", 1.0), one.p_value)
        found = find_signs(
            counts, one.reference_counts, one.p_value, max_psi=bounds.max_psi, min_p_value=bounds.min_drift_p_value
        )
        if len(found) > 1:
            signs.append(f"{one.statistic}: PSI {above_chance:.2f} above chance, p-value {one.p_value:.2g}")
    seen = see(view, bounds, seed) if view else None
    if seen is None:
        return signs, figures
    likeness, share = seen.likeness, seen.cover.share
    figures |= {"mmd": likeness.mmd, "mmd_p_value": likeness.p_value, "embedding_coverage": share}
    if likeness.p_value < bounds.min_drift_p_value and likeness.mmd > bounds.max_mmd:
        signs.append(f"{seen.view.tensor}: squared discrepancy {likeness.mmd:.3g}, p-value {likeness.p_value:.2g}")
    if share < bounds.min_embedding_coverage:
        signs.append(f"{seen.view.tensor}: {share:.1%} of the requests have a calibration sample near them")
    return signs, figures


def _saturation(run: Run, watch: Watch, watched: WatchedChampion, traffic: Samples) -> LookFindings:
    """Measure how much of the traffic the champion's fixed ranges clip, beyond their clipping at its promotion."""
    if not watched.ranges:
        return LookFindings()
    prepared = run.store.make(prepared_product(run, watched.source, take_inventory(run.job.target)))[0]
    with open_tapped(
        prepared, run.reference_session, lambda graph: taps_of(graph, watched.output.name, watched.ranges)
    ) as tapped:
        names = [tap.tensor for tap in tapped.taps.watched]
        fixed = [watched.ranges[name] for name in names]
        ranges = Ranges(np.array([one.low for one in fixed]), np.array([one.high for one in fixed]))
        shares = tapped.shares_outside(traffic, watched.batch_axis, ranges)
    bounds = np.array([one.share_outside for one in fixed]) + watch.max_saturation
    # A range that clipped nearly everything at promotion cannot become measurably worse.
    judged = np.isfinite(shares).all(axis=0) & (bounds < 1)
    if not judged.any():
        return LookFindings(
            notes=("saturation is not measured: the champion fixes the range of no tensor of the source",)
        )
    return _judge_shares(
        shares[:, judged], bounds[judged], [name for name, kept in zip(names, judged, strict=True) if kept]
    )


def _judge_shares(shares: NDArray[np.float64], bounds: NDArray[np.float64], names: list[str]) -> LookFindings:
    means = shares.mean(axis=0)
    worst = int((means - bounds).argmax())
    note = f"{means[worst]:.2%} of the values of {names[worst]} lie outside its range"
    signal = Signal("saturation", float(means[worst]), float(bounds[worst]), weigh_columns(shares, bounds), note)
    figures = {"saturation_max": float(means.max()), "saturated_samples": float((shares > 0).any(axis=1).mean())}
    return LookFindings((signal,), figures)


def _disagreement(run: Run, watch: Watch, watched: WatchedChampion, traffic: Samples) -> LookFindings:
    """Measure how often the champion's answers differ from its source's."""
    variant = watched.variant
    if variant is None:
        return LookFindings()
    if facts_of_provider(variant.session.provider).builds_engines:
        return LookFindings(
            notes=("agreement is not measured: the champion is an engine, which the watch does not load",)
        )
    kind = metric_facts(run.job.metric).kind
    if kind == "boxes":
        return LookFindings(notes=(f"agreement is not measured: {run.job.metric} reads boxes, which have no order",))
    output = watched.output.name
    alike = []
    with (
        open_runner(watched.source.onnx_path, run.reference_session) as source,
        open_runner(variant.loaded, variant.session.without_spinning()) as champion,
    ):
        most = None if watched.batch_axis else request_size(run.job, variant)
        asked = InRequests(champion, most) if most else champion
        for batch in traffic.batches(watched.batch_axis or EVALUATION_BATCH_SIZE):
            answers = [runner.run(batch, [output])[0] for runner in (source, asked)]
            alike.append(
                _agreements(
                    answers[0],
                    answers[1],
                    of_classes=kind == "classes",
                    min_sqnr_db=watch.min_sample_sqnr_db,
                )
            )
    differ = ~np.concatenate(alike)
    share, bound = float(differ.mean()), 1 - watch.min_agreement
    note = f"{int(differ.sum())} of {len(differ)} samples get another answer than from the source"
    signal = Signal("disagreement", share, bound, weigh(differ.astype(np.float64), bound), note)
    return LookFindings((signal,), {"agreement": 1 - share})


def _agreements(
    source: NDArray[Any], variant: NDArray[Any], *, of_classes: bool, min_sqnr_db: float
) -> NDArray[np.bool_]:
    """Return whether the two models agree on each sample, bool `(n,)`, from outputs of shape `(n, ...)`.

    Class scores `(n, classes)` agree if the same class wins. Other floats agree if the sample's signal-to-noise ratio is at
    least `min_sqnr_db`: 10 log10 of the sum of the source's squares over the sum of squared differences. Other dtypes must be
    equal. Outputs of different shapes agree nowhere, and NaN never agrees.

    >>> _agreements(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[0.2, 0.9], [0.4, 0.6]]), of_classes=True, min_sqnr_db=0)
    array([ True, False])
    """
    n = len(source)
    if source.shape != variant.shape:
        return np.zeros(n, np.bool_)
    if source.dtype.kind != "f":
        return np.asarray((source == variant).reshape(n, -1).all(axis=1))
    if of_classes and source.ndim == 2 and source.shape[1] > 1:
        told = ~(np.isnan(source) | np.isnan(variant)).any(axis=1)
        return np.asarray(told & (source.argmax(axis=1) == variant.argmax(axis=1)))
    # A product instead of a quotient, so that zero noise needs no special case. Non-finite noise never agrees.
    signal, noise = signal_and_noise(variant, source).T
    return np.asarray(signal >= noise * 10 ** (min_sqnr_db / 10))
