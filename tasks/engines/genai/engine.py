"""The target `ort-genai`: decoders with their caches, run by onnxruntime-genai on the processor."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from tasks.engines.availability import Availability, describe_missing, install
from tasks.engines.engine import Engine, Pass, RefusedPrecision
from tasks.engines.genai import session as genai
from tasks.engines.genai.facts import FACTS
from tasks.engines.given import take_decoder
from tasks.ptq.build_variant import Materials, int8_form, weights_form
from tasks.ptq.kv_cache import quantize_caches
from tasks.runtimes.decoder_bytes import decoder_bytes
from validators.errors import JobError
from validators.job.candidate_name import Candidate
from validators.records.latencies import NEW_TOKENS, USUAL_NEW_TOKENS
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.target_facts import GENAI


def _session(
    candidate: Candidate, threads: int, _libraries: Libraries, provider_options: Mapping[str, str]
) -> SessionSettings:
    if provider_options:
        raise JobError(
            found=f"`provider_options` for {candidate.target}",
            expected="none: the library has the options of its model builder",
            fix="remove them",
        )
    return SessionSettings(GENAI, threads, provider_options={NEW_TOKENS: str(USUAL_NEW_TOKENS)})


def _availability(_providers: Collection[str]) -> Availability:
    if missing := genai.why_missing():
        return Availability(False, describe_missing(missing), install("genai"))
    return Availability(True, f"onnxruntime-genai {genai.installed_version()}")


def _check_device() -> None:
    if missing := genai.why_missing():
        raise missing.refused(f"{missing.fix}: {install('genai')}")


def _for_decoders(make: Pass) -> Pass:
    """Return a pass that also quantizes the caches."""

    def form(candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
        changes = make(candidate, materials, path)
        if candidate.cache_bits:
            assert materials.cache_ranges, "the cache of this candidate would stay in float"
            count = quantize_caches(path, materials.cache_ranges(candidate.cache_bits), candidate.cache_bits)
            changes |= {f"caches of keys and values in INT{candidate.cache_bits}": count}
        return changes

    return form


ENGINE = Engine(
    facts=FACTS[0],
    passes={
        "int8": _for_decoders(int8_form),
        "int8-weights": _for_decoders(weights_form),
        "int4": _for_decoders(weights_form),
    },
    session=_session,
    availability=_availability,
    refused={
        "fp8": RefusedPrecision("FP8 for {target}", "int8 or int4: a CPU has no FP8 kernels"),
        "fp16": RefusedPrecision("float16 for {target}", "int8 or int4: a CPU computes float16 in float32"),
        "bf16": RefusedPrecision("bfloat16 for {target}", "int8 or int4: its kernels for a CPU have no bfloat16"),
    },
    check_device=_check_device,
    artifact="decoder/model.onnx",
    searches=frozenset({"int4"}),
    takes={".onnx": take_decoder},
    decoder_bytes=lambda _candidate, path: decoder_bytes(path),
)
ENGINES = (ENGINE,)
