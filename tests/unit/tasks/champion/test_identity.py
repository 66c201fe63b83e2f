"""Identity of a variant: the digest of its artifact with its engine and session, in the registry and for all who ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from databases import lend_mlflow
from runs import run_in

from tasks.champion.ask_approval import question_key
from tasks.champion.compare_champion import compare_with_champion, judge_device
from tasks.champion.seal_evidence import _of_any_attempt
from tasks.measure.inventory import take_inventory
from tasks.records.result_document import Findings, conclude
from tasks.records.variant_model import VERSION, record_model
from tasks.registry.champion_slot import (
    IDENTITY,
    TARGET,
    VARIANT_DIGEST,
    ChampionSlot,
    champion_at,
    rolled_back_variants,
)
from tasks.registry.mlflow_registry import connect
from tasks.run.clock import Clock
from tasks.run.context import Run
from tasks.run.loaded_run import with_inputs
from validators.job.read_job import parse_job
from validators.records.bundle import CodeFacts, EvidenceRecord, PromotionDecision
from validators.records.journal import JOURNAL, ROLLED_BACK, Journal, RolledBack, tag_of
from validators.records.measurements import Accuracy
from validators.records.run import (
    CalibrationFacts,
    Champion,
    Inventory,
    SessionSettings,
    SourceResult,
    Trial,
    Variant,
)
from validators.target_facts import CPU_PROVIDER, OPENVINO

if TYPE_CHECKING:
    from mlflow import MlflowClient

PLACE = ChampionSlot("m-quantized", "cpu")
ORT, TWO_THREADS = SessionSettings(CPU_PROVIDER, 1), SessionSettings(CPU_PROVIDER, 2)
VINO = SessionSettings(OPENVINO, 1, provider_options={"INFERENCE_PRECISION_HINT": "f32"})
BF16 = SessionSettings(OPENVINO, 1, provider_options={"INFERENCE_PRECISION_HINT": "bf16"})
NAME = "int4-g32-rtn"


def variant(session: SessionSettings, digest: str = "file") -> Variant:
    return Variant(f"{NAME}@{'openvino' if session.provider == OPENVINO else 'ort-cpu'}", Path("m"), digest, 1, session)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[MlflowClient]:
    """A registry with the model's name, and no version."""
    lend_mlflow(tmp_path / "mlflow.db")
    with connect(f"sqlite:///{tmp_path / 'mlflow.db'}") as client:
        client.create_registered_model(PLACE.name)
        yield client


def register(
    client: MlflowClient, folder: Path, made: Variant | None, *, is_tagged: bool = True, has_manifest: bool = True
) -> str:
    """Register a version as a release does, of earlier ones without a tag; None is somebody's own. Return its number."""
    number = len(client.search_model_versions(f"name = '{PLACE.name}'")) + 1
    files = folder / f"version {number}"
    (files / "artifacts").mkdir(parents=True)
    tags = {}
    if made is not None:
        tags = {VARIANT_DIGEST: made.digest, TARGET: PLACE.target, "quantgate.candidate": made.candidate}
        tags |= {IDENTITY: made.identity} if is_tagged else {}
        if has_manifest:
            manifest = {"session": made.session.described, "files": {}}
            (files / "artifacts" / "manifest.json").write_text(json.dumps(manifest))
    return str(client.create_model_version(PLACE.name, str(files), tags=tags).version)


def test_one_file_is_as_many_variants_as_it_has_sessions() -> None:
    """By engine, precision of the engine and threads; by its file; and not by the candidate's name."""
    made = [variant(session) for session in (ORT, TWO_THREADS, VINO, BF16)] + [variant(ORT, "other file")]
    assert len({one.identity for one in made}) == 5
    assert replace(made[0], candidate="another", path=Path("elsewhere")).identity == made[0].identity


@pytest.mark.parametrize("is_tagged", [True, False], ids=["tag", "earlier release"])
def test_a_champion_is_the_variant_that_its_version_loads(
    registry: MlflowClient, tmp_path: Path, is_tagged: bool
) -> None:
    """Its twin in another engine has the same digest, and is not the champion."""
    registry.set_registered_model_alias(
        PLACE.name, PLACE.alias, register(registry, tmp_path, variant(VINO), is_tagged=is_tagged)
    )
    champion = champion_at(registry, PLACE)
    assert champion is not None and champion.identity == variant(VINO).identity
    others = [variant(session) for session in (ORT, BF16, TWO_THREADS)]
    assert champion.digest == others[0].digest and champion.identity not in {one.identity for one in others}


@pytest.mark.parametrize("is_tagged", [True, False], ids=["tag", "earlier release"])
def test_a_rollback_bars_one_variant_alone(registry: MlflowClient, tmp_path: Path, is_tagged: bool) -> None:
    for session in (VINO, ORT):
        number = register(registry, tmp_path, variant(session), is_tagged=is_tagged)
    registry.set_model_version_tag(PLACE.name, number, ROLLED_BACK, tag_of(RolledBack(1, reason="slow")))
    assert list(rolled_back_variants(registry, PLACE)) == [variant(ORT).identity]


def test_a_mark_without_a_manifest_bars_the_file(registry: MlflowClient, tmp_path: Path) -> None:
    number = register(registry, tmp_path, variant(ORT), is_tagged=False, has_manifest=False)
    registry.set_model_version_tag(PLACE.name, number, ROLLED_BACK, "by hand")
    assert list(rolled_back_variants(registry, PLACE)) == ["file"]


def test_an_answer_is_about_one_session() -> None:
    """A person who approved a variant did not approve its twin."""
    assert question_key(variant(VINO).identity, None) != question_key(variant(BF16).identity, None)


def test_a_twin_is_not_recorded_as_the_promoted_model(registry: MlflowClient) -> None:
    """Of two trials of one file, the record of one alone names the version."""
    experiment = registry.create_experiment("e")
    champion = Champion(PLACE.name, "1", PLACE.alias, "file", "s", f"{NAME}@openvino", identity=variant(VINO).identity)
    identifier = registry.create_run(experiment).info.run_id
    trial = Trial(f"{NAME}@ort-cpu", "passed", variant=variant(ORT))
    record_model(registry, identifier, trial, params={}, metrics={}, tags={}, evaluation=None, champion=champion)
    (model,) = registry.search_logged_models([experiment])
    assert model.params["target"] == "ort-cpu" and VERSION not in model.tags


def test_retry_finds_the_champion_from_before_its_own_promotion(registry: MlflowClient, tmp_path: Path) -> None:
    """And the present one if another flow run promoted it."""
    first, second = (register(registry, tmp_path, variant(session)) for session in (VINO, ORT))
    registry.set_registered_model_alias(PLACE.name, PLACE.alias, second)
    for flow_run, previous, found in (("f", first, first), ("f", None, None), ("f", "9", None), ("g", first, second)):
        registry.set_model_version_tag(PLACE.name, second, JOURNAL, tag_of(Journal("done", previous, flow_run)))
        champion = champion_at(registry, PLACE, "f")
        assert (champion and champion.version) == found
    assert champion_at(registry, PLACE) is not None


def run_of(folder: Path) -> Run:
    document = {"source": "models:/m/1", "target": "cpu", "data": {"calibration": "c.npz", "evaluation": "e.npz"}}
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    return run_in(folder, parse_job(document, base=folder), tracking_uri=uri)


def beside(folder: Path, champion: Champion) -> Trial:
    """The winner beside a champion of which there is nothing to run; with `--replace-device`."""
    accuracy = Accuracy("accuracy", 1.0, 10, Path("scores"), Path("finite"))
    best = Trial(f"{NAME}@ort-cpu", "passed", variant=variant(ORT), accuracy=accuracy)
    nothing: Any = SimpleNamespace()
    inventory: Any = SimpleNamespace(absent=(), device_key="i5 [avx2] x8; o 1")
    run = with_inputs(run_of(folder), nothing, nothing, inventory)
    judged = judge_device(inventory, best, champion, replace_device=True)
    assert judged.outcome == "passed"
    compared: Any = compare_with_champion
    trial: Trial = compared.fn(run, accuracy, judged, champion)
    return trial


def test_a_version_that_somebody_set_by_hand_stays(registry: MlflowClient, tmp_path: Path) -> None:
    """Nobody measured it, and nobody recorded its device: both gates are open, and name the version."""
    registry.set_registered_model_alias(PLACE.name, PLACE.alias, register(registry, tmp_path, None))
    champion = champion_at(registry, PLACE)
    assert champion is not None and (champion.digest, champion.identity) == ("", "")
    trial = beside(tmp_path, champion)
    assert (trial.verdicts[-1].gate, trial.verdicts[-1].outcome) == ("beats_champion", "inconclusive")
    assert "version 1, which quantgate did not promote" in trial.verdicts[-1].reason
    assert trial.outcome == "inconclusive"
    inventory: Any = SimpleNamespace(device_key="i5 [avx2] x8; o 1")
    judged = judge_device(inventory, replace(trial, verdicts=(), outcome="passed"), champion)
    assert (judged.verdicts[-1].gate, judged.outcome) == ("champion_device", "inconclusive")
    assert "version 1, which quantgate did not promote" in judged.verdicts[-1].reason
    findings = Findings(best=judged, champion_before=champion)
    told = conclude(run_of(tmp_path).job, findings, Clock())
    assert told.outcome == "no_variant" and "(version 1, which quantgate did not promote)" in told.reason


def test_a_champion_whose_files_are_gone_is_not_beaten(registry: MlflowClient, tmp_path: Path) -> None:
    """One that quantgate promoted, without its manifest: nobody ran it, so nobody knows."""
    number = register(registry, tmp_path, variant(VINO), has_manifest=False)
    registry.set_registered_model_alias(PLACE.name, PLACE.alias, number)
    champion = champion_at(registry, PLACE)
    assert champion is not None
    trial = beside(tmp_path, champion)
    assert trial.outcome == trial.verdicts[-1].outcome == "inconclusive"
    assert f"version 1, {NAME}@openvino" in trial.verdicts[-1].reason and "manifest" in trial.verdicts[-1].reason


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({"finished_at": "2026-11-27T00:00:00+00:00"}, True),
        ({"trial": Trial("int8", cached=True, seconds=2.0)}, True),
        ({"run_id": "another"}, False),
        ({"trial": Trial("int8", outcome="passed")}, False),
    ],
)
def test_a_retry_seals_the_evidence_of_the_first_attempt(change: dict[str, Any], is_same: bool) -> None:
    """Of the same run, whenever it ends and whatever is in the store by then; another run has its own."""
    inventory: Inventory = take_inventory("ort-cpu")
    record = EvidenceRecord(
        format=2,
        decision=PromotionDecision(True, "m-quantized", "ort-cpu", None, None),
        job={},
        source=SourceResult("models:/m/1", "m", "1", "s"),
        data={},
        inventory=inventory,
        code=CodeFacts("1", "c", {}, "i", {}),
        calibration=CalibrationFacts("accepted", (), {}),
        run_id="one",
        finished_at="2026-11-26T00:00:00+00:00",
        trial=Trial("int8", seconds=9.0),
    )
    other = replace(record, **change, inventory=replace(inventory, load_average=9.0))
    assert (_of_any_attempt(record) == _of_any_attempt(other)) is is_same
