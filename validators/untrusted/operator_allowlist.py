"""Allowlists of the operator: functions and libraries that jobs may name, and models that may be unpickled.

Each list is read at call time, from the environment of the process that would run the code; a job cannot change it.
"""

from __future__ import annotations

import os
from pathlib import Path

from validators.errors import JobError

HOOKS = "QUANTGATE_ALLOWED_HOOKS"
PICKLES = "QUANTGATE_ALLOWED_PICKLES"
_LIBRARY = "library="
_PYTHON = "python="


def allows_all_of(name: str, folder: Path | None) -> bool:
    """Return True if a function is not listed by its own name, so that only its module's entry (`module:*`) can allow it.

    `folder` is the `code` folder of the module's file, or None for an installed module.
    """
    return _hook(name, folder) not in _listed(HOOKS)


def check_hook(name: str, folder: Path | None, *, key: str) -> None:
    """Check that the operator allows jobs to run `module:function`.

    An entry for a file in a job's `code` folder includes the folder (`module:function@/folder`). Otherwise anybody who may name
    a folder could supply a file with an allowed name. `folder` is None for an installed module; `key` is the job's key.

    Raises:
        JobError: the function is not on the list; the fix is the line to set.
    """
    module = f"{name.partition(':')[0]}:*"
    listed = _listed(HOOKS)
    if _hook(name, folder) not in listed and _hook(module, folder) not in listed:
        where = f"a file in {folder}" if folder else "an installed module"
        raise _denied(f"`{key}: {name}`, {where}", _hook(name, folder))


def line_to_allow(name: str, folder: Path) -> str:
    """Return the shell's line that allows `module:function` of a folder, beside the present entries."""
    return _line(_hook(name, folder))


def check_library(package: str | None, digest: str) -> None:
    """Check that the operator allows jobs to load a library of custom operators: a package by name, a file by its sha256.

    Raises:
        JobError: the library is not on the list; the fix is the line to set.
    """
    entry = f"{_LIBRARY}{package}" if package else f"{_LIBRARY}sha256:{digest}"
    if entry not in _listed(HOOKS):
        what = f"package {package!r}" if package else f"with sha256 {digest}"
        raise _denied(f"operator library {what}", entry)


def check_python(python: Path) -> None:
    """Check that the operator allows jobs to run a script by this interpreter: a job could name any program.

    Raises:
        JobError: it is not on the list; the fix is the line to set.
    """
    entry = f"{_PYTHON}{python}"
    if entry not in _listed(HOOKS):
        raise _denied(f"`python: {python}`", entry)


def may_unpickle(name: str, version: str) -> bool:
    """Return True if the operator trusts the pickle of a registered model, listed as `name` or as `name/version`."""
    return bool({name, f"{name}/{version}"} & _listed(PICKLES))


def _hook(name: str, folder: Path | None) -> str:
    return f"{name}@{folder.resolve()}" if folder else name


def _listed(variable: str) -> set[str]:
    return {entry.strip() for entry in os.environ.get(variable, "").split(",") if entry.strip()}


def _denied(what: str, entry: str) -> JobError:
    return JobError(
        found=f"{what}, which the operator does not allow",
        expected=f"code that {HOOKS} names in the environment of every process that would run it",
        fix=f"if you trust this code: {_line(entry)}",
    )


def _line(entry: str) -> str:
    return f"export {HOOKS}='{','.join([*sorted(_listed(HOOKS)), entry])}'"
