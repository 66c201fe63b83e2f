"""Step 5 as a race: candidates that cannot pass, or cannot win, are stopped before they are measured in full."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

from tasks.engines.variants import leaves_convolutions
from tasks.run.context import log
from tasks.run.loaded_run import LoadedRun
from tasks.trials.gather import merge_copies, trial_of, try_step
from tasks.trials.inspect_variant import share_in_convolutions
from tasks.trials.judge import fails_early, judge_trial, judged_data_of
from tasks.trials.judge_on_samples import JudgedData
from tasks.trials.make_candidate import evaluate_candidate, make_candidates
from tasks.trials.measure_latency import measure_in_turn, measure_latency, probe_latency
from tasks.trials.recover import choose_promising, drop_of, fails_on_accuracy_alone, is_recoverable
from validators.gates.race_rules import CONFIDENCE, PROBES, WORTH, Speeds, run_finals
from validators.job.candidate_name import Candidate, decode
from validators.records.latencies import Latency
from validators.records.measurements import Accuracy
from validators.records.run import Refusal, Trial, Variant


@dataclass(frozen=True)
class Raced:
    """All trials after a race, their speeds, and the names of those stopped behind the leader, who may not win after all."""

    trials: tuple[Trial, ...]
    behind: tuple[str, ...] = ()
    speeds: Speeds = field(default_factory=Speeds)


def race(run: LoadedRun, baseline: Accuracy) -> Raced:
    """Return a trial of each candidate after the race: judged in full, failed, or stopped with the reason.

    The stages go from cheap to expensive: file, kernels and sanity of one candidate of each kind of kernels; a short timing of
    each; then, in the order of the job's objective, accuracy and full timing, for which the others of its kind are made. Each
    stage stops candidates by the rules of `race_rules`.
    """
    trials = {name: Trial(name) for name in run.job.candidates_without(run.inventory.absent)}
    field_of = _Race(run, baseline, judged_data_of(run, baseline), trials)
    field_of.run_all()
    return field_of.result()


def resume(run: LoadedRun, baseline: Accuracy, raced: Raced) -> Raced:
    """Return the race with those that were behind the leader, who did not win, among themselves."""
    log.info("the race goes on with %d candidates that were behind its leader", len(raced.behind))
    trials = {trial.candidate: trial for trial in raced.trials}
    judged_data = judged_data_of(run, baseline)
    field_of = _Race(run, baseline, judged_data, trials, raced.speeds)
    field_of.run_again(raced.behind)
    return field_of.result()


@dataclass
class _Race:
    run: LoadedRun
    baseline: Accuracy
    judged_data: JudgedData
    trials: dict[str, Trial]
    speeds: Speeds = field(default_factory=Speeds)
    leader: str = ""
    in_turn: dict[tuple[str, Candidate], tuple[str, float]] = field(default_factory=dict)
    """By leader and kernels: the candidate that was measured in turn with the leader, and how many times as fast it is."""
    behind: list[str] = field(default_factory=list)
    inaccurate: list[str] = field(default_factory=list)

    def run_all(self) -> None:
        self._line_up()
        if not any(variant.proof == "measured" for variant in self._variants().values()):
            # Nothing can be promoted here: the accuracy of simulated and inspected candidates is all that a user can learn.
            self._make([name for name in self.trials if self._is_waiting(name)])
            self._evaluate(list(self._variants()), stops=False)
            return
        self._stop_unmeasured()
        self._probe([name for name, trial in self.trials.items() if trial.variant and trial.outcome is None])
        self._run_finals([name for name, trial in self.trials.items() if trial.outcome is None])
        chosen = self._choose_recovered()
        if chosen is not None:
            self._finish(chosen)

    def run_again(self, names: Sequence[str]) -> None:
        for name in names:
            self.trials[name] = replace(self.trials[name], outcome=None, refusal=None)
        self._run_finals(names)

    def result(self) -> Raced:
        return Raced(tuple(self.trials.values()), tuple(self.behind), self.speeds)

    # Stages

    def _line_up(self) -> None:
        """Make one candidate of each kind of kernels, and the next of its kind while that one cannot race."""
        self._stop_uncovered()
        kinds: dict[Candidate, list[str]] = {}
        for name in self.trials:
            if self._is_waiting(name) and not decode(name).is_simulated:
                kinds.setdefault(decode(name).kernels, []).append(name)
        waiting = list(kinds.values())
        while waiting:
            heads = [names.pop(0) for names in waiting]
            self._make(heads)
            for name, others in zip(heads, waiting, strict=True):
                if self._may_race(name) or self._is_unmeasured(name) or self._stops_its_kind(name, others):
                    others.clear()
            waiting = [names for names in waiting if names]

    def _stop_uncovered(self) -> None:
        """Stop those whose files leave convolutions in float, if these are too much of the model for the coverage gate."""
        least = self.run.job.gates.min_coverage
        names = [name for name in self.trials if leaves_convolutions(decode(name))]
        if not names or least is None:
            return
        share = share_in_convolutions(self.run)
        if 1 - share >= least:
            return
        for name in names:
            recipe = name.partition("@")[0]
            left = f"{share:.0%} of the multiply-accumulates are in convolutions, which {recipe} leaves in float"
            self._stop(name, f"{left}; at least {least:.0%} are to be in low precision")

    def _make(self, names: Sequence[str]) -> None:
        made = make_candidates(self.run, self.baseline, names, evaluates=False)
        # Of two equal variants the one that was made before is judged for both.
        before = [trial for trial in self.trials.values() if trial.variant]
        self.trials |= {trial.candidate: trial for trial in merge_copies((*before, *made))}

    def _may_race(self, name: str) -> bool:
        """Return True if a candidate was made, runs here, and does not fail by its file, kernels or sanity."""
        trial = self.trials[name]
        if trial.refusal or trial.variant is None or self._is_unmeasured(name):
            return False
        failed = fails_early(self.judged_data, trial)
        if failed is not None:
            log.info("%s failed before its accuracy was measured", name)
            self.trials[name] = failed
        return failed is None

    def _stops_its_kind(self, name: str, others: Sequence[str]) -> bool:
        """Stop the others of a candidate's kind if it fails by its kernels; return True if it does."""
        failed = {verdict.gate for verdict in self.trials[name].verdicts if verdict.outcome == "fail"}
        for other in others if "coverage" in failed else ():
            self._stop(other, f"{name}, which runs the same kernels, fails on coverage")
        return "coverage" in failed

    def _stop_unmeasured(self) -> None:
        """Stop simulated and inspected candidates beside measured ones: they are never promoted."""
        variants = self._variants()
        for name in self.trials:
            variant = variants.get(self._of_its_kind(name, variants))
            proof = "simulated" if decode(name).is_simulated else variant.proof if variant else "measured"
            if proof != "measured" and not self.trials[name].refusal:
                self._stop(name, f"{proof}, so it cannot be promoted on this machine")

    def _probe(self, names: Sequence[str]) -> None:
        """Time candidates shortly, several times in turn: what slows the machine for seconds meets one launch of each."""
        if self.run.job.objective == "size":
            return
        for launch in range(PROBES):
            for name in names:
                trial = self.trials[name]
                if trial.refusal:
                    continue
                found = probe_latency.outcome(self.run, trial, launch)
                if isinstance(found, Latency):
                    self.speeds.add_launch(name, found.speedup)
                else:
                    self.trials[name] = (
                        Trial(name, "refused", found) if isinstance(found, Refusal) else trial_of(name, found)
                    )

    def _run_finals(self, names: Sequence[str]) -> None:
        run_finals(
            names, rank=self._rank, stops=self._stop_if_lost, evaluate=self._make_and_evaluate, time=self._challenge
        )

    def _stop_if_lost(self, name: str) -> bool:
        """Stop a candidate that cannot pass the speedup gate or cannot win; return True if it was stopped."""
        if self.leader and decode(name).kernels == decode(self.leader).kernels:
            return self._stop_behind(name, f"the same kernels as {self.leader}, which passes")
        if self.run.job.objective == "size":
            return self._stop_if_larger(name)
        known = self._of_its_kind(name, self.speeds)
        value, bound = self.speeds.value(known), self.run.job.gates.speedup_bound(self.run.job.target)
        found = f"{value or 0:.2f}x in a {'full' if self.trials[known].latency else 'short'} measurement"
        found += self._of(known, name)
        if bound is not None and self.speeds.is_below(known, bound):
            self._stop(name, f"{found}, below {bound:.2f}x with {CONFIDENCE:.0%} confidence")
            return True
        if not self.leader:
            return False
        not_worth = f"not {WORTH - 1:.0%} faster with {CONFIDENCE:.0%} confidence"
        if (self.leader, decode(name).kernels) in self.in_turn:
            other, ratio = self.in_turn[self.leader, decode(name).kernels]
            found = f"{ratio:.2f}x as fast as {self.leader} in turn with it{self._of(other, name)}: {not_worth}"
            return self.speeds.is_not_worth(ratio) and self._stop_behind(name, found)
        found += f", {self.leader} has {self.speeds.value(self.leader):.2f}x: {not_worth}"
        return self.speeds.is_behind(known, self.leader) and self._stop_behind(name, found)

    @staticmethod
    def _of(known: str, name: str) -> str:
        return "" if known == name else f", by {known}, which runs the same kernels"

    def _stop_if_larger(self, name: str) -> bool:
        if not self.leader or self._size(name) < self._size(self.leader):
            return False
        sizes = [f"{self._size(one) / 1e6:.1f} MB" for one in (name, self.leader)]
        return self._stop_behind(name, f"{sizes[0]}, {self.leader} passes with {sizes[1]}")

    def _make_and_evaluate(self, name: str) -> bool:
        if self._is_waiting(name):
            self._make([name])
            if not self._may_race(name):
                return False
        return not self._loses_in_turn(name) and bool(self._evaluate([name]))

    def _evaluate(self, names: list[str], *, stops: bool = True) -> list[str]:
        """Measure the accuracy of candidates, two at a time, and return those that pass every gate so far.

        With `stops`, those that cannot pass any more are stopped on the way.
        """
        judged_data = self.judged_data if stops else None
        outcomes = {
            name: evaluate_candidate.submit(
                self.run, self.baseline, self.trials[name], judged_data, alone=len(names) == 1
            )
            for name in names
            if self.trials[name].accuracy is None
        }
        self.trials |= {name: trial_of(name, outcome()) for name, outcome in outcomes.items()}
        for name in names:
            self.trials[name] = judge_trial(self.judged_data, self.trials[name])
            if self.trials[name].is_stopped:
                self.inaccurate.append(name)
        return [name for name in names if self.trials[name].outcome == "passed"]

    def _challenge(self, name: str) -> None:
        """Measure the latency of a candidate that passes so far in full, unless the leader is faster in turn with it."""
        if self._loses_in_turn(name):
            return
        before = self.leader
        _, ratio = self.in_turn.get((before, decode(name).kernels), ("", 1.0))
        wins = self.speeds.is_faster(ratio)
        self._time(name)
        if wins and self.trials[name].outcome == "passed":
            self.leader = name
            how = f"in turn with it, with {CONFIDENCE:.0%} confidence"
            self._stop_behind(before, f"{name} is {ratio:.2f}x as fast {how}")

    def _loses_in_turn(self, name: str) -> bool:
        """Measure a candidate in turn with the leader, if there is one, and stop it if it loses; return True if it does."""
        if not self.leader or self.run.job.objective == "size":
            return False
        kernels = decode(name).kernels
        if (self.leader, kernels) not in self.in_turn:
            ratio = measure_in_turn.outcome(self.run, self.trials[self.leader], self.trials[name])
            if not isinstance(ratio, float):
                return False
            self.in_turn[self.leader, kernels] = name, ratio
        return self._stop_if_lost(name)

    def _time(self, name: str) -> None:
        """Measure a candidate's latency in full, and make it the leader if it passes and is the best so far."""
        trial = judge_trial(self.judged_data, try_step(name, measure_latency, self.run, self.trials[name]))
        self.trials[name] = trial
        if trial.latency:
            latency = trial.latency
            self.speeds.add(name, latency.speedup, latency.launches, self.run.job.gates.confidence)
        if trial.outcome == "passed" and (not self.leader or self._rank(name) < self._rank(self.leader)):
            self.leader = name

    def _finish(self, name: str) -> None:
        """Measure the accuracy of a candidate on all samples, if it was stopped meanwhile, and its latency in full."""
        if name in self.inaccurate:
            self.trials[name] = replace(self.trials[name], outcome=None, refusal=None)
            self._evaluate([name], stops=False)
        self._time(name)

    def _choose_recovered(self) -> str | None:
        """Return the candidate that recovery will choose, which it needs to know in full; None if there is none."""
        failed = {name: drop_of(trial) for name, trial in self.trials.items() if fails_on_accuracy_alone(trial)}
        # What was stopped for its drop loses more than any that was not.
        drops = failed | dict.fromkeys(self.inaccurate, math.inf)
        worth = {name: (self._worth(name), drop) for name, drop in drops.items() if is_recoverable(name)}
        return choose_promising(worth, self._worth(self.leader) if self.leader else 0.0)

    # Facts

    def _variants(self) -> dict[str, Variant]:
        """Return the variants that were made and not refused, by name."""
        return {name: trial.variant for name, trial in self.trials.items() if trial.variant and not trial.refusal}

    def _is_waiting(self, name: str) -> bool:
        """Return True if a candidate is neither made nor refused so far."""
        return self.trials[name].variant is None and self.trials[name].refusal is None

    def _is_unmeasured(self, name: str) -> bool:
        variant = self.trials[name].variant
        return variant is not None and variant.proof != "measured"

    def _of_its_kind(self, name: str, known: Container[str]) -> str:
        """Return the candidate itself if it is `known`, or a known one that runs the same kernels; itself if there is none."""
        kind = decode(name).kernels
        others = (other for other in self.trials if other in known and decode(other).kernels == kind)
        return name if name in known else next(others, name)

    def _speed(self, name: str) -> float:
        return self.speeds.value(self._of_its_kind(name, self.speeds)) or 0.0

    def _short_speed(self, name: str) -> float:
        return self.speeds.short_value(self._of_its_kind(name, self.speeds)) or 0.0

    def _worth(self, name: str) -> float:
        """Return what recovery compares candidates by, as `choose_recovered` does, though not all were timed in full."""
        # Most have been timed shortly alone, perhaps while the machine was faster than later.
        return 1 / self._size(name) if self.run.job.objective == "size" else self._short_speed(name)

    def _size(self, name: str) -> float:
        """Return the size of a candidate's file, or of one of its kind, in bytes; Inf if there is none."""
        variant = self.trials[self._of_its_kind(name, self._variants())].variant
        return variant.size_bytes if variant else math.inf

    def _rank(self, name: str) -> float:
        """Return the value by which candidates are ordered, best first."""
        return self._size(name) if self.run.job.objective == "size" else -self._speed(name)

    def _stop_behind(self, name: str, reason: str) -> bool:
        self._stop(name, reason)
        self.behind.append(name)
        return True

    def _stop(self, name: str, reason: str) -> None:
        log.info("stopped %s: %s", name, reason)
        self.trials[name] = replace(self.trials[name], outcome="refused", refusal=Refusal("stopped", reason))
