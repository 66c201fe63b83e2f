"""Actions of the watch on an alarm: a new run of the job, or a rollback to the previous version."""

from __future__ import annotations

from tasks.run.context import Run, log
from tasks.watch.evidence import Decision
from tasks.watch.subject import Lineage
from tasks.watch.trend import Trend, record_action
from validators.errors import ChampionMoved, JobError


def act(run: Run, lineage: Lineage, trend: Trend, decision: Decision) -> str:
    """Carry out the decision once per champion version and kind of alarm; return what was done, in words.

    Raises:
        InfrastructureError: Prefect or the registry does not answer.
    """
    alarm = decision.alarm
    if alarm is None or decision.action in (None, "report"):
        return ""
    if alarm.kind in trend.actions:
        return f"{trend.actions[alarm.kind]}, at an earlier look"
    try:
        done = (_requantize if decision.action == "requantize" else _roll_back)(run, lineage, decision)
    except ChampionMoved as moved:
        # Do not record it: the version of the alarm may become champion again.
        return f"no rollback: {moved.found}; the alarm is about version {lineage.champion.version}"
    log.warning("watch: %s", done)
    record_action(run, trend, alarm.kind, done)
    return done


def _requantize(run: Run, lineage: Lineage, decision: Decision) -> str:
    from tasks.service.start_run import start_quantize

    return f"started a re-quantization, flow run {start_quantize(run.job, _key(run, lineage, decision))}"


def _roll_back(run: Run, lineage: Lineage, decision: Decision) -> str:
    from tasks.champion.rollback import roll_back

    assert decision.alarm is not None and run.job.source_name is not None
    assert lineage.predecessor is not None
    reason = f"watch: {decision.alarm.kind}: {decision.reason}"
    try:
        done = roll_back(
            run.job.source_name,
            run.job.target,
            to=int(lineage.predecessor),
            leaving=int(lineage.champion.version),
            reason=reason,
            request=_key(run, lineage, decision),
        )
    except JobError as error:
        # The predecessor may have been removed since the lookup.
        return f"no rollback: {error.found}"
    return f"rolled back: {done}"


def _key(run: Run, lineage: Lineage, decision: Decision) -> str:
    """Return the idempotency key of an action on this champion version and alarm, in case its record is lost."""
    assert decision.alarm is not None
    return f"watch {lineage.champion.name} {lineage.champion.version} {run.job.target} {decision.alarm.kind}"
