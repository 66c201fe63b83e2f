"""Watch of one job, from its champion to the action; its result also reports errors."""

from __future__ import annotations

from dataclasses import replace

from prefect.artifacts import create_markdown_artifact

from tasks.run.context import Run, log, start_run
from tasks.run.step import step
from tasks.service.job_files import job_named, read_jobs
from tasks.watch.alarms import Decision, Observation, decide, find_alarms, remember
from tasks.watch.look import look_at_traffic
from tasks.watch.subject import Lineage, find_watched, load_watched
from tasks.watch.traffic import gather_traffic
from tasks.watch.trend import Trend, open_trend, record_action, record_look
from validators.errors import ChampionMoved, JobError, LockTaken, QuantgateError
from validators.job.job import Job
from validators.plain_text import as_markdown, markdown_table


def watched_jobs(name: str | None = None) -> tuple[dict[str, Job], tuple[Observation, ...]]:
    """Return the watched jobs of the deployment by name, or the job of that name, watched or not.

    The second value are the unreadable jobs, as looks that ended in an error.

    Raises:
        JobError: there is no job of that name, or no folder of jobs.
    """
    jobs = read_jobs()
    if name is not None:
        return {name: job_named(jobs, name, "a watch of the job")}, ()
    broken = tuple(Observation(key, "error", error.found) for key, error in jobs.broken.items())
    return {key: job for key, job in jobs.found.items() if job.watch}, broken


def look(name: str, job: Job) -> Observation:
    """Look at the champion of a job and return any error as the outcome: a fault of one job must not stop the others."""
    try:
        looked: Observation = _look(name, job)
    except LockTaken as error:
        looked = Observation(name, "nothing", error.found)
    except QuantgateError as error:
        looked = Observation(name, "error", f"{error.found}; expected {error.expected}; {error.fix}")
    except Exception as error:
        log.exception("watch of %s", name)
        looked = Observation(
            name, "error", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        )
    (log.warning if looked.outcome in ("alarm", "error") else log.info)("%s: %s", name, looked.told)
    create_markdown_artifact(watch_markdown(looked), key="watch", description=looked.told)
    return looked


@step("look", run_name="look at {name}")
def _look(name: str, job: Job) -> Observation:
    watch = job.watch
    if watch is None:
        return Observation(name, "nothing", "the job has no `watch` section")
    run = start_run(job)
    with run.locks.hold(f"watch-{job.source_name}-{job.target}", wait_seconds=0):
        lineage = find_watched(run)
        if lineage is None:
            return Observation(name, "nothing", f"no champion of {job.source} on {job.target} yet")
        trend = open_trend(run, lineage)
        watched = load_watched(run, lineage)
        traffic = gather_traffic(
            run,
            watch,
            trend.seen,
            watched.feeds,
            watched.source,
            watched.batch_axis,
            draw=job.seed + trend.memory.looks,
        )
        looked = Observation(
            name, "nothing", "", lineage.champion.version, lineage.champion.candidate, notes=traffic.skipped
        )
        if traffic.samples is None:
            few = f"{traffic.found} new samples in {len(traffic.files)} files; a look needs {watch.min_samples}"
            return replace(looked, reason=f"too little traffic: {few}")
        seeing = look_at_traffic(run, watch, watched, traffic.samples)
        memory = remember(trend.memory, seeing.signals, watch)
        alarms = find_alarms(memory, seeing.signals, watch)
        decision = decide(alarms, watch, predecessor=lineage.predecessor)
        # Act before recording the look: after a failure here the look is repeated, and the action still happens once.
        action = act(run, lineage, trend, decision)
        record_look(run, trend, memory, traffic.seen, seeing)
        return replace(
            looked,
            outcome="alarm" if alarms else "quiet" if seeing.signals else "nothing",
            reason=decision.reason,
            samples=len(traffic.samples),
            looks=memory.looks,
            signals=seeing.signals,
            evidence=dict(memory.log_evidence),
            alarms=alarms,
            action=action,
            notes=(*traffic.skipped, *seeing.notes),
            run_id=trend.run_id,
        )


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


def watch_markdown(looked: Observation) -> str:
    """Render the look as Markdown: the outcome, a row for each bound, and the notes."""
    lines = [f"# {as_markdown(looked.job)}: {looked.outcome}", "", as_markdown(looked.told), ""]
    if looked.signals:
        version = f"version {as_markdown(looked.version)} ({as_markdown(looked.candidate)})"
        lines += [f"Look {looked.looks} at {version}: {looked.samples} samples.", ""]
        rows = [
            (
                signal.kind,
                f"{signal.value:.4g}",
                f"{signal.bound:.4g}",
                f"{looked.evidence.get(signal.kind, 0.0):.2f}",
                as_markdown(signal.note),
            )
            for signal in looked.signals
        ]
        lines.append(markdown_table(("", "seen", "bound", "evidence (log)", ""), rows))
    if looked.notes:
        lines += ["", *(f"- {as_markdown(note)}" for note in looked.notes)]
    return "\n".join(lines) + "\n"
