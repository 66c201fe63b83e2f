"""The catalogue of targets: every target has every fact, and packages cannot take a name or leave a fact out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
from processors import AMX
from pydantic import TypeAdapter, ValidationError

from tasks.engines import catalog
from tasks.engines.availability import Availability
from tasks.engines.catalog import TARGETS, all_targets, find_target
from tasks.engines.engine import Engine, RefusedPrecision
from tasks.engines.ort import engine as ort
from tasks.engines.variants import refuse_other_targets, session_settings
from tasks.measure.inventory import take_inventory
from validators.errors import CandidateRefused, JobError
from validators.job.candidate_name import Candidate, Precision, TargetName, decode
from validators.job.job import Job
from validators.job.read_job import parse_job
from validators.job.recipe_words import describe
from validators.job.wide_candidates import wide_candidates
from validators.targets import (
    BUILT_IN,
    GROUP,
    facts_of,
    facts_of_provider,
    installed_targets,
    is_on_gpu,
    load_target,
    target_names,
)

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Entry points of packages that are not there: `install(name=object, ...)`, each in a module of its own."""
    entries: list[metadata.EntryPoint] = []

    def add(**brought: object) -> None:
        for name, target in brought.items():
            module = ModuleType(f"brought_{len(entries)}")
            module.TARGET = target  # type: ignore[attr-defined]  # of a module made here
            monkeypatch.setitem(sys.modules, module.__name__, module)
            entry = metadata.EntryPoint(name.replace("_", "-"), f"{module.__name__}:TARGET", GROUP)
            entries.append(entry)
        forget()

    def forget() -> None:
        installed_targets.cache_clear()
        load_target.cache_clear()

    monkeypatch.setattr(metadata, "entry_points", lambda group: entries if group == GROUP else [])
    forget()
    yield add
    forget()


def target_named(name: str, **changes: object) -> Engine:
    """A target like `ort-cpu` by another name."""
    facts = replace(ort.CPU.facts, name=name, default_candidates=(f"int8-dynamic-pc@{name}",))
    return replace(ort.CPU, facts=facts, **changes)  # type: ignore[arg-type]  # fields of any type


def job_for(target: str, **changes: object) -> Job:
    data = {"calibration": "c.npz", "evaluation": "e.npz"}
    return parse_job({"source": "m.onnx", "data": data, "target": target} | changes, base=Path())


# Ours


def test_the_catalogue_and_the_facts_name_the_same_targets() -> None:
    assert tuple(target.name for target in TARGETS) == tuple(BUILT_IN)
    assert all(target.facts is BUILT_IN[target.name] for target in TARGETS)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_target_has_every_fact(target: Engine) -> None:
    """Precisions are made or refused with a reason; the default list decodes and is made; a session names its provider."""
    assert bool(target.passes) != bool(target.facts.engines), "a class has the passes of its engines"
    assert not set(target.passes) & set(target.refused)
    assert set(target.passes) | set(target.refused) <= set(get_args(Precision))
    assert all(refused.expected and refused.fix for refused in target.refused.values())
    engines = target.facts.engines or (target.name,)
    names = [name for name in target.facts.default_candidates if name.endswith(tuple(f"@{one}" for one in engines))]
    assert names and target.facts.fused_words and target.facts.int8_words
    for name in names:
        refuse_other_targets(decode(name), AMX)
        engine = find_target(decode(name).target)
        assert session_settings(decode(name), 2).provider == engine.facts.provider
    # Versions that an approval is tied to; a class has those of its engines.
    assert bool(target.facts.libraries) == (target.name != "ort-cpu" and not target.facts.engines)
    found = target.availability(())
    assert found.why and (found.is_here or found.mend)


@pytest.mark.parametrize("target", ["torch-inductor", "torch-cuda", "tensorrt"])
def test_a_rounding_that_an_engine_ignores_is_refused(target: str) -> None:
    """These round INT8 weights by themselves, or to the nearest alone."""
    with pytest.raises(CandidateRefused, match="static" if target == "torch-cuda" else "learned"):
        refuse_other_targets(decode(f"int8-static-minmax-pc-learned@{target}"), AMX)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_recipe_of_the_wide_list_is_refused(target: Engine) -> None:
    for candidate in map(decode, wide_candidates(target.name)):
        refuse_other_targets(candidate, AMX)


def test_without_its_row_a_target_is_unknown_everywhere(monkeypatch: pytest.MonkeyPatch, install: Install) -> None:
    """Each row is taken out in turn."""
    for name in list(BUILT_IN):
        with monkeypatch.context() as patch:
            patch.delitem(BUILT_IN, name)
            patch.delitem(catalog._BY_NAME, name)
            assert name not in target_names()
            for ask in (find_target, facts_of, is_on_gpu, lambda one: decode(f"fp16@{one}")):
                with pytest.raises(JobError):
                    ask(name)
            with pytest.raises(ValidationError, match="ort-"):
                TypeAdapter(TargetName).validate_python(name)
        assert find_target(name).name == name


def test_parts_that_do_not_fit_make_no_target() -> None:
    with pytest.raises(ValueError, match="int8 in both `passes` and `refused`"):
        replace(ort.CPU, refused={**ort.CPU.refused, "int8": RefusedPrecision("x", "y")})


# Those of other packages


def test_a_target_of_a_package_is_one_like_ours(install: Install) -> None:
    acme = target_named("acme-npu")
    install(acme_npu=acme)
    assert target_names() == (*BUILT_IN, "acme-npu") and all_targets()[-1] is acme
    assert find_target("acme-npu") is acme and not is_on_gpu("acme-npu")
    candidate = decode("int8-static-minmax-pc-all@acme-npu")
    assert candidate.name == "int8-static-minmax-pc-all@acme-npu" and "UINT8 activations" in describe(candidate)
    assert Candidate("fp8", "acme-npu").is_simulated
    assert session_settings(candidate, 3) == session_settings(replace(candidate, target="ort-cpu"), 3)
    with pytest.raises(CandidateRefused, match="fp16 on acme-npu"):
        refuse_other_targets(decode("fp16@acme-npu"), AMX)
    known = TypeAdapter(TargetName)
    assert known.validate_python("acme-npu") == "acme-npu"
    assert known.json_schema() == {"enum": [*BUILT_IN, "acme-npu"], "type": "string"}
    with pytest.raises(ValidationError, match=r"Input should be 'ort-cpu', .* or 'acme-npu'"):
        known.validate_python("acme")


def test_a_package_may_bring_its_provider(install: Install) -> None:
    """What has no row anywhere computes in host memory, and none of its kernels is known for low precision."""
    facts = replace(
        ort.CPU.facts, name="acme-npu", provider="AcmeExecutionProvider", low_precision=frozenset({"AcmeGemm"})
    )
    install(acme_npu=replace(ort.CPU, facts=facts))
    assert facts_of_provider("AcmeExecutionProvider") is facts
    other = facts_of_provider("OtherExecutionProvider")
    assert (other.session, other.on_gpu, other.low_precision) == ("", False, frozenset())


@pytest.mark.parametrize("name", ["ort-cpu", "tensorrt"])
def test_a_name_of_ours_is_refused(install: Install, name: str) -> None:
    install(**{name: target_named(name)})
    with pytest.raises(JobError, match=f"provides the target '{name}', which quantgate already provides") as caught:
        target_names()
    assert "uninstall" in caught.value.fix


def test_a_name_that_two_packages_bring_is_refused(install: Install) -> None:
    install(acme=target_named("acme"))
    assert target_names()[-1] == "acme"
    install(acme=target_named("acme"))
    with pytest.raises(JobError, match="which brought_0:TARGET already provides"):
        target_names()


@pytest.mark.parametrize("name", ["Acme", "acme npu", "-acme", "acme--npu", "acme/npu", "@acme"])
def test_a_name_that_no_alias_can_have_is_refused(install: Install, name: str) -> None:
    install(**{name: target_named(name)})
    with pytest.raises(JobError, match="lower-case letters"):
        target_names()


@pytest.mark.parametrize(
    ("brought", "words"),
    [
        (object(), "loads object"),
        (target_named("other"), "loads 'other'"),
        (type("Facts", (), {"facts": target_named("acme").facts})(), "loads Facts"),
    ],
)
def test_what_is_no_target_is_refused_by_its_entry_point(install: Install, brought: object, words: str) -> None:
    install(acme=brought)
    with pytest.raises(JobError, match=words) as caught:
        find_target("acme")
    assert GROUP in caught.value.found and "Engine" in caught.value.expected


def test_a_package_that_breaks_hinders_its_own_target_alone(install: Install) -> None:
    install(acme=target_named("acme"))
    del sys.modules["brought_0"]
    assert decode("int8-dynamic-pc@ort-cpu").target == "ort-cpu" and "acme" in target_names()
    with pytest.raises(JobError, match="acme of brought_0:TARGET fails to load: ModuleNotFoundError") as caught:
        facts_of("acme")
    assert "uninstall" in caught.value.fix


def test_a_candidate_names_an_engine_and_no_class() -> None:
    with pytest.raises(JobError) as caught:
        decode("int8-static-mse-pc@cpu")
    assert "ort-cpu, openvino" in caught.value.expected and "int8-static-mse-pc@ort-cpu" in caught.value.fix


def test_an_engine_that_a_class_lacks_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.engines.openvino.session.installed_version", lambda: None)
    found = find_target("cpu").availability(())
    assert found.is_here and "without openvino: openvino is not installed" in found.why
    assert "install" in found.mend and "openvino" in found.mend
    with pytest.raises(CandidateRefused) as caught:
        find_target("openvino").check_device()
    assert found.mend in caught.value.fix


def test_a_class_leaves_out_engines_only_beside_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OpenVINO its candidates are left out of the class; without a GPU all of `cuda` are made, and none measured."""
    monkeypatch.setattr("tasks.engines.openvino.session.installed_version", lambda: None)
    (absent,) = catalog.absent_engines(take_inventory("cpu"))
    assert absent.engine == "openvino" and "openvino" in absent.fix
    job = job_for("cpu")
    assert {decode(name).target for name in job.candidates_without([absent])} == {"ort-cpu", "torch-inductor"}
    named = job_for("cpu", candidates=["bf16@openvino", "fp32-fused@ort-cpu"])
    assert named.candidates_without([absent]) == named.candidates
    assert catalog.absent_engines(take_inventory("openvino")) == ()
    assert catalog.absent_engines(take_inventory("cuda")) == ()
    assert not find_target("cuda").availability(()).is_here


def test_a_class_leaves_out_engines_that_do_not_take_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a program nothing is said of a missing compiler either: installing it would not help."""
    monkeypatch.setattr("tasks.engines.inductor.session.compiler", lambda: None)
    inventory = replace(take_inventory("cpu"), absent=catalog.absent_engines(take_inventory("cpu")))
    assert [(one.engine, one.for_source) for one in inventory.absent] == [("torch-inductor", False)]
    unsuited = catalog.without_unsuited_engines(inventory, has_program=False)
    assert [(one.engine, one.for_source) for one in unsuited.absent] == [("torch-inductor", True)]
    assert {decode(name).target for name in job_for("cpu").candidates_without(unsuited.absent)} == {
        "ort-cpu",
        "openvino",
    }
    assert catalog.without_unsuited_engines(inventory, has_program=True) == inventory
    alone = take_inventory("torch-inductor")
    assert catalog.without_unsuited_engines(alone, has_program=False) == alone


def test_class_cuda_without_tensorrt_tries_onnx_runtime() -> None:
    engines = {name: find_target(name) for name in facts_of("cuda").engines}
    here = replace(engines["ort-cuda"], availability=lambda _providers: Availability(True, "a GPU"))
    absent = catalog._absent([here, *(one for name, one in engines.items() if name != "ort-cuda")], ())
    assert [one.engine for one in absent] == ["tensorrt", "torch-cuda"] and "tensorrt" in absent[0].fix
    assert catalog._class_of(facts_of("cuda"), engines | {"ort-cuda": here}).availability(()).is_here


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("int8-static-mse-pc@ort-genai", "'static'"),
        ("int8-dynamic-pc+fused@ort-genai", "'+fused'"),
        ("fp8-amax-pc@ort-genai", "FP8"),
        ("bf16@ort-genai", "bfloat16"),
        ("fp16@ort-genai", "float16"),
        ("int8-static-mse-pc@openvino-decoder", "'static'"),
        ("int8-dynamic-pc-smooth@openvino-decoder", "'smooth'"),
        ("fp32-fused@openvino-decoder", "float32"),
        ("fp8-amax-pc@openvino-decoder", "FP8"),
        ("int4-g32-rtn+kv8@openvino", "a cache of keys and values in INT8"),
        ("int4-g32-rtn-rot@ort-cpu", "a rotated graph"),
        ("int4-g32-hqq@ort-cpu", "symmetric blocks by half-quadratic splitting"),
    ],
)
def test_a_target_refuses_recipes_that_it_has_no_kernels_for(recipe: str, words: str) -> None:
    with pytest.raises(CandidateRefused) as caught:
        refuse_other_targets(decode(recipe), AMX)
    assert words in caught.value.found


@pytest.mark.parametrize("target", ["ort-genai", "openvino-decoder", "cpu-decoder"])
def test_a_target_for_decoders_makes_its_own_defaults(target: str) -> None:
    for name in facts_of(target).default_candidates:
        refuse_other_targets(decode(name), AMX)


def test_openvino_cache_has_the_bits_of_the_candidate() -> None:
    kinds = [
        session_settings(decode(f"int8-g32-rtn{cache}@openvino-decoder"), 2).provider_options["KV_CACHE_PRECISION"]
        for cache in ("", "+kv8", "+kv4")
    ]
    assert kinds == ["f32", "u8", "u4"]
    with pytest.raises(CandidateRefused, match="KV_CACHE_PRECISION"):
        session_settings(decode("int8-g32-rtn@openvino-decoder"), 2, (), {"KV_CACHE_PRECISION": "u8"})


def test_a_library_for_decoders_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.engines.genai.session.installed_version", lambda: None)
    target = find_target("ort-genai")
    found = target.availability(())
    assert not found.is_here and "onnxruntime-genai is not installed" in found.why and "genai" in found.mend
    with pytest.raises(CandidateRefused) as caught:
        target.check_device()
    assert found.mend in caught.value.fix
