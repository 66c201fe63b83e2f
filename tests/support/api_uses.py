"""What source files take from an API whose objects are typed `Any`: read from their syntax, by the names that they go by."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Members that arrays, files and records have as well: these are told apart by the table alone.
COMMON = {"name", "shape", "dtype"}


@dataclass(frozen=True)
class Use:
    """A member that is read, written, called or overridden; of a call the count of arguments and their names.

    `owner` is the class that it is a member of, "" for the module itself.
    """

    place: str
    owner: str
    member: str
    kind: str
    positional: int = 0
    named: tuple[str, ...] = ()


def gives(api: dict[str, Any], owner: str, method: str) -> str | None:
    """The class that a method's result has, where it is one of the API's."""
    found = api["classes"].get(owner, {}).get("methods", {}).get(method, [])
    return next((text.rpartition(" -> ")[2] for text in found if text.rpartition(" -> ")[2] in api["classes"]), None)


class Reader:
    """Finds the uses in one file; `receivers` gives the class of what a variable or attribute is called there."""

    def __init__(self, path: Path, api: dict[str, Any], receivers: dict[str, str]) -> None:
        self.path, self.api, self.receivers = path, api, receivers
        self.met: set[str] = set()
        self.tree = ast.parse(path.read_text(encoding="utf-8"))

    def owner(self, node: ast.expr) -> str | None:
        """The class of an expression; "" for the module, "class X" for a class or enum itself; None for anything else."""
        text = ast.unparse(node)
        if text in ("api", "self._api"):
            return ""
        if text in self.receivers:
            self.met.add(text)
            return self.receivers[text]
        if isinstance(node, ast.Attribute) and self.owner(node.value) == "":
            return f"class {node.attr}"
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and (inner := self.owner(node.func.value)):
                return gives(self.api, inner, node.func.attr)
            if (made := self.owner(node.func)) is not None and made.startswith("class "):
                return made.removeprefix("class ")
        return None

    def uses(self) -> Iterator[Use]:
        """In order of lines, calls before what they are made of."""
        calls = {id(node.func): node for node in ast.walk(self.tree) if isinstance(node, ast.Call)}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ClassDef):
                yield from self._overrides(node)
            if not isinstance(node, ast.Attribute) or (owner := self.owner(node.value)) is None:
                continue
            place = f"{self.path.name}:{node.lineno}"
            call = calls.get(id(node))
            if call is None:
                yield Use(place, owner, node.attr, "write" if isinstance(node.ctx, ast.Store) else "read")
            else:
                named = tuple(word.arg or "**" for word in call.keywords)
                # As many as a tuple that is unpacked has cannot be seen; the shapes of a profile are three.
                count = sum(3 if isinstance(one, ast.Starred) else 1 for one in call.args)
                yield Use(place, owner, node.attr, "call", count, named)

    def _overrides(self, node: ast.ClassDef) -> Iterator[Use]:
        bases = [found.removeprefix("class ") for base in node.bases if (found := self.owner(base))]
        for member in node.body:
            if bases and isinstance(member, ast.FunctionDef) and member.name != "__init__":
                names = tuple(argument.arg for argument in member.args.args)
                yield Use(f"{self.path.name}:{member.lineno}", bases[0], member.name, "override", len(names), names)

    def unknown(self, ours: frozenset[str]) -> list[str]:
        """Members called as the API's are, of something that is neither the API's by name nor one of `ours`."""
        members = {name for one in self.api["classes"].values() for name in (*one["methods"], *one["properties"])}
        found = []
        for node in ast.walk(self.tree):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in members - COMMON - {"__init__"}
                and self.owner(node.value) is None
            ):
                text = ast.unparse(node.value)
                if text not in ours and text != "self":
                    found.append(f"{self.path.name}:{node.lineno}: {text}.{node.attr}")
        return found


def fault(use: Use, api: dict[str, Any]) -> str | None:
    """What is wrong with a use, by the API's own names and arguments; None if nothing is."""
    what = f"{use.place}: {use.owner or 'module'}.{use.member}"
    if use.owner == "" or use.owner.startswith("class "):
        return _fault_of_name(use, api, what)
    known = api["classes"].get(use.owner)
    if known is None:
        return f"{what}: no such class"
    overloads = known["methods"].get(use.member)
    if use.kind in ("read", "write"):
        return None if use.member in known["properties"] else f"{what}: no such property"
    if overloads is None:
        return f"{what}: no such method"
    if use.kind == "override":
        fits = any(use.named == tuple(_arguments(text)) for text in overloads)
        return None if fits else f"{what}: arguments {use.named}, expected {overloads}"
    # `self` is given by the object.
    fits = any(_takes(_arguments(text)[1:], use) for text in overloads)
    return None if fits else f"{what}: {use.positional} arguments and {use.named}, expected {overloads}"


def _fault_of_name(use: Use, api: dict[str, Any], what: str) -> str | None:
    if use.owner == "":
        if use.member == "__version__" or use.member == "__name__":
            return None
        if use.kind == "call":  # a class is made
            overloads = api["classes"].get(use.member, {}).get("methods", {}).get("__init__", [])
            fits = any(_takes(_arguments(text)[1:], use) for text in overloads)
            return None if fits else f"{what}: {use.positional} arguments, expected {overloads}"
        return None if use.member in api["classes"] or use.member in api["enums"] else f"{what}: no such name"
    name = use.owner.removeprefix("class ")
    if name in api["enums"]:
        return None if use.member in api["enums"][name] else f"{what}: no such member"
    overloads = api["classes"].get(name, {}).get("methods", {}).get(use.member, [])
    return None if any(_takes(_arguments(text), use) for text in overloads) else f"{what}: expected {overloads}"


def _arguments(text: str) -> list[str]:
    return [one for one in text.rpartition(" -> ")[0].split(", ") if one]


def _takes(arguments: list[str], use: Use) -> bool:
    needed = [name for name in arguments[use.positional :] if not name.endswith("?") and name not in use.named]
    names = {name.removesuffix("?") for name in arguments[use.positional :]}
    return use.positional <= len(arguments) and not needed and set(use.named) <= names
