"""Reference page of the command line, generated from the commands."""

from __future__ import annotations

import re
from typing import Any

import typer

from flows.cli.app import app
from flows.docs.reference_models import table


def command_page() -> str:
    """Return the page with every command: its help, arguments and options."""
    commands = getattr(typer.main.get_command(app), "commands")  # noqa: B009 - typer's own type of a group is private
    lead = "`--help` prints the same texts. Each command ends with an [exit code](exit-codes.md)."
    listed = [(f"[`{name}`](#{name})", _sentences(command)[0]) for name, command in commands.items()]
    parts = ["# Commands", lead, table(("command", "what it does"), listed)]
    for name, command in commands.items():
        parts += _section(name, command)
    return "\n\n".join(parts) + "\n"


def _section(name: str, command: Any) -> list[str]:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    usage = " ".join([f"quantgate {name}", *(_shown(param) for param in arguments)])
    parts = [f"## `{usage}` {{ #{name} }}"]
    for paragraph in _sentences(command):
        example = re.fullmatch(r"Examples?: (.*)", paragraph)
        parts.append(f"```bash\n{example.group(1)}\n```" if example else paragraph)
    rows = [(_names(param), _value(param), _default(param), str(param.help or "")) for param in command.params]
    return [*parts, table(("argument or option", "value", "default", "meaning"), rows)] if rows else parts


def _sentences(command: Any) -> list[str]:
    """Return the paragraphs of a command's help, each on one line."""
    return [" ".join(paragraph.split()) for paragraph in str(command.help or "").split("\n\n")]


def _shown(param: Any) -> str:
    shown = str(param.metavar or param.name.upper())
    return shown if param.required else f"[{shown}]"


def _names(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{param.metavar or param.name.upper()}`"
    return ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))


def _value(param: Any) -> str:
    if param.param_type_name == "argument" or getattr(param, "is_flag", False):
        return ""
    choices = getattr(getattr(param, "bare_type", None), "choices", None)
    return ", ".join(f"`{choice}`" for choice in choices) if choices else f"`{param.metavar or param.name.upper()}`"


def _default(param: Any) -> str:
    if param.required:
        return "**required**"
    if getattr(param, "is_flag", False):
        return f"`{param.opts[0]}`" if param.default else ""
    return "" if param.default in (None, "", ()) else f"`{param.default}`"
