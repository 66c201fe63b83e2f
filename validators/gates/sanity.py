"""Sanity gates that accuracy does not cover: output signature, varying answers, determinism, finite values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from validators.records.measurements import Answers, Sanity
from validators.records.verdicts import Verdict
from validators.samples.words import count, name_rows

# Three runs estimate a spread only within a factor of two.
SPREAD_SLACK = 2.0
Pair = tuple[Answers, Answers]


def judge_sanity(sanity: Sanity, waver: float = 0.0) -> tuple[Verdict, ...]:
    """Judge all outputs by four gates: `same_outputs`, `not_constant`, `deterministic`, `finite_outputs`.

    A variant may differ from run to run by `waver` of its largest value, and by as much as the baseline does.

    The value of each verdict is the number of faults. Only `same_outputs` reports a missing output; the other gates skip it.
    """
    theirs = {answers.name: answers for answers in sanity.baseline}
    both = [(theirs[answers.name], answers) for answers in sanity.variant if answers.name in theirs]
    batch = f"{count(sanity.samples, 'sample')}, {count(sanity.runs, 'run')}"
    return (
        _verdict("same_outputs", _other_outputs(sanity), "names, dtypes and shapes of all outputs", sanity),
        _verdict("not_constant", _faults(both, _constant), f"different answers to {batch.split(',')[0]}", sanity),
        _verdict(
            "deterministic", _faults(both, partial(_unsteady, waver=waver)), f"the same batch again: {batch}", sanity
        ),
        _verdict("finite_outputs", _faults(both, _not_finite), f"NaN and Inf in {batch}", sanity),
    )


def judge_finite(bad_samples: int, n: int) -> Verdict:
    """Fail if any of `n` samples has NaN or Inf in the judged output where the baseline's is finite."""
    return Verdict(
        gate="finite",
        outcome="fail" if bad_samples else "pass",
        value=float(bad_samples),
        bound=0.0,
        direction="at_most",
        n=n,
        reason=f"NaN or Inf on {bad_samples} samples where the baseline is finite" if bad_samples else "",
    )


def _verdict(gate: str, faults: list[str], method: str, sanity: Sanity) -> Verdict:
    return Verdict(
        gate=gate,
        outcome="fail" if faults else "pass",
        value=float(len(faults)),
        bound=0.0,
        direction="at_most",
        n=sanity.samples,
        method=method,
        reason="; ".join(faults),
    )


def _faults(both: Iterable[Pair], fault: Callable[[Answers, Answers], str]) -> list[str]:
    return [f"output {variant.name!r} {told}" for baseline, variant in both if (told := fault(baseline, variant))]


def _other_outputs(sanity: Sanity) -> list[str]:
    theirs, ours = ({answers.name: answers for answers in side} for side in (sanity.baseline, sanity.variant))
    faults = [f"output {name!r} is missing" for name in theirs if name not in ours]
    faults += [f"output {name!r} is not the baseline's" for name in ours if name not in theirs]
    if not faults and list(theirs) != list(ours):
        faults.append(f"outputs in the order {', '.join(ours)}, the baseline's is {', '.join(theirs)}")
    for name in theirs.keys() & ours.keys():
        for word in ("dtype", "shape"):
            was, now = getattr(theirs[name], word), getattr(ours[name], word)
            if was != now:
                faults.append(f"output {name!r} has {word} {now}, the baseline's has {was}")
    return faults


def _constant(baseline: Answers, variant: Answers) -> str:
    return "gives every sample the same answer" if variant.is_constant and not baseline.is_constant else ""


def _unsteady(baseline: Answers, variant: Answers, waver: float) -> str:
    # Integers, such as classes, have no rounding.
    allowed = waver * variant.peak if "float" in variant.dtype else 0.0
    if variant.spread <= max(SPREAD_SLACK * baseline.spread, allowed):
        return ""
    beside = f", the baseline's by {baseline.spread:.3g}" if baseline.spread else ""
    beside += f"; {allowed:.3g} is rounding" if allowed else ""
    return f"differs from run to run by {variant.spread:.3g}{beside}"


def _not_finite(baseline: Answers, variant: Answers) -> str:
    new = sorted(set(variant.bad_samples) - set(baseline.bad_samples))
    return f"has NaN or Inf on {name_rows(new)} where the baseline is finite" if new else ""
