"""Files of a built demo, and the rule that each demo is built only once."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tasks.demo.assets import Asset
from validators.digests import digest_file

Notes = dict[str, float | int | str]

CALIBRATION_FILE = "calibration.npz"
EVALUATION_FILE = "evaluation.npz"
_RECORD_FILE = "demo.json"

# Of every draw of samples.
SEED = 7


@dataclass(frozen=True)
class Demo:
    """A model that is ready to be registered, with its data. `digest` is the sha256 of the file `model_path`."""

    name: str
    model_path: Path
    calibration_path: Path
    evaluation_path: Path
    digest: str
    notes: Notes


def build_once(
    state: Path,
    name: str,
    model_file: str,
    *,
    assets: Sequence[Asset],
    sources: Sequence[Path],
    distributions: Sequence[str],
    make: Callable[[Path], Notes],
) -> Demo:
    """Return the demo `name` under `state/demo`; `make(folder)` builds it unless it was built with the same recipe before.

    The recipe consists of the digests of the assets and of the code in `sources`, the versions of the `distributions` that
    compute, and `SEED`. `make` writes `model_file`, `calibration.npz` and `evaluation.npz` into the folder.
    """
    key = _recipe_digest(assets, sources, distributions)
    folder = state / "demo" / f"{name}-{key[:16]}"
    if not (folder / _RECORD_FILE).exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
        try:
            begun = time.monotonic()
            notes = make(scratch) | {"seed": SEED}
            notes["build_seconds"] = round(time.monotonic() - begun, 1)
            record = {"digest": digest_file(scratch / model_file), "notes": notes}
            (scratch / _RECORD_FILE).write_text(json.dumps(record, indent=2, sort_keys=True), encoding="utf-8")
            # Temporary folders and safetensors files are private to their owner; the demo must be readable by others.
            for path in scratch.iterdir():
                path.chmod(0o644)
            scratch.chmod(0o755)
            _move_into_place(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    record = json.loads((folder / _RECORD_FILE).read_text(encoding="utf-8"))
    return Demo(
        name=name,
        model_path=folder / model_file,
        calibration_path=folder / CALIBRATION_FILE,
        evaluation_path=folder / EVALUATION_FILE,
        digest=str(record["digest"]),
        notes=record["notes"],
    )


def _move_into_place(scratch: Path, folder: Path) -> None:
    try:
        scratch.rename(folder)
    except OSError:
        # Another process may have built the same demo meanwhile; its result is equivalent.
        if not (folder / _RECORD_FILE).exists():
            raise


def _recipe_digest(assets: Sequence[Asset], sources: Sequence[Path], distributions: Sequence[str]) -> str:
    parts = [asset.sha256 for asset in assets] + [digest_file(source) for source in sources]
    parts += [f"{name}=={metadata.version(name)}" for name in distributions] + [str(SEED)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
