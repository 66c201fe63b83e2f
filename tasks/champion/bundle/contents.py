"""Members of a bundle: the record, and the arrays that the verdicts on the winner are computed from."""

from __future__ import annotations

import functools
import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from tasks.champion.bundle.statement import Signer, sealed, statement_of
from tasks.champion.signed_evidence.envelope import RECORD, STATEMENT
from validators.records.bundle import EvidenceRecord
from validators.records.latencies import Latency
from validators.records.measurements import Accuracy
from validators.records.run import Trial

CONFIRMATION, CLUSTERS = "samples/confirmation.npy", "samples/clusters.npy"
_LOCKS = Path(__file__).parents[3] / "requirements"


@dataclass
class Members:
    """Members of a bundle by name, as they are added; files are read at once."""

    found: dict[str, bytes] = field(default_factory=dict)

    def file(self, path: Path, name: str) -> Path:
        """Add a file; return its name as the path that records have."""
        self.found[name] = path.read_bytes()
        return Path(name)

    def array(self, array: NDArray[Any], name: str) -> None:
        """Add an array."""
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        self.found[name] = buffer.getvalue()

    def accuracy(self, accuracy: Accuracy, folder: str, *, with_rows: bool) -> Accuracy:
        """Add the rows of an accuracy; outputs are not kept."""
        return replace(
            accuracy,
            scores_path=self.file(accuracy.scores_path, f"{folder}/scores.npy") if with_rows else Path(),
            finite_path=self.file(accuracy.finite_path, f"{folder}/finite.npy"),
            noise_path=self.file(accuracy.noise_path, f"{folder}/noise.npy") if accuracy.noise_path else None,
            outputs_path=None,
        )

    def latency(self, latency: Latency, name: str) -> Latency:
        """Add the times of a latency."""
        return replace(latency, samples_path=self.file(latency.samples_path, f"latency/{name}.npz"))

    def trial(self, trial: Trial, *, with_rows: bool) -> Trial:
        """Add all figures of a trial; its artifact is named, not kept."""
        variant, confirmed, champion = trial.variant, trial.confirmed, trial.beside_champion
        assert variant and trial.accuracy and trial.coverage
        if variant.engine:
            engine = variant.engine
            bare = replace(engine, path=Path(engine.path.name), log=Path(engine.log.name), timing_cache=None)
            variant = replace(variant, engine=bare)
        if confirmed:
            confirmed = replace(
                confirmed,
                latency=self.latency(confirmed.latency, "confirmation") if confirmed.latency else None,
                beside_fp16=self.latency(confirmed.beside_fp16, "confirmation_fp16") if confirmed.beside_fp16 else None,
            )
        if champion:
            champion = replace(
                champion,
                accuracy=self.accuracy(champion.accuracy, "champion", with_rows=with_rows),
                latency=self.latency(champion.latency, "champion"),
            )
        kernels = trial.coverage.kernels_path
        return replace(
            trial,
            variant=replace(variant, path=Path(variant.path.name)),
            accuracy=self.accuracy(trial.accuracy, "winner", with_rows=with_rows),
            coverage=replace(
                trial.coverage, kernels_path=self.file(kernels, "coverage/kernels.json") if kernels else None
            ),
            latencies=tuple(self.latency(one, f"point{index}") for index, one in enumerate(trial.latencies)),
            beside_fp16=self.latency(trial.beside_fp16, "beside_fp16") if trial.beside_fp16 else None,
            beside_champion=champion,
            confirmed=confirmed,
        )


def add_samples(
    members: Members, confirmation: NDArray[np.bool_], slices: Mapping[str, NDArray[Any]], clusters: NDArray[Any] | None
) -> tuple[tuple[str, ...], bool]:
    """Add the split, slices and clusters of the evaluation samples; return the slices' names, and True if there are clusters.

    Keys of clusters, which may be people, become their ranks.
    """
    members.array(confirmation, CONFIRMATION)
    for index, array in enumerate(slices.values()):
        members.array(np.asarray(array), slice_member(index))
    if clusters is not None:
        members.array(np.unique(clusters, return_inverse=True)[1].reshape(-1), CLUSTERS)
    return tuple(slices), clusters is not None


def slice_member(index: int) -> str:
    """Return the name of the member with the group of each sample in a slice."""
    return f"samples/slice{index}.npy"


def sealed_members(members: Members, record: EvidenceRecord, signer: Signer | None) -> dict[str, bytes]:
    """Return all members: those that were added, the record, and the statement on them."""
    if signer is not None:
        record = replace(record, signer=signer.public)
    found = members.found | {RECORD: record_text(record).encode("utf-8")}
    return found | {STATEMENT: sealed(statement_of(record, found), signer)}


@functools.cache
def record_type() -> TypeAdapter[EvidenceRecord]:
    """Return the reader and writer of records."""
    return TypeAdapter(EvidenceRecord)


def record_text(record: EvidenceRecord) -> str:
    """Return a record as JSON; NaN and infinity stay what they are."""
    document = record_type().dump_python(record, mode="json")
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=True)


def lock_digests() -> dict[str, str]:
    """Return the sha256 of each lock file, by name; empty for an installed wheel, which has none."""
    files = sorted(_LOCKS.glob("*.txt")) if _LOCKS.is_dir() else []
    return {f"requirements/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def installed_digest() -> str:
    """Return the sha256 of the names and versions of all installed distributions."""
    # Each access to `metadata` parses the whole file.
    described = (one.metadata for one in metadata.distributions())
    found = sorted({f"{one['Name']}=={one['Version']}" for one in described})
    return hashlib.sha256("\n".join(found).encode()).hexdigest()
