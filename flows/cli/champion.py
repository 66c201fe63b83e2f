"""Commands for champions after a run: approvals, rollback, watch and retention."""

from __future__ import annotations

import getpass
from dataclasses import asdict
from typing import Annotated, Literal

import typer

from flows.cli.console import ended, prepared, target_option
from tasks.service.embedded_server import on_server, start_server
from validators.errors import EXIT_INFRASTRUCTURE, EXIT_OK
from validators.records.answer import CommandAnswer, Table

WaitingRun = Annotated[str, typer.Argument(metavar="RUN", help="Id or name of the flow run.")]
Name = Annotated[str | None, typer.Option("--who", metavar="NAME", help="Your name; your account name by default.")]


def approvals() -> CommandAnswer:
    """List the runs that wait for an approval.

    Needs PREFECT_API_URL: runs wait on a server.

    Example: quantgate approvals
    """
    prepared()
    from tasks.champion.approvals import list_waiting

    waiting = list_waiting()
    headings = ("Run", "Source", "Target", "Candidate", "Since (UTC)", "Expires (UTC)")
    rows = [(str(one.id), one.source, one.target, one.candidate, one.since, one.expires) for one in waiting]
    return CommandAnswer(waiting, (Table([headings, *rows]) if rows else "no run waits for an approval",))


def approve(
    run: WaitingRun, comment: Annotated[str, typer.Option(help="Reason; it is recorded.")] = "", who: Name = None
) -> CommandAnswer:
    """Approve the variant that a run is waiting to promote.

    Exit code 2: no such run waits, or it expired.

    Example: quantgate approve "models:/fraud/3 for ort-cpu" --comment agreed
    """
    return _answer(run, "approve", who, comment)


def reject(
    run: WaitingRun, comment: Annotated[str, typer.Option(help="Reason; it is recorded.")], who: Name = None
) -> CommandAnswer:
    """Reject the variant that a run is waiting to promote.

    Exit code 2: no such run waits, or it expired.

    Example: quantgate reject "models:/fraud/3 for ort-cpu" --comment "not yet"
    """
    return _answer(run, "reject", who, comment)


def _answer(run: str, decision: Literal["approve", "reject"], who: str | None, comment: str) -> CommandAnswer:
    prepared()
    from tasks.champion.approvals import answer_approval

    told = answer_approval(run, decision, who=who or getpass.getuser(), comment=comment)
    word = {"approve": "approved", "reject": "rejected"}[decision]
    line = f"{word}: {told.candidate} of {told.source} for {told.target}; the run continues"
    return CommandAnswer({"decision": word, "run": told}, (line,))


def rollback(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Source model, or its variants' model.")],
    target: Annotated[str, target_option("Target of the champion.")],
    to: Annotated[
        int | None,
        typer.Option(min=0, metavar="VERSION", help="Default: the previous; 0: no champion."),
    ] = None,
    leaving: Annotated[
        int | None,
        typer.Option(min=1, metavar="VERSION", help="Only if this is the champion."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Reason; recorded in the registry.")] = "",
) -> CommandAnswer:
    """Roll a champion back to the previous version.

    Changes only the registry. The rolled-back variant is not promoted on this target again. Exit code 2: no such model or
    version, or no earlier one; 1: infrastructure, or another version than `--leaving` is the champion.

    Example: quantgate rollback fraud --target ort-cpu --reason "too slow"
    """
    prepared()
    from tasks.champion.rollback import roll_back

    done = roll_back(model, target, to, reason, leaving=leaving)
    return CommandAnswer(asdict(done), (str(done),))


def watch(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="Name of a job file in QUANTGATE_JOBS; all of them by default.")
    ] = None,
) -> CommandAnswer:
    """Look once at recent traffic of the watched champions.

    A look measures drift, saturation, and agreement with the source. Exit code 0: every look succeeded, with or without
    an alarm; 1: a look failed; 2: no such job.

    Example: quantgate watch
    """
    prepared()
    from flows.watch import watch as flow
    from tasks.watch.watch import watched_jobs

    # Reject a wrong name before Prefect starts, which takes seconds.
    watched_jobs(job)
    start_server()
    with on_server():
        state = ended(flow(job, return_state=True))
    code = EXIT_OK if state.is_completed() else EXIT_INFRASTRUCTURE
    return CommandAnswer({"looks": state.result(raise_on_failure=False)}, (state.message,), code)


def retention(
    keep_versions: Annotated[
        int, typer.Option(min=1, metavar="N", help="Newest versions to keep per model and target.")
    ] = 5,
    older_than_days: Annotated[
        int, typer.Option(min=1, metavar="N", help="Keep whatever was used within so many days.")
    ] = 30,
    delete: Annotated[bool, typer.Option("--delete", help="Delete instead of only listing.")] = False,
) -> CommandAnswer:
    """List or delete old variants, finished work and reports.

    Variants are deleted with their artifacts. The champion, its predecessor and every version that an alias names are
    always kept.

    Example: quantgate retention --older-than-days 90
    """
    prepared()
    if delete:
        start_server()
        from flows.retention import retention as flow

        with on_server():
            state = ended(flow(keep_versions, older_than_days, delete, return_state=True))
        kept, told = state.result(), state.message
    else:
        from tasks.service.registry_retention import list_kept, tell_kept
        from tasks.service.retention_policy import Policy

        kept = list_kept(Policy(keep_versions=keep_versions, older_than_days=older_than_days))
        told = tell_kept(kept, deleted=False)
    goes = [fate for fate in kept.fates if fate.goes]
    lines = [f"{fate.kind:9}{fate.name}: {fate.reason}" for fate in goes]
    return CommandAnswer({"deleted": delete, "goes": goes, "told": told}, (*lines, told))
