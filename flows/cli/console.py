"""Output of every command: its answer as text or as one JSON document, its errors, and its exit code.

With `--json`, standard output holds one document and nothing else; all other output goes to standard error.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Annotated, Any

import typer
from pydantic_core import to_json
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from tasks.run.settings import prepare_environment, state_folder, written_folders
from tasks.run.signals import signals_kept
from tasks.service.generated_secrets import recorded_auth
from tasks.storage.files import disk_error
from validators.errors import EXIT_OK, InfrastructureError, Interrupted, QuantgateError
from validators.plain_text import plain
from validators.records.answer import CommandAnswer, Table
from validators.redact import redact
from validators.targets import target_names

out = Console()
err = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
# In characters: a column with texts longer than this folds, and is not made narrower; longer words are broken.
LEAST_FOLDED, LONGEST_WORD = 28, 40
# Spaces between the columns of a table.
GAP = 2
WIDTH_OF_A_PIPE = 120
# With `--json`, the stream for the command's document. `tell` takes it out, since a command prints one document.
_documents: list[IO[str]] = []


def target_option(about: str) -> Any:
    """Return the option TARGET: the name of a built-in target, or of one from an installed package."""

    def known(given: str | None) -> str | None:
        if given is not None and given not in target_names():
            raise typer.BadParameter(f"{given!r} is not one of {', '.join(map(repr, target_names()))}.")
        return given

    def starting(incomplete: str) -> list[str]:
        return [name for name in target_names() if name.startswith(incomplete)]

    return typer.Option(metavar="TARGET", help=about, callback=known, autocompletion=starting)


def command(function: Callable[..., CommandAnswer | None]) -> Callable[..., None]:
    """Wrap a function as a command with the option `--json`, which prints its answer or error as text or as a document."""
    signature = inspect.signature(function, eval_str=True)
    option = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)

    @functools.wraps(function)
    def told(*, json: bool = False, **given: Any) -> None:
        with documents_only() if json else contextlib.nullcontext():
            code = _answered(lambda: function(**given))
        raise typer.Exit(code)

    told.__signature__ = signature.replace(  # type: ignore[attr-defined]  # what typer reads
        parameters=[*signature.parameters.values(), option], return_annotation=None
    )
    # Typer keeps line breaks, and terminals differ in width from source files.
    told.__doc__ = "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(function) or "").split("\n\n"))
    told.__annotations__ = {name: one.annotation for name, one in signature.parameters.items()} | {"json": Json}
    return told


def prepared() -> None:
    """Set the environment that Prefect and MLflow read when they are imported.

    Raises:
        InfrastructureError: the state folder cannot be made.
    """
    state = state_folder()
    prepare_environment(state)
    if auth := recorded_auth(state, os.environ.get("PREFECT_API_URL")):
        os.environ.setdefault("PREFECT_API_AUTH_STRING", auth)


def tell(answer: CommandAnswer, *, indent: int | None = 1) -> None:
    """Print the document with `--json`, else the lines and tables.

    A command that keeps running after its answer, such as a server, calls this itself with `indent=None` (one line) and
    returns None.
    """
    if _documents:
        stream = _documents.pop()
        stream.write(to_json(answer.document, indent=indent, inf_nan_mode="null").decode() + "\n")
        stream.flush()
        return
    for part in answer.parts:
        if isinstance(part, Table):
            print_table(part)
        else:
            say(part)


def say(line: str) -> None:
    """Print a line without markup or control characters; with `--json` it goes to standard error."""
    out.print(plain(line), highlight=False, markup=False, soft_wrap=True)


def print_table(table: Table, console: Console | None = None) -> None:
    """Print a table without a frame, or row by row if its columns do not fit; no cell is cropped."""
    if not table.rows:
        return
    headings, *rows = ([plain(cell) for cell in row] for row in table.rows)
    in_pipe = Console(file=sys.stdout, width=None if os.environ.get("COLUMNS") else WIDTH_OF_A_PIPE)
    console = console or (out if out.is_terminal else in_pipe)
    folded, widths = set(), []
    for at, (heading, *column) in enumerate(zip(headings, *rows, strict=True)):
        widths.append(max(map(cell_len, (heading, *column))))
        # The first cell is a row's name.
        if at and widths[-1] > LEAST_FOLDED and any(" " in cell for cell in column):
            folded.add(heading)
            words = [cell_len(word) for cell in column for word in cell.split()]
            widths[-1] = max(LEAST_FOLDED, min(LONGEST_WORD, max(words)))
    if sum(widths) + GAP * (len(widths) - 1) > console.width:
        _print_stacked(console, headings, rows, folded)
        return
    shown = RichTable(box=None, pad_edge=False, header_style="bold")
    for heading, width in zip(headings, widths, strict=True):
        shown.add_column(escape(heading), no_wrap=heading not in folded, overflow="fold", min_width=width)
    for row in rows:
        shown.add_row(*map(escape, row))
    console.print(shown)


def _print_stacked(console: Console, headings: list[str], rows: list[list[str]], folded: Collection[str]) -> None:
    """Print each row below its first cell: short cells side by side, each that folds on a line of its own."""
    for name, *cells in rows:
        console.print(Text(name, style="bold", overflow="fold"))
        told = [(heading, cell) for heading, cell in zip(headings[1:], cells, strict=True) if cell]
        lines: list[list[Text]] = [[]]
        for heading, cell in [pair for pair in told if pair[0] not in folded]:
            shown = Text.assemble((f"{heading} ", "dim"), cell)
            # No figure is parted from its heading.
            if lines[-1] and sum(one.cell_len + 3 for one in lines[-1]) + shown.cell_len + 2 > console.width:
                lines.append([])
            lines[-1].append(shown)
        lines += [[Text.assemble((f"{heading} ", "dim"), cell)] for heading, cell in told if heading in folded]
        for line in filter(None, lines):
            console.print(Padding(Text("   ").join(line), (0, 0, 0, 2)))


def tell_error(error: QuantgateError) -> None:
    """Print an error as text on standard error."""
    for label in ("found", "expected", "fix"):
        err.print(f"[bold]{label + ':':<10}[/bold]{escape(getattr(error, label))}", highlight=False, soft_wrap=True)


def fail(error: QuantgateError) -> int:
    """Print an error, with `--json` also as a document, and return its exit code."""
    tell_error(error)
    if _documents:
        tell(CommandAnswer(error_document(error)))
    return error.exit_code


def error_document(error: QuantgateError) -> Mapping[str, Any]:
    """Return an error as a document, under the same key as in the result document of a run."""
    kind, found, expected, fix = type(error).__name__, error.found, error.expected, error.fix
    return {"error": {"kind": kind, "found": found, "expected": expected, "fix": fix}}


def unexpected(error: Exception) -> QuantgateError:
    """Return the error for an unforeseen exception; its traceback goes to a file, for bug reports."""
    if full := disk_error(error, *written_folders()):
        return full
    log = state_folder() / "logs" / "last-error.log"
    with contextlib.suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(redact("".join(traceback.format_exception(error))), encoding="utf-8")
    return InfrastructureError(
        found=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}",
        expected="the command to finish",
        fix=f"run again: finished work is kept; if the error recurs, report it with {log}",
    )


def interrupted() -> Interrupted:
    """Return the error for Ctrl-C or SIGTERM, with the command that resumes the work."""
    return Interrupted(
        found="Ctrl-C or SIGTERM before the command finished",
        expected="the command to finish",
        fix=f"to resume, run it again; finished work is kept: {command_line()}",
    )


def ended(state: Any) -> Any:
    """Return the state that a flow ended in, or re-raise the flow's exception."""
    found = state.result(raise_on_failure=False)
    if isinstance(found, BaseException):
        raise found
    return state


def command_line() -> str:
    """Return the present command in shell syntax."""
    return shlex.join(["quantgate", *sys.argv[1:]])


def _answered(call: Callable[[], CommandAnswer | None]) -> int:
    """Print a command's answer or error, and return its exit code."""
    try:
        with signals_kept():
            answer = call()
        if answer is None:
            return EXIT_OK
        tell(answer)
    except QuantgateError as error:
        return fail(error)
    except KeyboardInterrupt:
        return fail(interrupted())
    except (typer.Exit, BrokenPipeError):
        raise
    except Exception as error:
        return fail(unexpected(error))
    return answer.exit_code


@contextmanager
def documents_only() -> Iterator[None]:
    """Reserve standard output for the document during the block; other output goes to standard error.

    Redirects the file descriptor as well, since C libraries and child processes write to it directly.
    """
    kept: int | None = None
    with contextlib.suppress(OSError, ValueError):  # a test's replacement may have no descriptor
        number = sys.stdout.fileno()
        sys.stdout.flush()
        kept = os.dup(number)
        os.dup2(sys.stderr.fileno(), number)
    stream = sys.stdout if kept is None else os.fdopen(os.dup(kept), "w", encoding="utf-8")
    _documents[:] = [stream]
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _documents.clear()
        if kept is not None:
            stream.close()
            os.dup2(kept, number)
            os.close(kept)
