"""Steps 4 and 7: comparison of the present champion with its challenger."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from prefect.runtime import flow_run

from tasks.champion.fetch_champion import fetch_champion
from tasks.champion.reconcile import reconcile
from tasks.measure.inventory import this_processor
from tasks.ptq.graph.edits import model_bytes
from tasks.registry.champion_slot import champion_at, place_of
from tasks.registry.mlflow_registry import connect
from tasks.run.context import Run, log
from tasks.run.loaded_run import LoadedRun
from tasks.run.step import step
from tasks.trials.build_engine import with_engine
from tasks.trials.judge_on_samples import JudgedData, judge_beside
from tasks.trials.measure_accuracy import Reference, measure_accuracy
from tasks.trials.measure_baseline import baseline_variant
from tasks.trials.measure_latency import latency_of, with_threads
from validators.errors import CandidateRefused, InfrastructureError, LibraryUnnamed, LockTaken, VersionUnsound
from validators.gates.champion import judge_broken_champion, judge_champion_device, judge_unmeasured_champion
from validators.gates.verdict_rules import overall
from validators.processors import Processor
from validators.records.libraries import Libraries
from validators.records.measurements import Accuracy
from validators.records.run import AbsentEngine, Champion, ChampionFigures, Inventory, SessionSettings, Trial, Variant
from validators.records.verdicts import Verdict
from validators.targets import facts_of_provider

_UNMEASURED = "to replace it unmeasured, remove its alias first"


@step("look up champion")
def look_up_champion(run: LoadedRun, *, before_run: bool = False) -> Champion | None:
    """Return the present champion of the source's model on the job's target; None for a source that is a file.

    A killed promotion is repaired first, unless one is in progress. With `before_run` it is the champion before this flow run.
    A retry after a promotion then decides as the attempt before it did, with the same evidence, and finds its promotion done.

    Raises:
        InfrastructureError: the registry does not answer.
    """
    if run.job.source_is_file:
        return None
    place = place_of(run.source.name, run.job.target)
    with run.clock.work("look up champion"), connect(run.tracking_uri) as client:
        with suppress(LockTaken), run.locks.hold(place.lock, wait_seconds=0):
            reconcile(client, place)
        champion = champion_at(client, place, flow_run.get_id() if before_run else None)
    log.info("champion: %s", champion or "none yet")
    return champion


def judge_device(
    inventory: Inventory, best: Trial, champion: Champion | None, *, replace_device: bool = False
) -> Trial:
    """Return the best trial with the verdict on its device against the champion's.

    The trial is unchanged if there is no champion, or if the champion is the same variant.
    """
    assert best.variant is not None
    if champion is None or champion.identity == best.variant.identity:
        return best
    return _with_verdict(best, judge_champion_device(champion, here=inventory.device_key, replaces=replace_device))


def _with_verdict(best: Trial, verdict: Verdict) -> Trial:
    verdicts = (*best.verdicts, verdict)
    return replace(best, verdicts=verdicts, outcome=overall(verdicts))


def _absent_engine(inventory: Inventory, champion: Champion) -> AbsentEngine | None:
    """Return the champion's engine if it is left out here: then nothing can be said about its speed."""
    engine = champion.candidate.partition("@")[2]
    return next((one for one in inventory.absent if one.engine == engine and not one.for_source), None)


def warn_of_device(inventory: Inventory, champion: Champion | None) -> None:
    """Warn, before anything is measured, that the champion of another device, or of none, will not be replaced."""
    if champion is None:
        return
    verdict = judge_champion_device(champion, here=inventory.device_key, replaces=False)
    if verdict.outcome != "pass":
        log.warning("champion version %s stays whatever wins: %s", champion.version, verdict.reason)


@step("compare with champion")
def compare_with_champion(run: LoadedRun, baseline: Accuracy, best: Trial, champion: Champion | None) -> Trial:
    """Return the best trial with the verdict against the champion; unchanged if it is the champion or there is none.

    Both run on this machine with the job's thread count, whatever the champion was approved with. A champion whose files do not
    load or run here loses. Without its engine, its libraries or its own files nobody knows: the gate stays open.
    """
    assert best.variant is not None and best.accuracy is not None
    if champion is None or champion.identity == best.variant.identity:
        return best
    if absent := _absent_engine(run.inventory, champion):
        return _unmeasured(best, champion, f"it runs in an engine that is not here: {absent}")
    if not champion.digest:
        return _unmeasured(best, champion, _UNMEASURED)
    with run.clock.work("compare with champion"), run.time_for_winner():
        try:
            holder, variant = contestants(run, champion, best.variant)
            holder = with_engine(run, holder)
            reference = Reference(baseline, baseline_variant(run))
            kept = run.evidence.confirmation
            accuracy, _ = measure_accuracy(run, holder, reference, kept if kept.any() else None)
            latency, _ = latency_of(run, holder, variant, run.job.measurement.points[0])
        except (VersionUnsound, LibraryUnnamed) as error:
            return _unmeasured(best, champion, f"{error.found}; {_UNMEASURED}")
        except CandidateRefused as error:
            if error.kind == "infrastructure":
                # Continuing would promote without a comparison with the champion.
                raise InfrastructureError(found=error.found, expected=error.expected, fix=error.fix) from error
            verdict = judge_broken_champion(champion.version, error.found)
            log.warning("%s", verdict.reason)
            return _with_verdict(best, verdict)
        figures = ChampionFigures(champion.version, champion.source_digest, holder.size_bytes, accuracy, latency)
        evidence = run.evidence
        judged_data = JudgedData(run.job, baseline, 0, evidence.confirmation, {}, clusters=evidence.clusters)
        verdict = judge_beside(judged_data, best, figures, run.source.digest)
    log.info("beside champion version %s: %s %s", champion.version, verdict.outcome, verdict.reason)
    return replace(_with_verdict(best, verdict), beside_champion=figures)


def _unmeasured(best: Trial, champion: Champion, why: str) -> Trial:
    verdict = judge_unmeasured_champion(champion, why)
    log.warning("%s", verdict.reason)
    return _with_verdict(best, verdict)


def contestants(run: Run, champion: Champion, variant: Variant) -> tuple[Variant, Variant]:
    """Return the champion (`variant_of`) and the challenging variant, both with the job's thread count on this machine."""
    point = run.job.measurement.points[0]
    return with_threads(variant_of(run, champion), point), with_threads(variant, point)


def variant_of(run: Run, champion: Champion) -> Variant:
    """Return the champion as a variant, like one that this run made.

    Raises:
        VersionUnsound: its files are not those that were registered, or there are none of quantgate's.
        LibraryUnnamed: the champion needs a library of custom operators that the job does not name.
        CandidateRefused: `unsupported`: the champion gives other answers on this processor, or none.
        InfrastructureError: the registry does not answer.
    """
    fetched = fetch_champion(run, champion)
    manifest: dict[str, Any] = json.loads(fetched.manifest.read_text(encoding="utf-8"))
    refuse_processor(manifest, this_processor())
    path = fetched.model
    settings = SessionSettings(**manifest["session"], libraries=_libraries_of(run, manifest.get("libraries", [])))
    return Variant(champion.candidate, path, champion.digest, model_bytes(path), settings)


def refuse_processor(manifest: Mapping[str, Any], processor: Processor) -> None:
    """Refuse a version that a processor does not run as it was approved.

    Raises:
        CandidateRefused: `unsupported`: sums of its INT8 products saturate there, or it is code for instructions that it lacks.
    """
    found, needed = "a processor on which sums of the champion's INT8 products saturate", "one of "
    lacking: Collection[str] = manifest.get("saturates_without", ())
    if not processor.saturates(lacking):
        approved = manifest.get("hardware", {}).get("isa", {})
        lacking = [flag for flag, had in approved.items() if had and flag not in processor.isa]
        found, needed = "a processor without instructions that the champion was compiled for", ""
        if not lacking or not facts_of_provider(manifest["session"]["provider"]).compiles:
            return
    raise CandidateRefused(
        kind="unsupported",
        found=found,
        expected=f"one with {needed}{', '.join(lacking)}",
        fix="use a processor like that of its approval, or promote a variant with `portable: true`",
    )


def _libraries_of(run: Run, described: list[dict[str, str]]) -> Libraries:
    """Return the job's libraries that match a manifest's. Code is never loaded on the word of the registry alone.

    Raises:
        LibraryUnnamed: the job does not name one of the libraries, or names another build.
    """
    ours = {library.digest: library for library in run.libraries}
    for library in described:
        if library["sha256"] not in ours:
            name = library.get("file") or f"{library['distribution']} {library['version']}"
            raise LibraryUnnamed(
                kind="unsupported",
                found=f"operator library {name}, sha256 {library['sha256'][:12]}, which the job does not name",
                expected="the libraries of the job's `operator_libraries`",
                fix="name that build of the library, so that candidates can be compared with the champion",
            )
    return tuple(ours[library["sha256"]] for library in described)
