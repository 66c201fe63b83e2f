"""Verification of a bundle: digests, signature, and each verdict computed again from the samples that are kept.

It needs no server and no runtime: numpy, scipy, pydantic, PyYAML, packaging, jiwer and cryptography suffice.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from tasks.champion.bundle.arrays import check_arrays
from tasks.champion.bundle.contents import CLUSTERS, CONFIRMATION, record_type, slice_member
from tasks.champion.bundle.statement import statement_of
from tasks.champion.signed_evidence.archive import FILE, BundleUnsound, open_regular, read_archive, read_member
from tasks.champion.signed_evidence.check import (
    check_decision,
    check_manifest,
    check_promoted,
    read_document,
    registered_as,
)
from tasks.champion.signed_evidence.envelope import (
    RECORD,
    STATEMENT,
    check_members,
    compact_json,
    key_id,
    open_envelope,
)
from tasks.measure.latency.recount import recount
from tasks.measure.metrics.catalog import Options, named_metric
from tasks.measure.metrics.metric import Metric
from tasks.measure.metrics.texts import Decoder
from tasks.measure.metrics.user_metric import user_metric
from tasks.trials.judge_on_samples import (
    JudgedData,
    confirmed_of,
    figures_of,
    judge_beside,
    measured_of,
    with_confidence,
)
from validators.calibration.judge import conclude
from validators.errors import JobError
from validators.gates.catalog import GATES, PREFIX_CONFIRMED, is_from_samples, judge_gates, required_gates
from validators.gates.champion import BEATS_CHAMPION, CHAMPION_GATES
from validators.gates.verdict_rules import confidence_of_each, overall
from validators.job.job import Job
from validators.job.read_job import parse_job
from validators.records.artifact_paths import CONFIRMED
from validators.records.bundle import EvidenceRecord
from validators.records.latencies import Latency, point_labels
from validators.records.measurements import Accuracy
from validators.records.run import Trial
from validators.records.verdicts import Verdict
from validators.untrusted.paths import read_regular_file

# Sums may be added in another order on another processor.
TOLERANCE = 1e-9
_EXACT = ("outcome", "bound", "direction", "confidence", "n", "method", "counted", "disturbed")
_ROUNDED = ("value", "low", "high")
_LONGEST_WORDS = 300
_LARGEST_KEY = 10_000
# Verdicts of a record, and groups of all slices together: more take minutes to compute or to show.
_MOST_VERDICTS, _MOST_GROUPS = 1000, 10_000


@dataclass(frozen=True)
class VerifiedPart:
    """A part of a bundle, and what was found of it; `is_sound` is None for what cannot be computed from a bundle."""

    part: str
    is_sound: bool | None
    told: str


def verify(
    bundle: Path,
    *,
    key: str | None = None,
    artifacts: Path | None = None,
    wanted: str = "",
    tags: Mapping[str, str] | None = None,
) -> tuple[VerifiedPart, ...]:
    """Verify a bundle: the zip, or the folder of a promoted version that has one.

    `key` is the public key in PEM that must have signed it; `artifacts` a folder with the files that it is about. `wanted` is
    the model that it must be for, `name` or `name@champion-target`; for a folder by default the name by which MLflow
    downloaded it. `tags` are those of the registered version. A bundle with files has to promote them. The first part that
    makes the rest meaningless ends the verification.
    """
    parts: list[VerifiedPart] = []
    try:
        folder = None
        if bundle.is_dir():
            found = next((path for path in (bundle / FILE, bundle / "artifacts" / FILE) if path.exists()), None)
            if found is None:
                return (VerifiedPart("archive", False, f"found no {FILE} in {bundle}"),)
            variant = found.with_name("variant")
            bundle, artifacts = found, artifacts or (variant if variant.is_dir() else None)
            folder = found.absolute().parents[1]
        wanted = wanted or (registered_as(folder)[0] if folder else "")
        parts.extend(_parts(bundle, key, artifacts, wanted, tags))
    except BundleUnsound as error:
        parts.append(VerifiedPart(error.part, False, error.reason))
    except OSError as error:
        parts.append(VerifiedPart("archive", False, f"{bundle}: {error.strerror or error}"))
    except Exception as error:  # fields of the right type that do not fit together
        parts.append(VerifiedPart(RECORD, False, f"it does not fit together: {_in_words(error)}"))
    return tuple(parts)


def read_key(path: Path) -> str:
    """Return a public key in PEM.

    Raises:
        JobError: the file is missing, not a regular file, too large, or not text in ASCII.
    """
    try:
        return read_regular_file(path, _LARGEST_KEY).decode("ascii")
    except (OSError, ValueError) as error:
        raise JobError(
            found=f"--key {path}: {error}", expected="a public key in PEM", fix="correct the path"
        ) from error


def is_sound(parts: tuple[VerifiedPart, ...]) -> bool:
    """Return True if no part failed."""
    return all(part.is_sound is not False for part in parts)


def _parts(
    bundle: Path, key: str | None, artifacts: Path | None, wanted: str, tags: Mapping[str, str] | None
) -> Iterator[VerifiedPart]:
    if key:
        # Nothing else is read of a bundle that the key did not sign.
        open_envelope(read_member(bundle, STATEMENT), key)
    members = read_archive(bundle)
    for name in (RECORD, STATEMENT):
        if name not in members:
            raise BundleUnsound(name, "the member is missing")
    document = read_document(members[RECORD])
    record = read_record(members[RECORD])
    payload, signed = open_envelope(members[STATEMENT], key or record.signer)
    check_members(members, payload)
    check_arrays(members)
    if payload != compact_json(statement_of(record, members)):
        raise BundleUnsound(STATEMENT, "it is not the statement that the members of this bundle give")
    if record.signer and signed != key_id(record.signer):
        raise BundleUnsound("signature", f"found one of the key {signed}; the record names another")
    yield VerifiedPart("archive", True, f"{len(members)} members, each with the digest of the statement")
    if signed:
        whose = "the given key" if key else "the key in the bundle, which nobody vouches for"
        yield VerifiedPart("signature", True, f"by {whose}, {signed[:16]}")
    else:
        yield VerifiedPart("signature", None, "unsigned: the bundle may have been made by anyone")
    yield _calibration(record)
    yield _decision(record, document, is_offered=artifacts is not None, wanted=wanted)
    if tags is not None:
        yield _tags(record, tags, bundle)
    if record.manifest:
        yield from _artifacts(record, document, artifacts)
    if record.trial is None:
        yield VerifiedPart("verdicts", None, "no candidate passed, so there are no figures of a winner")
        return
    with tempfile.TemporaryDirectory(prefix="quantgate-") as folder:
        for name, content in members.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield from _Verification(record, Path(folder), members).parts()


def read_record(content: bytes) -> EvidenceRecord:
    """Read a record.

    Raises:
        BundleUnsound: it is none, or one of another format.
    """
    try:
        return record_type().validate_python(read_document(content))
    except ValidationError as error:
        raise BundleUnsound(RECORD, f"found no record: {' '.join(str(error).split())[:300]}") from error


def _calibration(record: EvidenceRecord) -> VerifiedPart:
    if record.calibration is None:
        return VerifiedPart("calibration", None, "no calibration data: its candidates are files of other tools")
    outcome, checks = conclude(record.calibration.checks), len(record.calibration.checks)
    if outcome != record.calibration.outcome:
        raise BundleUnsound("calibration", f"found {record.calibration.outcome}; its {checks} checks give {outcome}")
    return VerifiedPart("calibration", True, f"{outcome} by {checks} checks, whose data is not in the bundle")


def _decision(record: EvidenceRecord, document: Mapping[str, Any], *, is_offered: bool, wanted: str) -> VerifiedPart:
    """Check the decision; where files are offered as a version, or a model is wanted, it must be their promotion."""
    told = check_promoted(document, wanted) if is_offered or wanted else check_decision(document)
    decision, said = document["decision"], record.decision.sign_off
    if said and record.trial and record.trial.variant and said.identity != record.trial.variant.identity:
        raise BundleUnsound(
            "decision", f"found an answer of {said.by} on a variant with another engine or other settings"
        )
    if not decision["promotes"]:
        return VerifiedPart("decision", None, f"{told}: no version is to be served on its word")
    return VerifiedPart("decision", True, f"{told}, as {decision['model']}@champion-{decision['target']}")


def _tags(record: EvidenceRecord, tags: Mapping[str, str], bundle: Path) -> VerifiedPart:
    """Compare the tags of a registered version with what the record gives for them."""
    assert record.trial and record.trial.variant
    said = record.decision.sign_off
    expected = {
        "variant_digest": record.trial.variant.digest,
        "source_digest": record.source.digest,
        "manifest_digest": hashlib.sha256(record.manifest.encode()).hexdigest(),
        "candidate": record.trial.candidate,
        "target": record.decision.target,
        "device": record.inventory.device_key,
        "verdicts": json.dumps({verdict.gate: verdict.outcome for verdict in record.trial.verdicts}),
        "evidence": f"runs:/{record.run_id}",
        "approved_by": said.by if said else "",
        "approved_at": said.at if said else "",
        "approval_comment": said.comment if said else "",
        "identity": record.trial.variant.identity,
        "evidence_digest": hashlib.sha256(bundle.read_bytes()).hexdigest(),
    }
    for name, value in expected.items():
        # Named as in `tasks/champion/manifest.py`, whose imports no verification needs.
        if (found := tags.get(f"quantgate.{name}", "")) != value:
            raise BundleUnsound(f"tag quantgate.{name}", f"found {found!r}; the record gives {value!r}")
    return VerifiedPart("tags", True, f"{len(expected)} tags of the version say what the record says")


def _artifacts(record: EvidenceRecord, document: Mapping[str, Any], artifacts: Path | None) -> Iterator[VerifiedPart]:
    files: dict[str, str] = json.loads(record.manifest)["files"]
    if artifacts is None:
        yield VerifiedPart("artifacts", None, f"not here: {', '.join(sorted(files))}")
        return
    manifest = artifacts.with_name("manifest.json")
    if manifest.exists():
        check_manifest(document, manifest)
        yield VerifiedPart("manifest", True, "the one in the record: session settings, device and files")
    else:
        yield VerifiedPart("manifest", None, f"not here: {manifest.name} beside {artifacts.name}")
    found = {path.name for path in artifacts.iterdir()}
    for name in sorted(files.keys() | found):
        if name not in files or name not in found:
            raise BundleUnsound(
                f"artifact {name}", "it is missing" if name in files else "the manifest does not name it"
            )
        try:
            with open_regular(artifacts / name) as (stream, _):
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise BundleUnsound(f"artifact {name}", f"it cannot be read: {error}") from error
        if digest != files[name]:
            raise BundleUnsound(f"artifact {name}", "its digest is not that of the manifest")
    yield VerifiedPart("artifacts", True, f"{len(files)} files, each with the digest of the manifest")


class _Verification:
    """Computation of a winner's verdicts from the members of a bundle, which lie in a folder."""

    def __init__(self, record: EvidenceRecord, folder: Path, members: Mapping[str, bytes]) -> None:
        assert record.trial is not None and record.baseline is not None
        self.record, self._folder, self._members = record, folder, members
        if len(record.trial.verdicts) > _MOST_VERDICTS:
            raise BundleUnsound("verdicts", f"found {len(record.trial.verdicts)}; expected at most {_MOST_VERDICTS}")
        self.job = self._job(record.trial)
        self.trial = self._located(record.trial)
        self.computed: dict[str, Verdict] = {}

    def parts(self) -> Iterator[VerifiedPart]:
        """Yield each latency and each verdict, and last the outcome of all together."""
        try:
            self._compute()
        except BundleUnsound:
            raise
        except Exception as error:
            raise BundleUnsound("samples", f"they give no figures: {_in_words(error)}") from error
        recorded = {verdict.gate: verdict for verdict in self.trial.verdicts}
        for gate in self.computed.keys() - recorded.keys():
            raise BundleUnsound(f"verdict {gate}", "the samples give it, and the record has none")
        for gate, verdict in recorded.items():
            yield self._compared(gate, verdict)
        yield self._outcome(recorded)

    def _compared(self, gate: str, verdict: Verdict) -> VerifiedPart:
        again = self.computed.get(gate)
        if again is None:
            if not self._is_as_recorded(gate, verdict):
                raise BundleUnsound(f"verdict {gate}", "the record has it, and no samples or figures that give it")
            return VerifiedPart(f"verdict {gate}", None, f"{verdict.outcome}, as recorded: a bundle cannot compute it")
        for name in (*_EXACT, *_ROUNDED):
            ours, theirs = getattr(again, name), getattr(verdict, name)
            same = ours == theirs if name in _EXACT else _is_close(ours, theirs)
            if not same:
                raise BundleUnsound(f"verdict {gate}", f"found {name} {theirs}; the samples give {ours}")
        equal = "bit for bit" if again == verdict else f"within {TOLERANCE:g}"
        whence = f"equal {equal} from the samples" if is_from_samples(gate) else "from figures of the record"
        return VerifiedPart(f"verdict {gate}", True, f"{verdict.outcome}, {_told(verdict)}; {whence}")

    def _is_as_recorded(self, gate: str, verdict: Verdict) -> bool:
        """Return True if no bundle computes a verdict: on a step of the job, a device, or a champion that did not run."""
        if gate == BEATS_CHAMPION:
            return verdict.value is None or verdict.outcome != "pass"
        name = gate.removeprefix(PREFIX_CONFIRMED)
        return self.record.rows_left_out or all(name != one.name for one in GATES)

    def _outcome(self, recorded: Mapping[str, Verdict]) -> VerifiedPart:
        required = required_gates(self._as_given, self.trial.candidate)
        if self.record.decision.promotes and self.record.decision.replaces:
            required |= CHAMPION_GATES
        missing = sorted(required - recorded.keys())
        outcome = overall(tuple(recorded.values()))
        if outcome != self.trial.outcome or (outcome == "passed" and missing):
            reason = f"found {self.trial.outcome}; the verdicts give {outcome}"
            raise BundleUnsound("verdicts", reason + (f", and {', '.join(missing)} is missing" if missing else ""))
        return VerifiedPart("verdicts", True, f"{self.trial.candidate} {outcome}, {len(recorded)} verdicts")

    def _compute(self) -> None:
        trial, job = self.trial, self.job
        assert trial.accuracy and trial.variant
        data = self._judged_data()
        place = point_labels(trial.latencies)[0] if trial.latencies else ""
        if self.record.rows_left_out:
            if not job.metric_is_function:
                raise BundleUnsound("samples", f"the rows of {job.metric} are left out, which no run does")
            self._add(judge_gates(measured_of(data, trial, None), place))
            return
        answers = figures_of(data, trial.accuracy, data.selection, job.gates.confidence)
        self._add(judge_gates(measured_of(data, trial, answers), place))
        if trial.confirmed:
            confidence = confidence_of_each(job.gates.confidence, job.confirmation.candidates)
            measured, _ = confirmed_of(data, trial, confidence)
            confirmed = trial.confirmed
            measured = replace(
                measured,
                latency=confirmed.latency,
                beside_fp16=confirmed.beside_fp16,
                agreement=confirmed.agreement,
            )
            self._add(judge_gates(measured, CONFIRMED, confirming=True))
        if trial.beside_champion:
            self._add((judge_beside(data, trial, trial.beside_champion, self.record.source.digest),))

    def _add(self, verdicts: tuple[Verdict, ...]) -> None:
        self.computed |= {verdict.gate: verdict for verdict in verdicts}

    def _job(self, trial: Trial) -> Job:
        try:
            self._as_given = job = parse_job(self.record.job, base=Path())
        except JobError as error:
            raise BundleUnsound("job", str(error)) from error
        # A recovered candidate was judged at a stricter confidence than the job's.
        told = next((one.confidence for one in trial.verdicts if one.gate == "drop"), None)
        return with_confidence(job, told) if told is not None and told > job.gates.confidence else job

    def _judged_data(self) -> JudgedData:
        baseline = self.record.baseline
        assert baseline is not None
        slices = {name: self._array(slice_member(index)) for index, name in enumerate(self.record.slices)}
        if (groups := sum(len(np.unique(array)) for array in slices.values())) > _MOST_GROUPS:
            raise BundleUnsound("slices", f"found {groups} groups; expected at most {_MOST_GROUPS}")
        return JudgedData(
            self.job,
            self._accuracy(baseline),
            self.record.baseline_bytes,
            self._array(CONFIRMATION),
            slices,
            clusters=self._array(CLUSTERS) if self.record.has_clusters else None,
            kept_metric=_kept_metric(self.job),
        )

    def _array(self, name: str) -> np.ndarray:
        array: np.ndarray = np.load(self._path(Path(name)), allow_pickle=False)
        return array

    def _path(self, path: Path) -> Path:
        if path.as_posix() not in self._members:
            raise BundleUnsound(path.as_posix(), "the record names it, and the member is missing")
        return self._folder / path

    def _accuracy(self, accuracy: Accuracy) -> Accuracy:
        left_out = self.record.rows_left_out
        return replace(
            accuracy,
            scores_path=accuracy.scores_path if left_out else self._path(accuracy.scores_path),
            finite_path=self._path(accuracy.finite_path),
            noise_path=self._path(accuracy.noise_path) if accuracy.noise_path else None,
        )

    def _located(self, trial: Trial) -> Trial:
        """Return the trial with the members' files, and each latency computed from its times."""
        job = self._as_given
        confirmed, champion = trial.confirmed, trial.beside_champion
        named = Counter(one.samples_path.as_posix() for one in trial.latencies)
        if twice := [name for name, count in named.items() if count > 1]:
            raise BundleUnsound(twice[0], "the record names these times for several operating points")

        def latency(one: Latency, confidence: float = job.gates.confidence) -> Latency:
            return self._latency(one, confidence)

        if confirmed:
            each = confidence_of_each(job.gates.confidence, job.confirmation.candidates)
            confirmed = replace(
                confirmed,
                latency=latency(confirmed.latency, each) if confirmed.latency else None,
                beside_fp16=latency(confirmed.beside_fp16, each) if confirmed.beside_fp16 else None,
            )
        if champion:
            champion = replace(champion, accuracy=self._accuracy(champion.accuracy), latency=latency(champion.latency))
        return replace(
            trial,
            accuracy=self._accuracy(trial.accuracy) if trial.accuracy else None,
            latencies=tuple(latency(one, self.job.gates.confidence) for one in trial.latencies),
            beside_fp16=latency(trial.beside_fp16) if trial.beside_fp16 else None,
            beside_champion=champion,
            confirmed=confirmed,
        )

    def _latency(self, latency: Latency, confidence: float) -> Latency:
        name = latency.samples_path.as_posix()
        located = replace(latency, samples_path=self._path(latency.samples_path))
        try:
            again = recount(located, confidence)
        except Exception as error:
            raise BundleUnsound(name, f"it holds no times of a comparison: {_in_words(error)}") from error
        for field in fields(Latency):
            ours, theirs = getattr(again, field.name), getattr(located, field.name)
            if ours != theirs and not _is_close(ours, theirs):
                raise BundleUnsound(name, f"found {field.name} {theirs}; its times give {ours}")
        return again


def _in_words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__} {error}".split())[:_LONGEST_WORDS]


def _is_close(ours: Any, theirs: Any) -> bool:
    """Return True if two numbers, or two records of numbers, differ by rounding alone."""
    if hasattr(ours, "__dataclass_fields__") and type(ours) is type(theirs):
        return all(_is_close(getattr(ours, one.name), getattr(theirs, one.name)) for one in fields(ours))
    if not isinstance(ours, float | int) or not isinstance(theirs, float | int):
        return bool(ours == theirs)
    return (math.isnan(ours) and math.isnan(theirs)) or math.isclose(ours, theirs, rel_tol=TOLERANCE, abs_tol=1e-15)


def _told(verdict: Verdict) -> str:
    if verdict.value is None:
        return "no value"
    relation = "at most" if verdict.direction == "at_most" else "at least"
    return f"{verdict.value:.6g}, {relation} {verdict.bound:.6g}"


def _kept_metric(job: Job) -> Metric:
    """Return a metric that gives the job's values from rows alone; of a user's function, only if a row is one score."""
    if job.metric_is_function:
        return user_metric(job.metric, _absent, higher_is_better=job.metric_direction == "higher", version="")
    return named_metric(
        job.metric, Options(job.metric_threshold, Decoder(job.text, None, ""), job.metric_scores, job.metric_k)
    )


def _absent(*_: object) -> np.ndarray:
    raise ValueError(
        "found rows of several numbers; expected one score for each sample, since the function is not here"
    )
