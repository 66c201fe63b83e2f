"""Command that verifies the evidence of a run, offline."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import prepared
from tasks.run.settings import state_folder, tracking_uri
from validators.errors import EXIT_OK, JobError
from validators.records.answer import CommandAnswer, Table

EXIT_UNSOUND = 1
_MARKS = {True: "sound", False: "FAILED", None: "not verified"}


def verify(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="evidence.zip, a version's folder, or models:/...")],
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="Public key (PEM) that must have signed it.")
    ] = None,
    artifacts: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder with the files that it is about.")
    ] = None,
) -> CommandAnswer:
    """Verify the evidence of a run, offline.

    Computes each verdict again from the kept samples, and checks digests and signature. Exit code 0: nothing failed; 1: a
    part failed, which is named.

    Example: quantgate verify evidence.zip --key quantgate.pem
    """
    from tasks.champion.bundle import verify as bundles

    try:
        pem = key.read_text(encoding="ascii") if key else None
    except (OSError, ValueError) as error:
        raise JobError(found=f"--key {key}: {error}", expected="a public key in PEM", fix="correct the path") from error
    if bundle.startswith("models:/"):
        with tempfile.TemporaryDirectory(prefix="quantgate-") as folder:
            parts = bundles.verify(_downloaded(bundle, Path(folder)), key=pem, artifacts=artifacts)
    else:
        parts = bundles.verify(Path(bundle), key=pem, artifacts=artifacts)
    failed = next((part for part in parts if part.is_sound is False), None)
    summary = f"{bundle}: FAILED at {failed.part}: {failed.told}" if failed else f"{bundle}: nothing failed"
    rows = [(part.part, _MARKS[part.is_sound], part.told) for part in parts]
    table = Table([("Part", "Verified", "Found"), *rows], folded=frozenset({"Part", "Found"}))
    document = {"bundle": bundle, "is_sound": failed is None, "parts": [asdict(part) for part in parts]}
    return CommandAnswer(document, (table, summary), EXIT_UNSOUND if failed else EXIT_OK)


def _downloaded(uri: str, folder: Path) -> Path:
    """Download a version from the registry that runs use; return its folder.

    Raises:
        JobError: the registry has no such version.
    """
    prepared()
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException

    from tasks.registry.mlflow_registry import connect, registry_call

    try:
        with connect(tracking_uri(state_folder())):
            return Path(registry_call(download_artifacts, artifact_uri=uri, dst_path=str(folder)))
    except MlflowException as error:
        raise JobError(
            found=f"{uri}: {str(error).splitlines()[0]}",
            expected="a registered version, such as models:/fraud-quantized@champion-ort-cpu",
            fix="correct the address, or set MLFLOW_TRACKING_URI",
        ) from error
