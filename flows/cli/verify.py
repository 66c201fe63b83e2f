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

    Computes each verdict again from the kept samples, and checks digests, signature and decision. Exit code 0: nothing
    failed; 1: a part failed, which is named.

    Example: quantgate verify evidence.zip --key quantgate.pem
    """
    from tasks.champion.bundle import verify as bundles

    pem = bundles.read_key(key) if key else None
    if bundle.startswith("models:/"):
        with tempfile.TemporaryDirectory(prefix="quantgate-") as scratch:
            folder, tags = _downloaded(bundle, Path(scratch))
            place = bundle.removeprefix("models:/")
            wanted = place if "@champion-" in place else ""
            parts = bundles.verify(folder, key=pem, artifacts=artifacts, wanted=wanted, tags=tags)
    else:
        parts = bundles.verify(Path(bundle), key=pem, artifacts=artifacts)
    failed = next((part for part in parts if part.is_sound is False), None)
    kept = next((f"; {part.told}" for part in parts if part.part == "decision" and part.is_sound is None), "")
    summary = f"{bundle}: FAILED at {failed.part}: {failed.told}" if failed else f"{bundle}: nothing failed{kept}"
    rows = [(part.part, _MARKS[part.is_sound], part.told) for part in parts]
    table = Table([("Part", "Verified", "Found"), *rows])
    document = {"bundle": bundle, "is_sound": failed is None, "parts": [asdict(part) for part in parts]}
    return CommandAnswer(document, (table, summary), EXIT_UNSOUND if failed else EXIT_OK)


def _downloaded(uri: str, folder: Path) -> tuple[Path, dict[str, str] | None]:
    """Download a version from the registry that runs use; return its folder, and its tags if it is registered by name.

    Raises:
        JobError: the registry has no such version.
    """
    prepared()
    from mlflow.exceptions import MlflowException

    from tasks.champion.signed_evidence.check import registered_as
    from tasks.registry.mlflow_registry import connect, download, registry_call

    try:
        with connect(tracking_uri(state_folder())) as client:
            found = download(uri, folder)
            name, version = registered_as(found)
            return found, registry_call(client.get_model_version, name, version).tags if name else None
    except MlflowException as error:
        raise JobError(
            found=f"{uri}: {str(error).splitlines()[0]}",
            expected="a registered version, such as models:/fraud-quantized@champion-ort-cpu",
            fix="correct the address, or set MLFLOW_TRACKING_URI",
        ) from error
