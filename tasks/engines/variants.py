"""From a candidate to its variant, by the passes and settings of its target."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from tasks.engines.catalog import find_target
from tasks.engines.engine import RefusedPrecision
from tasks.engines.given import take_up
from tasks.ptq.build_variant import Materials, int8_form, weight_bits, weights_form
from tasks.ptq.graph.edits import model_bytes, notes_of
from tasks.ptq.graph.equal_floats import parity_settings
from tasks.runtimes.parity import relative_distance
from tasks.runtimes.runner import open_runner
from validators.digests import digest_model, digest_values
from validators.errors import CandidateRefused
from validators.job.candidate_name import Candidate, decode
from validators.job.methods import ASYMMETRIC, FAST
from validators.processors import VNNI, Processor
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings, Variant
from validators.targets import built_in_engines, facts_of

# Engines round otherwise than the file says by less than a step of 8 bits in each layer.
ANOTHER = 0.1


def make_variant(
    candidate: Candidate,
    materials: Materials,
    folder: Path,
    *,
    threads: int,
    provider_options: Mapping[str, str] | None = None,
) -> Variant:
    """Make the candidate's artifact in `folder`, check it and describe it; `provider_options` are the job's.

    Raises:
        CandidateRefused: the target or the model does not allow it, or the pass made an invalid file.
    """
    refuse_other_targets(candidate, materials.processor)
    target = find_target(candidate.target)
    path = folder / target.artifact
    path.parent.mkdir(parents=True, exist_ok=True)
    session = session_settings(candidate, threads, materials.libraries, provider_options)
    changes: dict[str, int] = {}
    noted: dict[str, str] = {}
    for file in materials.companions:
        shutil.copyfile(file, path.with_name(file.name))
    if materials.given:
        path = path.with_suffix(materials.given.file.suffix)
        noted = take_up(target.takes[path.suffix], materials.given, path, session, materials)
    else:
        changes = target.passes[candidate.precision](candidate, replace(materials, pairs=target.pairs), path)
        if path.suffix == ".onnx":
            _check_onnx(path)
            noted = notes_of(path)
    seconds = target.compile_seconds(path)
    if target.facts.rewrites:
        noted |= _other_answers(path, session, materials)
    return Variant(
        candidate=candidate.name,
        path=path,
        digest=_digest(path, materials.libraries),
        size_bytes=model_bytes(path),
        session=session,
        proof="simulated" if candidate.is_simulated else "measured",
        changes=changes,
        notes=(
            *_notes(candidate, materials),
            *(f"{about} {note}" for about, note in noted.items()),
            *([f"compiled in {seconds:.1f} s"] if seconds else []),
        ),
        compile_seconds=seconds,
        decoder=target.decoder_bytes(candidate, path) if target.decoder_bytes else None,
        saturates_without=_saturates_without(candidate, materials),
    )


def _other_answers(path: Path, session: SessionSettings, materials: Materials) -> dict[str, str]:
    """Return a note if the engine computes another function than its file, which ONNX Runtime computes as written.

    It rewrites graphs when it loads them. What it gets wrong would look like a loss of the precision
    (`benchmarks/engine_disagreements.py` has the patterns that are known).

    Raises:
        CandidateRefused: `unsupported`: the engine answers a request otherwise when it comes again. Behind some `If` its first
            answer of a larger size is memory that it did not write.
    """
    batch, found = materials.batches()[0], []
    in_engine = (session.without_spinning(), 2)
    # ONNX Runtime reads no file of OpenVINO's own.
    asked = (*([(parity_settings(materials.libraries), 1)] if path.suffix == ".onnx" else ()), in_engine)
    for settings, times in asked:
        with open_runner(path, settings) as runner:
            names = [spec.name for spec in runner.outputs]
            found += [dict(zip(names, runner.run(batch, names), strict=True)) for _ in range(times)]
    *written, first, engine = found
    name, apart = _farthest(engine, first)
    if not apart <= ANOTHER:
        raise CandidateRefused(
            kind="unsupported",
            found=f"{session.provider} answers one request in two ways: {name!r} is {apart:.0%} off when it is asked again",
            expected="answers that depend on the request alone",
            fix="use another engine for this model, or export it without If",
        )
    name, apart = _farthest(written[0], engine) if written else ("", 0.0)
    if apart <= ANOTHER:
        return {}
    return {
        session.provider: f"computes another function than the file: its {name!r} is {apart:.0%} off ONNX Runtime's"
    }


def _farthest(expected: Mapping[str, NDArray[Any]], found: Mapping[str, NDArray[Any]]) -> tuple[str, float]:
    """Return the float output that differs most, and by which share of its values; infinite if one side is not finite."""
    apart = {
        name: relative_distance(expected[name], found[name])
        for name in expected
        if expected[name].dtype.kind == "f" and expected[name].shape == found[name].shape
    }
    name = max(apart, key=lambda name: apart[name], default="")
    return name, apart.get(name, 0.0)


def _check_onnx(path: Path) -> None:
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise CandidateRefused(
            kind="invalid",
            found=f"the pass made an invalid file: {str(error).splitlines()[0]}",
            expected="a file that passes onnx.checker",
            fix="report it with the source model; take another candidate meanwhile",
        ) from error


def _digest(path: Path, libraries: Libraries) -> str:
    """Return the digest of the model, and of the custom-operator libraries that it is approved with, if any."""
    digest = digest_model(path)
    return digest_values(digest, [library.digest for library in libraries]) if libraries else digest


def _saturates_without(candidate: Candidate, materials: Materials) -> tuple[str, ...]:
    """Return the instruction sets, without all of which sums of a variant's INT8 products saturate on an x86 processor."""
    target = find_target(candidate.target)
    in_float = candidate.dynamic and target.pairs.place_weights is not None  # products are in float without them
    has_7_bits = not candidate.given and weight_bits(candidate, materials.processor) == 7
    is_exact = target.facts.on_gpu or in_float or has_7_bits
    return VNNI if candidate.precision == "int8" and not is_exact else ()


def _notes(candidate: Candidate, materials: Materials) -> tuple[str, ...]:
    if candidate.is_simulated:
        return ("FP8 has no kernels on a CPU: numerics are simulated, latency is not measured",)
    if candidate.precision == "int8" and not candidate.given and weight_bits(candidate, materials.processor) == 7:
        return (
            "weights have 7 bits: x86 processors without VNNI add pairs of INT8 products in 16 bits, and none saturates",
        )
    return ()


def refuse_other_targets(candidate: Candidate, processor: Processor) -> None:
    """Refuse a candidate that this version cannot make, or that needs instructions which the processor does not have.

    Raises:
        CandidateRefused: `unsupported`.
    """
    target = find_target(candidate.target)
    if not candidate.given:  # its file may hold what no recipe makes
        if words := target.facts.refused_words(candidate.name):
            raise CandidateRefused(
                kind="unsupported",
                found=f"{words!r} in {candidate.name}",
                expected=f"a name without it: {target.facts.without[words]}",
                fix="take another candidate",
            )
        target.refuse_recipe(candidate)
    refused = target.refused.get(candidate.precision)
    if refused is None and candidate.precision not in target.passes:
        refused = RefusedPrecision("{precision} for {target}", f"one of {', '.join(target.passes)}")
    if refused is None and (candidate.cache_bits or candidate.rotated) and not target.facts.generates:
        decoders = [name for name in built_in_engines() if facts_of(name).generates]
        asked = (
            f"a cache of keys and values in INT{candidate.cache_bits}" if candidate.cache_bits else "a rotated graph"
        )
        refused = RefusedPrecision(
            f"{asked} for {{target}}",
            f"a target that runs decoders with their caches: {' or '.join(decoders)}",
        )
    if refused is None and candidate.rounding.fractions and not candidate.asymmetric:
        refused = RefusedPrecision(
            f"symmetric blocks {candidate.rounding.words} for {{target}}", f"-{ASYMMETRIC.word}: it chooses zero points"
        )
    if refused is None and candidate.retired:
        refused = RefusedPrecision(f"{candidate.retired} for {{target}}", "a bound on the noise, such as -40db")
    if refused is None and candidate.sqnr_db and candidate.precision not in target.searches:
        refused = RefusedPrecision(
            "a search for the forms of {precision} parts for {target}", "a candidate without -<N>db"
        )
    if refused is None and candidate.fast and candidate.precision == "fp8" and not target.facts.builds_engines:
        refused = RefusedPrecision(
            "FP8 products left in float for {target}", f"fp8 without -{FAST.word}, or for tensorrt"
        )
    if refused is None and candidate.in_bf16 and "bf16" not in target.passes:
        refused = RefusedPrecision("bfloat16 for {target}", "a candidate without bf16")
    if refused:
        raise CandidateRefused(
            kind="unsupported",
            found=refused.found.format(target=target.name, precision=candidate.precision),
            expected=refused.expected,
            fix=refused.fix,
        )
    if processor.is_any and not target.facts.loads_anywhere:
        raise CandidateRefused(
            kind="unsupported",
            found=f"`portable: true`, and {target.name} compiles code for one processor",
            expected="a candidate of another engine",
            fix="take candidates of other engines, or set `portable: false`",
        )
    if need := target.facts.unmet_need(candidate.name, processor):
        raise CandidateRefused(
            kind="unsupported",
            found=f"a processor without {need.name} instructions",
            expected=f"one with {' or '.join(need.instructions)}: {need.why}",
            fix=need.fix,
        )


def session_settings(
    candidate: Candidate,
    threads: int,
    libraries: Libraries = (),
    provider_options: Mapping[str, str] | None = None,
) -> SessionSettings:
    """Return how the runtime must load the candidate's artifact; `provider_options` are the job's."""
    return find_target(candidate.target).session(candidate, threads, libraries, provider_options or {})


def why_unmeasured(variant: Variant, providers: Collection[str]) -> CandidateRefused | None:
    """Return why a variant that was made is not measured, given the providers that can run something on this worker."""
    if variant.proof == "aot-checked":
        return None  # its answers are simulated on the CPU
    missing = find_target(decode(variant.candidate).target).why_unmeasured(providers)
    if missing is None:
        return None
    return CandidateRefused(
        kind="unsupported",
        found=f"{missing.found}: {variant.path} was made and checked, and not measured",
        expected=missing.expected,
        fix=f"{missing.fix}, or take candidates for ort-cpu",
    )


def leaves_convolutions(candidate: Candidate) -> bool:
    """Return True if the target's form leaves every convolution in float: their integer kernels need calibrated ranges."""
    if candidate.given:
        return False
    form = find_target(candidate.target).passes.get(candidate.precision)
    return form is weights_form or (form is int8_form and candidate.dynamic)
