"""The commands of who answers for champions: approvals, rollback, watching and retention."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from flows.console import fail, out, print_table
from tasks.settings import prepare_environment, state_folder
from validators.errors import EXIT_INFRASTRUCTURE, EXIT_OK, QuantgateError
from validators.recipe import Target

WaitingRun = Annotated[str, typer.Argument(metavar="RUN", help="Id or name of the flow run.")]
Name = Annotated[
    str | None, typer.Option("--who", metavar="NAME", help="Your name; by default that of your account here.")
]


def approvals() -> None:
    """List the runs that wait for an approval.

    Example: quantgate approvals
    """
    prepare_environment(state_folder())
    from tasks.approvals import list_waiting

    try:
        waiting = list_waiting()
    except QuantgateError as error:
        raise typer.Exit(fail(error)) from error
    if not waiting:
        out.print("nothing waits")
    headings = ("Run", "Source", "Target", "Candidate", "Since (UTC)", "Expires (UTC)")
    rows = [(str(one.id), one.source, one.target, one.candidate, one.since, one.expires) for one in waiting]
    print_table([headings, *rows] if rows else [])


def approve(
    run: WaitingRun, comment: Annotated[str, typer.Option(help="Why; it is recorded.")] = "", who: Name = None
) -> None:
    """Have the variant promoted that a run waits with.

    Exit code 2: no such run waits, or it expired.

    Example: quantgate approve 68f46bf5-886e-4832-90b4-b1d56587b714 --comment "as agreed"
    """
    _answer(run, "approve", who, comment)


def reject(
    run: WaitingRun, comment: Annotated[str, typer.Option(help="Why; it is recorded.")], who: Name = None
) -> None:
    """Have nothing promoted by a run that waits.

    Exit code 2: no such run waits, or it expired.

    Example: quantgate reject 68f46bf5-886e-4832-90b4-b1d56587b714 --comment "not before the holidays"
    """
    _answer(run, "reject", who, comment)


def _answer(run: str, decision: Literal["approve", "reject"], who: str | None, comment: str) -> None:
    prepare_environment(state_folder())
    from tasks.approvals import answer_approval

    try:
        told = answer_approval(run, decision, who=who or getpass.getuser(), comment=comment)
    except QuantgateError as error:
        raise typer.Exit(fail(error)) from error
    words = {"approve": "approved", "reject": "rejected"}
    line = f"{words[decision]}: {told.candidate} of {told.source} for {told.target}; the run goes on"
    out.print(line, highlight=False, markup=False, soft_wrap=True)


def rollback(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The source, or the model that holds its variants.")],
    target: Annotated[Target, typer.Option(help="Of which target the champion is put back.")],
    to: Annotated[
        int | None,
        typer.Option(min=0, metavar="VERSION", help="Where to; by default the champion before; 0: no champion at all."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why; kept with the version that is left.")] = "",
) -> None:
    """Put the champion of a model back, in the registry alone: no Prefect server is asked.

    The variant that is left is not promoted on this target again. Exit code 2: no such model or version, or none to go back
    to; 1: infrastructure.

    Example: quantgate rollback fraud --target ort-cpu --reason "slower under load"
    """
    prepare_environment(state_folder())
    from tasks.rollback import roll_back

    try:
        done = roll_back(model, target, to, reason)
    except QuantgateError as error:
        raise typer.Exit(fail(error)) from error
    out.print(str(done), highlight=False, markup=False, soft_wrap=True)


def watch(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="Name of a job file in QUANTGATE_JOBS; all of them by default.")
    ] = None,
) -> None:
    """Look once at the recent traffic of every watched champion: drift, saturation, agreement with its source.

    Exit code 0: looked, with an alarm or without; 1: a look failed; 2: no such job.

    Example: quantgate watch
    """
    prepare_environment(state_folder())
    from flows.watch import watch as flow

    state: Any = _ended(lambda: flow(job, return_state=True))
    out.print(state.message, highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(EXIT_OK if state.is_completed() else EXIT_INFRASTRUCTURE)


def retention(
    keep_versions: Annotated[int, typer.Option(min=1, help="Newest versions kept of each model and target.")] = 5,
    older_than_days: Annotated[int, typer.Option(min=1, help="Nothing goes that was used in so many days.")] = 30,
    delete: Annotated[bool, typer.Option("--delete", help="Delete what goes; else it is listed.")] = False,
) -> None:
    """List old variants, their artifacts, finished work and reports; with --delete, delete them.

    The champion, the version before it and whatever an alias names always stay.

    Example: quantgate retention --older-than-days 90
    """
    prepare_environment(state_folder())
    from flows.retention import retention as flow

    state: Any = _ended(lambda: flow(keep_versions, older_than_days, delete, return_state=True))
    for fate in state.result().fates:
        if fate.goes:
            out.print(f"{fate.kind:9}{fate.name}: {fate.reason}", highlight=False, markup=False, soft_wrap=True)
    out.print(state.message, highlight=False, markup=False, soft_wrap=True)


def _ended(flow: Callable[[], Any]) -> Any:
    """The state that a flow ended in; an error that it ended in becomes the command's."""
    state = flow()
    found = state.result(raise_on_failure=False)
    if isinstance(found, QuantgateError):
        raise typer.Exit(fail(found)) from found
    if isinstance(found, BaseException):
        raise found
    return state
