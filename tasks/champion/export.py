"""Export of a registered version: MLflow's folder, or one for a model server or another program that runs decoders."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.champion.readback import check_folder, download_version
from tasks.engines.openvino_decoder.export import make_openvino_genai
from tasks.registry.champion_slot import TAG, VARIANT_DIGEST, ChampionSlot, find_place, number_at, own_versions
from tasks.registry.mlflow_registry import connect
from tasks.run.settings import state_folder, tracking_uri
from tasks.serving.checkpoint.compressed_tensors import CompressedTensors
from tasks.serving.checkpoint.export import WrittenCheckpoint, make_checkpoint
from tasks.serving.checkpoint.formats import CheckpointFormat
from tasks.serving.checkpoint.modelopt import ModelOpt
from tasks.serving.folder import check_own, write_folder
from tasks.serving.gguf.export import make_gguf
from tasks.serving.handoff import (
    check_decoder,
    genai_notes,
    genai_readme,
    gguf_notes,
    gguf_readme,
    openvino_genai_readme,
    tensorrt_llm_notes,
    tensorrt_llm_readme,
    vllm_notes,
    vllm_readme,
)
from tasks.serving.openvino import CONFIG, model_server_config
from tasks.serving.triton import ONNX, check_served, tensors_of, triton_model
from validators.errors import JobError
from validators.target_facts import GENERATORS, OPENVINO_DECODER

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Characters of registry names that the folder names of servers must not have.
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True)
class Exported:
    """Result of an export: the version, its files below `folder`, and the parts of the approval that the format cannot hold."""

    uri: str
    candidate: str
    folder: Path
    files: tuple[str, ...]
    notes: tuple[str, ...]


def export_version(model: str, target: str, folder: Path, version: int | None = None) -> Exported:
    """Write all artifacts of the champion, or of a version, to `folder`, from which MLflow can load the model.

    Raises:
        JobError: no such model or version, no champion, or `folder` holds other files.
        VersionUnsound: the version's files differ from those that were registered.
        InfrastructureError: the registry does not answer, or `folder` cannot be written.
    """
    check_own(folder)
    with _fetched(model, target, version) as fetched:
        root = fetched.artifacts.parent
        contents = {str(path.relative_to(root)): path for path in sorted(root.rglob("*")) if path.is_file()}
        return fetched.write(folder, contents, folder.absolute().parent)


def export_triton(
    model: str, target: str, repository: Path, version: int | None = None, max_batch: int | None = None
) -> Exported:
    """Write the champion, or a version, as a model of a Triton repository: `<model>/config.pbtxt`, and the files in `1`.

    `max_batch` replaces the largest measured batch size.

    Raises:
        JobError: no such model or version, no champion, other files where the model would be written, or a model that Triton
            cannot serve.
        VersionUnsound: the version's files differ from those that were registered.
        InfrastructureError: the registry does not answer, or the folder cannot be written.
    """
    with _fetched(model, target, version) as fetched:
        folder = repository.absolute() / fetched.name
        check_own(folder)
        check_served(fetched.manifest)
        tensors = tensors_of(fetched.artifacts / "variant" / ONNX)
        made = triton_model(fetched.name, fetched.manifest, tensors, folder, about=fetched.about, max_batch=max_batch)
        contents: dict[str, Path | str] = {f"1/{new}": fetched.file(old) for new, old in made.files.items()}
        contents["config.pbtxt"] = made.config
        # Staged outside the repository: a polling server would take a partial folder for a model.
        return fetched.write(folder, contents, repository.absolute().parent, made.notes)


def export_model_server(model: str, target: str, folder: Path, version: int | None = None) -> Exported:
    """Write the champion, or a version, for OpenVINO Model Server: `config.json`, and the files in `<model>/1` beside it.

    Raises:
        JobError: no such model or version, no champion, `folder` holds other files, or the version is not of `openvino`.
        VersionUnsound: the version's files differ from those that were registered.
        InfrastructureError: the registry does not answer, or the folder cannot be written.
    """
    check_own(folder)
    with _fetched(model, target, version) as fetched:
        config, notes = model_server_config(fetched.name, fetched.manifest)
        contents: dict[str, Path | str] = {
            f"{fetched.name}/1/{file}": fetched.file(file) for file in fetched.manifest["files"]
        }
        contents[CONFIG] = config
        return fetched.write(folder, contents, folder.absolute().parent, notes)


def export_genai(model: str, target: str, folder: Path, version: int | None = None) -> Exported:
    """Write the champion, or a version, as a folder that onnxruntime-genai or OpenVINO GenAI opens, as approved, with a README.

    Raises:
        JobError: no such model or version, no champion, `folder` holds other files, the version is no decoder, or OpenVINO's
            form of it cannot be made.
        VersionUnsound: the version's files differ from those that were registered.
        InfrastructureError: the registry does not answer, or the folder cannot be written.
    """
    check_own(folder)
    with _fetched(model, target, version) as fetched:
        check_decoder(fetched.manifest, GENERATORS)
        notes, contents = genai_notes(fetched.manifest), dict[str, Path | str]()
        if fetched.manifest["session"]["provider"] == OPENVINO_DECODER:
            made = fetched.artifacts / "openvino-genai"
            make_openvino_genai(fetched.artifacts / "variant", made, fetched.manifest["session"]["provider_options"])
            contents |= {path.name: path for path in sorted(made.iterdir())}
            contents["README.md"] = openvino_genai_readme(fetched.name, fetched.origin, fetched.manifest, notes)
        else:
            contents |= {file: fetched.file(file) for file in fetched.manifest["files"]}
            contents["README.md"] = genai_readme(fetched.name, fetched.origin, notes)
        return fetched.write(folder, contents, folder.absolute().parent, notes)


def export_gguf(model: str, target: str, folder: Path, version: int | None = None) -> Exported:
    """Write the champion, or a version, as a GGUF file for llama.cpp, with a README.

    Raises:
        JobError: no such model or version, no champion, `folder` holds other files, or no GGUF file can hold the version with
            the weights that were judged.
        VersionUnsound: the version's files differ from those that were registered.
        InfrastructureError: the registry does not answer, or the folder cannot be written.
    """
    check_own(folder)
    with _fetched(model, target, version) as fetched:
        check_decoder(fetched.manifest)
        recipe = fetched.candidate.partition("@")[0]
        file = fetched.artifacts / f"{fetched.name}-{_UNFIT.sub('_', recipe)}.gguf"
        made = make_gguf(fetched.artifacts / "variant", file, fetched.name, fetched.origin)
        notes = gguf_notes(made, fetched.manifest)
        readme = gguf_readme(fetched.name, fetched.origin, made, notes)
        return fetched.write(folder, {file.name: file, "README.md": readme}, folder.absolute().parent, notes)


def export_vllm(model: str, target: str, folder: Path, version: int | None = None) -> Exported:
    """Write the champion, or a version, as a checkpoint of compressed-tensors for vLLM, with a README.

    Raises:
        JobError: no such model or version, no champion, `folder` holds other files, or no such checkpoint can hold the version
            with the weights that were judged.
        VersionUnsound: the version's files differ from those that were registered.
        InfrastructureError: the registry does not answer, or the folder cannot be written.
    """
    return _export_checkpoint(model, target, folder, version, CompressedTensors(), vllm_notes, vllm_readme)


def export_tensorrt_llm(model: str, target: str, folder: Path, version: int | None = None) -> Exported:
    """Write the champion, or a version, as a checkpoint of ModelOpt for TensorRT-LLM, which was never executed, with a README.

    Raises:
        JobError, VersionUnsound, InfrastructureError: see `export_vllm`.
    """
    return _export_checkpoint(model, target, folder, version, ModelOpt(), tensorrt_llm_notes, tensorrt_llm_readme)


def _export_checkpoint(
    model: str,
    target: str,
    folder: Path,
    version: int | None,
    form: CheckpointFormat,
    notes_of: Callable[[WrittenCheckpoint, Mapping[str, Any]], tuple[str, ...]],
    readme_of: Callable[[str, Mapping[str, str], WrittenCheckpoint, tuple[str, ...]], str],
) -> Exported:
    check_own(folder)
    with _fetched(model, target, version) as fetched:
        check_decoder(fetched.manifest)
        made = make_checkpoint(fetched.artifacts / "variant", fetched.artifacts / "checkpoint", fetched.origin, form)
        notes = notes_of(made, fetched.manifest)
        readme = readme_of(fetched.name, fetched.origin, made, notes)
        return fetched.write(folder, {**made.files, "README.md": readme}, folder.absolute().parent, notes)


@dataclass(frozen=True)
class _Fetched:
    """A registered version, with its artifacts, checked, in a folder."""

    uri: str
    name: str
    found: Any
    artifacts: Path

    @property
    def candidate(self) -> str:
        return str(self.found.tags.get(f"{TAG}candidate", ""))

    @property
    def origin(self) -> dict[str, str]:
        """The version, its candidate and the digest of its variant."""
        return {
            "version": self.uri,
            "candidate": self.candidate,
            "variant_sha256": str(self.found.tags[VARIANT_DIGEST]),
        }

    @property
    def about(self) -> str:
        """The first line of a configuration."""
        return f"Written by quantgate: {self.candidate}, {self.uri}, sha256 {self.found.tags[VARIANT_DIGEST]}"

    @property
    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.artifacts / "manifest.json").read_text(encoding="utf-8"))
        return found

    def file(self, name: str) -> Path:
        return self.artifacts / "variant" / name

    def write(
        self, folder: Path, contents: Mapping[str, Path | str], beside: Path, notes: tuple[str, ...] = ()
    ) -> Exported:
        """Write the folder; see `write_folder`."""
        beside.mkdir(parents=True, exist_ok=True)
        write_folder(folder, contents, {**self.origin, **({"not_carried_over": notes} if notes else {})}, beside)
        return Exported(self.uri, self.candidate, folder, tuple(contents), notes)


@contextmanager
def _fetched(model: str, target: str, version: int | None) -> Iterator[_Fetched]:
    """Download a version and check it against its tags and manifest; its files are removed at the end of the block."""
    with connect(tracking_uri(state_folder())) as client, tempfile.TemporaryDirectory(prefix="quantgate-") as scratch:
        place, found = _find_version(client, model, target, version)
        uri = place.uri(str(found.version))
        artifacts = download_version(uri, Path(scratch))
        check_folder(uri, artifacts, found.tags)
        yield _Fetched(uri, _UNFIT.sub("_", place.name), found, artifacts)


def _find_version(client: MlflowClient, model: str, target: str, wanted: int | None) -> tuple[ChampionSlot, Any]:
    place = find_place(client, model, target)
    number = str(wanted) if wanted is not None else number_at(client, place, place.alias)
    versions = own_versions(client, place)
    if number is None:
        raise JobError(
            found=f"{place.name} has no version with the alias {place.alias}",
            expected="a champion",
            fix=f"name a version with --version: one of {', '.join(versions)}",
        )
    if number not in versions:
        raise JobError(
            found=f"version {number} of {place.name} is not a variant for {place.target}",
            expected=f"one of {', '.join(versions)}",
            fix="correct the version",
        )
    return place, versions[number]
