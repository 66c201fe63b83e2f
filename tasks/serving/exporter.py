"""Exporters: formats in which other programs get a registered version. Each engine's room has those of its versions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from validators.errors import JobError
from validators.target_facts import TargetFacts
from validators.targets import built_in_engines, facts_of, facts_of_provider

# Characters of registry names that the folder names of servers must not have.
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True)
class RegisteredVersion:
    """A registered version with its artifacts, checked, in a folder; `digest` is that of its variant."""

    uri: str
    model: str
    candidate: str
    digest: str
    artifacts: Path

    @property
    def name(self) -> str:
        """The model's name for files and folders."""
        return _UNFIT.sub("_", self.model)

    @property
    def recipe(self) -> str:
        """The candidate without its engine, for names of files."""
        return _UNFIT.sub("_", self.candidate.partition("@")[0])

    @property
    def origin(self) -> dict[str, str]:
        """The version, its candidate and the digest of its variant."""
        return {"version": self.uri, "candidate": self.candidate, "variant_sha256": self.digest}

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest of the version."""
        found: dict[str, Any] = json.loads((self.artifacts / "manifest.json").read_text(encoding="utf-8"))
        return found

    @property
    def variant(self) -> Path:
        """The folder of the variant's files."""
        return self.artifacts / "variant"

    @property
    def files(self) -> dict[str, Path]:
        """The variant's files by name."""
        return {name: self.variant / name for name in self.manifest["files"]}


@dataclass(frozen=True)
class Written:
    """Content of an exported folder: files to move there, or texts, by their path in it.

    `notes` are the parts of the approval that the format cannot hold.
    """

    contents: Mapping[str, Path | str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exporter:
    """A format of an engine's versions.

    `write` gets the version, the folder where its content will lie, and the largest batch that was asked for, if any. It raises
    JobError where the format cannot hold the version. `in_repository`: the folder is one of a server's repository, and gets the
    name of the model.
    """

    write: Callable[[RegisteredVersion, Path, int | None], Written]
    in_repository: bool = False


def exporter_of(option: str, manifest: Mapping[str, Any]) -> Exporter:
    """Return the exporter that an option of `quantgate export` asks for.

    Raises:
        JobError: the engine of the version has none.
    """
    found: Mapping[str, Exporter] = exports_of(manifest).EXPORTS
    if option in found:
        return found[option]
    able = [name for name in built_in_engines() if option in _exports(facts_of(name)).EXPORTS]
    raise JobError(
        found=f"a variant that was approved with {manifest.get('runtime', 'onnxruntime')}",
        expected=f"one of {' or '.join(able)} for {option}: another program would run it where it was never measured",
        fix=f"export it with {' or '.join((*found, '--out'))}",
    )


def exports_of(manifest: Mapping[str, Any]) -> ModuleType:
    """Return the module `exports` of the engine of a version: its `EXPORTS`, and `program` and `settings` for the README."""
    return _exports(facts_of_provider(manifest["session"]["provider"]))


def _exports(facts: TargetFacts) -> ModuleType:
    return import_module(f"tasks.engines.{facts.room}.exports")
