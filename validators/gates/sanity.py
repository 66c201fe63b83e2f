"""Sanity gates that accuracy does not cover: output signature, varying answers, determinism, finite values."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from functools import partial

from validators.gates.verdict_rules import judge_exact
from validators.records.measurements import Answers, Sanity
from validators.records.verdicts import Verdict
from validators.samples.words import count, name_rows

# Three runs estimate a spread only within a factor of two.
SPREAD_SLACK = 2.0
Pair = tuple[Answers, Answers]
Shape = tuple[int | None, ...]


def judge_sanity(sanity: Sanity, waver: float = 0.0, judged_boxes: Container[str] = ()) -> tuple[Verdict, ...]:
    """Judge all outputs by four gates: `same_outputs`, `not_constant`, `deterministic`, `finite_outputs`.

    A variant may differ from run to run by `waver` of its largest value, and by as much as the baseline does. Sizes that depend
    on values may be others than the baseline's, and so may all sizes of `judged_boxes`, outputs whose boxes the metric counts.

    The value of each verdict is the number of faults. Only `same_outputs` reports a missing output; the other gates skip it.
    """
    theirs = {answers.name: answers for answers in sanity.baseline}
    both = [(theirs[answers.name], answers) for answers in sanity.variant if answers.name in theirs]
    batch = f"{count(sanity.samples, 'sample')}, {count(sanity.runs, 'run')}"
    other = _other_outputs(sanity, judged_boxes)
    return (
        _verdict("same_outputs", other, "names, dtypes and shapes of all outputs", sanity),
        _verdict("not_constant", _faults(both, _constant), f"different answers to {batch.split(',')[0]}", sanity),
        _verdict(
            "deterministic", _faults(both, partial(_unsteady, waver=waver)), f"the same batch again: {batch}", sanity
        ),
        _verdict("finite_outputs", _faults(both, _not_finite), f"NaN and Inf in {batch}", sanity),
    )


def judge_finite(bad_samples: int, n: int) -> Verdict:
    """Fail if any of `n` samples has NaN or Inf in the judged output where the baseline's is finite."""
    fault = f"NaN or Inf on {bad_samples} samples where the baseline is finite"
    return judge_exact("finite", float(bad_samples), 0.0, fault, n=n)


def _verdict(gate: str, faults: list[str], method: str, sanity: Sanity) -> Verdict:
    return judge_exact(gate, float(len(faults)), 0.0, "; ".join(faults), method=method, n=sanity.samples)


def _faults(both: Iterable[Pair], fault: Callable[[Answers, Answers], str]) -> list[str]:
    return [f"output {variant.name!r} {told}" for baseline, variant in both if (told := fault(baseline, variant))]


def _other_outputs(sanity: Sanity, judged_boxes: Container[str]) -> list[str]:
    theirs, ours = ({answers.name: answers for answers in side} for side in (sanity.baseline, sanity.variant))
    faults = [f"output {name!r} is missing" for name in theirs if name not in ours]
    faults += [f"output {name!r} is not the baseline's" for name in ours if name not in theirs]
    if not faults and list(theirs) != list(ours):
        faults.append(f"outputs in the order {', '.join(ours)}, the baseline's is {', '.join(theirs)}")
    for name in theirs.keys() & ours.keys():
        was, now = theirs[name], ours[name]
        if was.dtype != now.dtype:
            faults.append(f"output {name!r} has dtype {now.dtype}, the baseline's has {was.dtype}")
        if not _is_same_shape(was.shape, now.shape, of_any_size=name in judged_boxes):
            told = [str(shape).replace("None", "any") for shape in (now.shape, was.shape)]
            faults.append(f"output {name!r} has shape {told[0]}, the baseline's has {told[1]}")
    return faults


def _is_same_shape(was: Shape | None, now: Shape | None, *, of_any_size: bool) -> bool:
    if was is None or now is None or len(was) != len(now):
        return was == now
    return of_any_size or all(before in (None, after) for before, after in zip(was, now, strict=True))


def _has_samples(baseline: Answers) -> bool:
    """Return False if the number of rows depends on values: it equals the number of samples by chance alone."""
    return not baseline.shape or baseline.shape[0] is not None


def _constant(baseline: Answers, variant: Answers) -> str:
    is_new = variant.is_constant and not baseline.is_constant and _has_samples(baseline)
    return "gives every sample the same answer" if is_new else ""


def _unsteady(baseline: Answers, variant: Answers, waver: float) -> str:
    # Integers, such as classes, have no rounding.
    allowed = waver * variant.peak if "float" in variant.dtype else 0.0
    if variant.spread <= max(SPREAD_SLACK * baseline.spread, allowed):
        return ""
    beside = f", the baseline's by {baseline.spread:.3g}" if baseline.spread else ""
    beside += f"; {allowed:.3g} is rounding" if allowed else ""
    return f"differs from run to run by {variant.spread:.3g}{beside}"


def _not_finite(baseline: Answers, variant: Answers) -> str:
    if not _has_samples(baseline):
        is_new = variant.bad_samples and not baseline.bad_samples
        return "has NaN or Inf where the baseline is finite" if is_new else ""
    new = sorted(set(variant.bad_samples) - set(baseline.bad_samples))
    return f"has NaN or Inf on {name_rows(new)} where the baseline is finite" if new else ""
