"""The record of an evidence bundle: a run's inputs, the figures that judged its winner, and what was promoted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from validators.records.measurements import Accuracy
from validators.records.run import CalibrationFacts, Inventory, SourceResult, Trial
from validators.records.verdicts import SignOff


@dataclass(frozen=True)
class DataFacts:
    """A data file: its origin if it was fetched, digest and number of samples."""

    uri: str | None
    digest: str
    rows: int


@dataclass(frozen=True)
class CodeFacts:
    """The code of a run: quantgate's version, the digest of its sources, digests of lock files and of installed versions."""

    version: str
    digest: str
    locks: dict[str, str]
    installed: str
    packages: dict[str, str]


@dataclass(frozen=True)
class PromotionDecision:
    """The decision of a run on its best variant, made before anything is registered.

    With `promotes` the variant is to become the champion of `model`, the registered model of variants, on `target`. `replaces`
    is the version of the champion that it was compared with; None without one, or if the champion is the same artifact.
    `sign_off` is a person's answer, if the job asks for one; otherwise the gates decided.
    """

    promotes: bool
    model: str
    target: str
    replaces: str | None = None
    sign_off: SignOff | None = None


@dataclass(frozen=True)
class EvidenceRecord:
    """The content of `record.json`; paths in its records are names of members.

    `job` has the candidates by name and the source by version. `trial` is the winner, or the best that was compared with the
    champion; None if nothing passed. `manifest` is the text that consumers check files against. `rows_left_out`: the rows of
    the user's metric hold outputs and labels, and stayed where they are. `signer` is the public key in PEM, or empty.
    """

    format: int
    decision: PromotionDecision
    job: dict[str, Any]
    source: SourceResult
    data: dict[str, DataFacts]
    inventory: Inventory
    code: CodeFacts
    calibration: CalibrationFacts | None
    run_id: str
    finished_at: str
    baseline: Accuracy | None = None
    baseline_bytes: int = 0
    trial: Trial | None = None
    manifest: str = ""
    rows_left_out: bool = False
    slices: tuple[str, ...] = ()
    has_clusters: bool = False
    signer: str = ""
