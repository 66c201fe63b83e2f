"""Step 5 as a race: candidates that cannot pass, or cannot win, are stopped before they are measured in full."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from tasks.run.context import Run, log
from tasks.trials.gather import trial_of
from tasks.trials.judge import fails_early, judge_trial, judged_data_of
from tasks.trials.judge_on_samples import JudgedData
from tasks.trials.make_candidate import evaluate_candidate
from tasks.trials.measure_latency import measure_latency, probe_latency
from tasks.trials.recover import choose_promising, drop_of, fails_on_accuracy_alone, is_recoverable
from validators.gates.race_rules import CONFIDENCE, WORTH, Speeds, run_heats
from validators.records.latencies import Latency
from validators.records.measurements import Accuracy
from validators.records.run import Inventory, Refusal, Trial
from validators.samples.run_inputs import RunInputs


@dataclass(frozen=True)
class Raced:
    """All trials after a race, and the names of those that were stopped behind the leader, who may not win after all."""

    trials: tuple[Trial, ...]
    behind: tuple[str, ...] = ()


def race(run: Run, run_inputs: RunInputs, inventory: Inventory, baseline: Accuracy, trials: tuple[Trial, ...]) -> Raced:
    """Return the made trials after the race: judged in full, failed, or stopped with the reason.

    The stages go from cheap to expensive: verdicts on file, kernels and sanity; a short timing of each candidate; then, in the
    order of the job's objective, accuracy and full timing. Each stage stops candidates by the rules of `race_rules`.
    """
    field_of = _Race(run, run_inputs, inventory, baseline, judged_data_of(run, run_inputs, baseline), _by_name(trials))
    field_of.run_all()
    return Raced(tuple(field_of.trials.values()), tuple(field_of.behind))


def resume(
    run: Run, run_inputs: RunInputs, inventory: Inventory, baseline: Accuracy, raced: Raced
) -> tuple[Trial, ...]:
    """Return the trials with those behind the leader evaluated and timed in full, since the leader did not win."""
    log.info("the race goes on with %d candidates that were behind its leader", len(raced.behind))
    judged_data = judged_data_of(run, run_inputs, baseline)
    field_of = _Race(run, run_inputs, inventory, baseline, judged_data, _by_name(raced.trials))
    field_of.finish(raced.behind)
    return tuple(field_of.trials.values())


def _by_name(trials: tuple[Trial, ...]) -> dict[str, Trial]:
    return {trial.candidate: trial for trial in trials}


@dataclass
class _Race:
    run: Run
    run_inputs: RunInputs
    inventory: Inventory
    baseline: Accuracy
    judged_data: JudgedData
    trials: dict[str, Trial]
    speeds: Speeds = field(default_factory=Speeds)
    leader: str = ""
    behind: list[str] = field(default_factory=list)
    inaccurate: list[str] = field(default_factory=list)

    def run_all(self) -> None:
        made = [name for name, trial in self.trials.items() if trial.variant and not trial.refusal]
        racers = self._measurable(made)
        if not racers:
            # Nothing can be promoted here: the accuracy of simulated and inspected candidates is all that a user can learn.
            self._evaluate(made, stops=False)
            return
        racers = [name for name in racers if not self._fails_early(name)]
        racers = [name for name in racers if self._probe(name)]
        run_heats(racers, rank=self._rank, stops=self._stop_if_lost, evaluate=self._evaluate, time=self._time)
        chosen = self._choose_recovered()
        if chosen is not None:
            self._evaluate_again([chosen] if chosen in self.inaccurate else [])
            self._time(chosen)

    def finish(self, names: tuple[str, ...]) -> None:
        self._evaluate_again(names)
        for name in names:
            self._time(name)

    # Stages

    def _measurable(self, names: list[str]) -> list[str]:
        """Return the candidates that run here; stop simulated and inspected ones beside them, which are never promoted."""
        proofs = {name: variant.proof for name in names if (variant := self.trials[name].variant)}
        racers = [name for name in names if proofs[name] == "measured"]
        for name, proof in proofs.items():
            if racers and proof != "measured":
                self._stop(name, f"{proof}, so it cannot be promoted on this machine")
        return racers

    def _fails_early(self, name: str) -> bool:
        failed = fails_early(self.judged_data, self.trials[name])
        if failed is not None:
            log.info("%s failed before its accuracy was measured", name)
            self.trials[name] = failed
        return failed is not None

    def _probe(self, name: str) -> bool:
        """Time a candidate shortly; return False if it was refused."""
        trial = self.trials[name]
        if self.run.job.objective == "size":
            return True
        state = probe_latency(self.run, self.run_inputs, self.inventory, trial, return_state=True)
        found = state.result(raise_on_failure=False)
        if isinstance(found, Latency):
            self._add_speed(name, found)
            return True
        refused = Trial(name, "refused", found) if isinstance(found, Refusal) else trial_of(name, found)
        self.trials[name] = refused
        return False

    def _stop_if_lost(self, name: str) -> bool:
        """Stop a candidate that cannot pass the speedup gate or cannot win; return True if it was stopped."""
        if self.run.job.objective == "size":
            return self._stop_if_larger(name)
        value, bound = self.speeds.value(name), self.run.job.gates.speedup_bound(self.run.job.target)
        if value is None:
            return False
        short = f"{value:.2f}x in a short measurement"
        if bound is not None and self.speeds.is_below(name, bound):
            self._stop(name, f"{short}, below {bound:.2f}x with {CONFIDENCE:.0%} confidence")
            return True
        if not self.leader or not self.speeds.is_behind(name, self.leader):
            return False
        best = f"{self.leader} has {self.speeds.value(self.leader):.2f}x"
        self._stop(name, f"{short}, {best}: not {WORTH - 1:.0%} faster with {CONFIDENCE:.0%} confidence")
        self.behind.append(name)
        return True

    def _stop_if_larger(self, name: str) -> bool:
        if not self.leader or self._size(name) < self._size(self.leader):
            return False
        self._stop(
            name, f"{self._size(name) / 1e6:.1f} MB, {self.leader} passes with {self._size(self.leader) / 1e6:.1f} MB"
        )
        self.behind.append(name)
        return True

    def _evaluate(self, names: list[str], *, stops: bool = True) -> list[str]:
        """Measure the accuracy of candidates at once, and return those that pass every gate so far.

        With `stops`, those that cannot pass any more are stopped on the way.
        """
        judged_data = self.judged_data if stops else None
        futures = {
            name: evaluate_candidate.submit(
                self.run, self.run_inputs, self.inventory, self.baseline, self.trials[name], judged_data
            )
            for name in names
        }
        for name, future in futures.items():
            trial = trial_of(name, future.result(raise_on_failure=False))
            self.trials[name] = judge_trial(self.judged_data, trial)
            if trial.is_stopped:
                self.inaccurate.append(name)
        return [name for name in names if self.trials[name].outcome == "passed"]

    def _time(self, name: str) -> None:
        """Measure a candidate's latency in full, and make it the leader if it passes and is the best so far."""
        state = measure_latency(self.run, self.run_inputs, self.inventory, self.trials[name], return_state=True)
        trial = judge_trial(self.judged_data, trial_of(name, state.result(raise_on_failure=False)))
        self.trials[name] = trial
        if trial.latency:
            self._add_speed(name, trial.latency)
        if trial.outcome == "passed" and (not self.leader or self._rank(name) < self._rank(self.leader)):
            self.leader = name

    def _evaluate_again(self, names: Collection[str]) -> None:
        """Measure the accuracy of stopped candidates on all samples, if it was not."""
        for name in names:
            self.trials[name] = replace(self.trials[name], outcome=None, refusal=None)
        self._evaluate([name for name in names if self.trials[name].accuracy is None], stops=False)

    def _choose_recovered(self) -> str | None:
        """Return the candidate that recovery will choose, which it needs to know in full; None if there is none."""
        failed = {name: drop_of(trial) for name, trial in self.trials.items() if fails_on_accuracy_alone(trial)}
        # What was stopped for its drop loses more than any that was not.
        drops = failed | dict.fromkeys(self.inaccurate, math.inf)
        worth = {name: (self.speeds.value(name) or 0.0, drop) for name, drop in drops.items() if is_recoverable(name)}
        return choose_promising(worth, (self.speeds.value(self.leader) or 0.0) if self.leader else 0.0)

    # Facts

    def _add_speed(self, name: str, latency: Latency) -> None:
        self.speeds.add(name, latency.speedup, latency.launches, self.run.job.gates.confidence)

    def _rank(self, name: str) -> float:
        """Return the value by which candidates are ordered, best first."""
        return float(self._size(name)) if self.run.job.objective == "size" else -(self.speeds.value(name) or 0.0)

    def _size(self, name: str) -> int:
        variant = self.trials[name].variant
        assert variant
        return variant.size_bytes

    def _stop(self, name: str, reason: str) -> None:
        log.info("stopped %s: %s", name, reason)
        self.trials[name] = replace(self.trials[name], outcome="refused", refusal=Refusal("stopped", reason))
