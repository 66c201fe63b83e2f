"""The command line: the table of commands by group, and the message for wrong usage.

Each command is a function that returns a `CommandAnswer` (`validators/records/answer.py`); `flows/cli/console.py` wraps it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import platform
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from flows.cli import champion as champions
from flows.cli import export as exports
from flows.cli import judge, look, service, verify
from flows.cli import run as runs
from flows.cli.console import command, documents_only, fail, say
from validators.errors import EXIT_BAD_INPUT, JobError
from validators.records.answer import CommandAnswer


class Commands(TyperGroup):
    """Command group that reports wrong usage in the same format as every other error."""

    def get_params(self, ctx: Any) -> Any:
        """Return the options of `quantgate` itself, with a shorter help text."""
        params: Any = super().get_params(ctx)
        for param in params:
            # Shorter than typer's own text, so that the list of commands fits on a screen.
            param.help = "Install completion for this shell." if param.name == "install_completion" else param.help
            # `--install-completion` is enough for a user, and the list of commands fits on a screen.
            param.hidden = param.name == "show_completion"
        return params

    def main(  # type: ignore[override]  # narrower: the rest of the parameters is for other systems
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        *,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        given = sys.argv[1:] if args is None else list(args)
        try:
            code = super().main(args, prog_name or "quantgate", standalone_mode=False, **extra)
        except typer.TyperException as error:
            code = _report_usage_error(error, as_json="--json" in given)
        if not standalone_mode:
            return code
        sys.exit(code)


def _report_usage_error(error: typer.TyperException, *, as_json: bool) -> int:
    """Print what is wrong with a call and return its exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":  # `quantgate` alone: its help has been printed
        return EXIT_BAD_INPUT
    context = getattr(error, "ctx", None)
    usage = " ".join(context.get_usage().removeprefix("Usage: ").split()) if context else "quantgate COMMAND"
    path = context.command_path if context else "quantgate"
    wrong = JobError(
        found=error.format_message().replace("Value error, ", ""),
        expected=usage,
        fix=f"run `{path} --help` for details",
    )
    with documents_only() if as_json else contextlib.nullcontext():
        return fail(wrong)


app = typer.Typer(
    name="quantgate",
    cls=Commands,
    help="Quantize a model, judge every variant where it will run, promote the best.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


def tell_version(asked: bool) -> None:
    """Print the version of quantgate and of Python, and end the command."""
    if asked:
        say(f"quantgate {metadata.version('quantgate')} (Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=tell_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options of `quantgate` itself."""


GROUPS: dict[str, tuple[Callable[..., CommandAnswer | None], ...]] = {
    "Jobs": (
        runs.demo,
        look.init,
        runs.candidates,
        runs.suggest_calibration,
        runs.validate,
        runs.run,
        judge.judge,
    ),
    "Inspection": (
        look.status,
        look.report,
        look.compare,
        look.lint,
        judge.sensitivity,
        verify.verify,
        look.doctor,
    ),
    "Champions": (
        look.promote,
        champions.approvals,
        champions.approve,
        champions.reject,
        champions.rollback,
        champions.watch,
        champions.retention,
        exports.export,
    ),
    "Service": (service.ui, service.serve, service.deploy, service.worker, service.webhook),
}
for group, functions in GROUPS.items():
    for function in functions:
        app.command(rich_help_panel=group)(command(function))


def main() -> None:
    """Run the console script, and end the process without taking its objects apart: with torch loaded that takes 1.6 s."""
    code = 1

    def leave() -> None:
        # Registered before others are, so called after them; the modules above have registered this one alone.
        logging.shutdown()
        with contextlib.suppress(OSError):  # a reader that has gone
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)

    atexit.register(leave)
    # A container or a CI that stops sends SIGTERM; as Ctrl-C it ends the command's children and records what ended the run.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise


if __name__ == "__main__":
    main()
