"""Source code as an input: the digest of a file and of every module of ours that it imports, read without importing it."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from threading import Lock

from validators.digests import digest_text, digest_values

PACKAGES = ("flows", "tasks", "validators")
# Fields of a syntax tree that hold statements, or what holds statements.
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
# Python 3.11 counts the depth of the trees that it builds for all threads together, and fails (CPython issue 106905).
_PARSING = Lock()
_QUOTED = re.compile(r"""["'](\w+(?:\.\w+)+)["']""", re.ASCII)


class SourceTree:
    """Our packages below one folder; each file is read and parsed at most once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._texts: dict[Path, str] = {}
        self._imports: dict[Path, frozenset[str]] = {}

    @cached_property
    def modules(self) -> dict[str, Path]:
        """The file of each module by its dotted name."""
        files = [file for package in PACKAGES for file in (self.root / package).rglob("*.py")]
        parts = {file: file.relative_to(self.root).with_suffix("").parts for file in files}
        return {".".join(names[:-1] if names[-1] == "__init__" else names): file for file, names in parts.items()}

    def closure(self, start: Path, cuts: Collection[str] = ()) -> dict[str, Path]:
        """Return the files that `start` imports, directly or not, by module; `start` itself under its module or file name.

        Imports inside functions count, those under `if TYPE_CHECKING` do not. A quoted name of a module, or of a `.py` file
        beside the one that it stands in, counts like an import: processes are started by such names. Modules that `cuts`
        names, with all below them, are left out, and so is what only they import. So is a package's `__init__.py` that has
        nothing but a docstring.
        """
        found = {next((name for name, file in self.modules.items() if file == start), start.name): start}
        pending = [start]
        while pending:
            for name in self._imported(pending.pop()) - set(found):
                if not any(f"{name}.".startswith(f"{cut}.") for cut in cuts):
                    found[name] = self.modules[name]
                    pending.append(self.modules[name])
        return dict(sorted(found.items()))

    def digest(self, start: Path, cuts: Collection[str] = ()) -> str:
        """Return the sha256 of the closure of a file."""
        return digest_values(
            [(name, digest_text(self._read(file))) for name, file in self.closure(start, cuts).items()]
        )

    def _imported(self, file: Path) -> frozenset[str]:
        """Return the modules that a file names, with the packages that they lie in."""
        if file not in self._imports:
            references = _references(self._read(file))
            package = file.parent.relative_to(self.root).parts if file.is_relative_to(self.root) else ()
            names = {text for text in references.texts if text in self.modules}
            beside = [
                ".".join((*package, text.removesuffix(".py"))) for text in references.texts if text.endswith(".py")
            ]
            names |= {name for name in beside if name in self.modules}
            for level, module, name in references.imports:
                above = package[: len(package) - level + 1] if level else ()
                base = ".".join(part for part in (*above, module) if part)
                names.add(f"{base}.{name}" if f"{base}.{name}" in self.modules else base)
            names |= {name.rsplit(".", depth)[0] for name in names for depth in range(name.count(".") + 1)}
            self._imports[file] = frozenset(name for name in names if name in self.modules and self._has_code(name))
        return self._imports[file]

    def _has_code(self, module: str) -> bool:
        file = self.modules[module]
        return file.name != "__init__.py" or not _references(self._read(file)).is_only_docstring

    def _read(self, file: Path) -> str:
        if file not in self._texts:
            self._texts[file] = file.read_text(encoding="utf-8")
        return self._texts[file]


# The code that runs.
OURS = SourceTree(Path(__file__).parents[1])


@dataclass(frozen=True)
class _References:
    """Names that one file mentions: imports as (level, module, name), and quoted dotted names."""

    imports: frozenset[tuple[int, str, str]]
    texts: frozenset[str]
    is_only_docstring: bool


# Tests read many copies of the project that differ in one file each.
@cache
def _references(text: str) -> _References:
    with _PARSING:
        tree = ast.parse(text)
    imports: set[tuple[int, str, str]] = set()
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            imports.update((0, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imports.update((node.level, node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            pending += node.orelse
        else:
            # Statements alone: a walk through every expression of the project takes a second.
            pending += [child for name in _BLOCKS for child in getattr(node, name, [])]
    is_only_docstring = len(tree.body) == (ast.get_docstring(tree) is not None)
    return _References(frozenset(imports), frozenset(_QUOTED.findall(text)), is_only_docstring)
