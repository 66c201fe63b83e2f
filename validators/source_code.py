"""Source code as an input: the digest of a file of ours or of a user's and of what it imports, read without importing it."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata
from importlib.machinery import all_suffixes
from importlib.util import find_spec
from pathlib import Path
from threading import Lock

from validators.digests import digest_file, digest_text, digest_values

PACKAGES = ("flows", "tasks", "validators")
# Fields of a syntax tree that hold statements, or what holds statements.
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
# Python 3.11 counts the depth of the trees that it builds for all threads together, and fails (CPython issue 106905).
_PARSING = Lock()
_QUOTED = re.compile(r"""["'](\w+(?:\.\w+)+)["']""", re.ASCII)
# A file's name with its suffix, in quotes.
_FILE_NAME = re.compile(r"""["']([\w./][\w ./-]{0,200}\.\w{1,20})["']""", re.ASCII)


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
            references = references_of(self._read(file))
            package = file.parent.relative_to(self.root).parts if file.is_relative_to(self.root) else ()
            names = {text for text in references.texts if text in self.modules}
            beside = [
                ".".join((*package, text.removesuffix(".py"))) for text in references.texts if text.endswith(".py")
            ]
            names |= {name for name in beside if name in self.modules}
            names |= references.absolute(package)
            names |= {name.rsplit(".", depth)[0] for name in names for depth in range(name.count(".") + 1)}
            self._imports[file] = frozenset(name for name in names if name in self.modules and self._has_code(name))
        return self._imports[file]

    def _has_code(self, module: str) -> bool:
        file = self.modules[module]
        return file.name != "__init__.py" or not references_of(self._read(file)).is_only_docstring

    def _read(self, file: Path) -> str:
        if file not in self._texts:
            self._texts[file] = file.read_text(encoding="utf-8")
        return self._texts[file]


# The code that runs.
OURS = SourceTree(Path(__file__).parents[1])


@dataclass(frozen=True)
class References:
    """Names that one file mentions: imports as (level, module, name), and quoted dotted names."""

    imports: frozenset[tuple[int, str, str]]
    texts: frozenset[str]
    is_only_docstring: bool

    def absolute(self, package: Sequence[str]) -> frozenset[str]:
        """Return the dotted names of the imports, with what `from` imports, of a file in a package of these parts."""
        names = set()
        for level, module, name in self.imports:
            above = package[: len(package) - level + 1] if level else ()
            names.add(".".join(part for part in (*above, module, name) if part))
        return frozenset(names)


# Tests read many copies of the project that differ in one file each.
@cache
def references_of(text: str) -> References:
    """Return the names that a source text mentions.

    Raises:
        SyntaxError: it is no Python.
    """
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
    return References(frozenset(imports), frozenset(_QUOTED.findall(text)), is_only_docstring)


def digest_user_code(module: str, files: Sequence[Path] = ()) -> str:
    """Return the sha256 of the code of an importable module or, if there are any, of `files`, which were imported by path.

    It covers the files that the code imports, directly or not: those of the module's own distribution, those on the path that
    no distribution installed, and those of editable installs. Of any other distribution it covers the version. It also covers
    data files whose names are quoted in a source, relative to the folder of the source. The standard library does not count.
    """
    installed = _installed(tuple(sys.path))
    own = set() if files else set(installed.get(module.partition(".")[0], ()))
    pending = [(file, "") for file in files] or list(_files_of(module))
    sources, data, releases, names = set[Path](), set[Path](), set(own), set[str]()
    while pending:
        file, package = pending.pop()
        if file in sources:
            continue
        sources.add(file)
        text = file.read_text(encoding="utf-8", errors="replace") if file.suffix == ".py" else ""
        data |= {path for name in _FILE_NAME.findall(text) if (path := file.parent / name).is_file()}
        new = _imports_of(text, package) - names
        names |= new
        for name in new:
            top = name.partition(".")[0]
            if _is_followed(top, own, installed):
                pending += _files_of(name)
            else:
                releases |= set(installed.get(top, ()))
    versions = sorted(f"{name}=={metadata.version(name)}" for name in releases)
    return digest_values(
        sorted((file.name, digest_file(file)) for file in sources | data), versions, "" if files else module
    )


# Reading the file lists of all distributions takes half a second.
@cache
def _installed(_path: tuple[str, ...]) -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


def _imports_of(text: str, package: str) -> frozenset[str]:
    try:
        return references_of(text).absolute(package.split(".") if package else ())
    except (SyntaxError, ValueError):  # a file that is never executed
        return frozenset()


def _is_followed(top: str, own: set[str], installed: Mapping[str, Sequence[str]]) -> bool:
    """Return True if a package is the user's code rather than a release: of the own distribution, of none, or editable."""
    if top in sys.stdlib_module_names:
        return False
    names = set(installed.get(top, ()))
    return not names or bool(names & own) or (top not in PACKAGES and any(map(_is_editable, names)))


def _is_editable(distribution: str) -> bool:
    told = metadata.distribution(distribution).read_text("direct_url.json")
    return bool(json.loads(told or "{}").get("dir_info", {}).get("editable"))


def _files_of(module: str) -> Iterator[tuple[Path, str]]:
    """Yield the files of a module and of the packages that it lies in, each with the package of its relative imports."""
    top, *inside = module.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):  # loaded without a spec
        return
    if spec is None:
        return
    if spec.has_location and spec.origin and Path(spec.origin).is_file():
        yield Path(spec.origin), spec.parent or ""
    folders, package = [Path(folder) for folder in spec.submodule_search_locations or ()], top
    for part in inside:
        places = [folder / part for folder in folders]
        files = (place.with_name(f"{part}{suffix}") for place in places for suffix in all_suffixes())
        found = next((file for file in (*(place / "__init__.py" for place in places), *files) if file.is_file()), None)
        is_package = found is None or found.name == "__init__.py"
        if found:
            yield found, f"{package}.{part}" if is_package else package
        folders, package = [place for place in places if is_package and place.is_dir()], f"{package}.{part}"
