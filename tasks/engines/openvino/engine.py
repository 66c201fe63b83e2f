"""The target `openvino`: OpenVINO's own runtime, on any processor that it supports."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tasks.engines.availability import Availability, describe_missing, install
from tasks.engines.engine import Engine, RefusedPrecision
from tasks.engines.given import take_onnx
from tasks.engines.openvino import session as openvino
from tasks.engines.openvino.facts import FACTS
from tasks.engines.openvino.pairs import PAIRS
from tasks.ptq.build_variant import Materials, int8_form, plain_float_form, weights_form
from tasks.runtimes.kernels import Costs
from validators.errors import CandidateRefused
from validators.job.candidate_name import Candidate
from validators.job.given_file import GivenFile
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays
from validators.target_facts import OPENVINO

# Channels of an activation that share a scale where the runtime quantizes it, before products with weights in integers: by its
# own default 32; 0 is never. With 64 a product of 16 x 1024 x 1024 took three quarters of the time, with the same error.
GROUP = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
# Options that belong to the candidate and to `measurement.threads`.
OWN = frozenset({"INFERENCE_PRECISION_HINT", "INFERENCE_NUM_THREADS", "CACHE_DIR", "PERF_COUNT"})


def session(
    candidate: Candidate, threads: int, libraries: Libraries, provider_options: Mapping[str, str]
) -> SessionSettings:
    """Return the session settings of a candidate; see `tasks.engines.engine.Session`.

    Raises:
        CandidateRefused: `unsupported`: `provider_options` has an option that belongs to the candidate or to the job.
    """
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        # Its default is bfloat16 where the processor has it.
        "INFERENCE_PRECISION_HINT": "bf16" if candidate.in_bf16 else "f32",
        GROUP: "64" if candidate.dynamic else "32" if candidate.precision == "int4" else "0",
    }
    if wrong := sorted(OWN & provider_options.keys()):
        raise CandidateRefused(
            kind="unsupported",
            found=f"{wrong[0]} in `provider_options`",
            expected="options of OpenVINO other than precision, threads, cache and counters",
            fix="name a candidate with or without bf16, or set `measurement.threads`",
        )
    return SessionSettings(OPENVINO, threads, libraries=libraries, provider_options=options | dict(provider_options))


def _availability(_providers: Collection[str]) -> Availability:
    if missing := openvino.why_missing():
        mend = missing.fix if openvino.installed_version() else install("openvino")
        return Availability(False, describe_missing(missing), mend)
    return Availability(True, f"OpenVINO {openvino.installed_version()}")


def _check_device() -> None:
    if missing := openvino.why_missing():
        raise missing.refused("" if openvino.installed_version() else f"{missing.fix}: {install('openvino')}")


def _profile_costs(models: Sequence[Path], batch: Arrays, settings: SessionSettings) -> list[Costs]:
    from tasks.engines.openvino.coverage import profile_costs  # needs the package, too

    return profile_costs(models, batch, settings)


def _take_ir(given: GivenFile, path: Path, materials: Materials) -> str:
    from tasks.engines.openvino.ir import take_ir  # needs the package, which the catalogue of engines does not

    return take_ir(given, path, materials.source)


ENGINE = Engine(
    facts=FACTS[0],
    passes={"fp32": plain_float_form, "bf16": plain_float_form, "int8": int8_form, "int4": weights_form},
    pairs=PAIRS,
    session=session,
    availability=_availability,
    refused={
        "fp8": RefusedPrecision("FP8 for {target}", "int8: it has no FP8 kernels for a CPU"),
        "fp16": RefusedPrecision(
            "float16 for {target}",
            "bf16: a CPU computes float16 in float32, and OpenVINO would keep the weights in float32 too",
        ),
    },
    check_device=_check_device,
    searches=frozenset({"int8"}),
    profile_costs=_profile_costs,
    takes={".onnx": take_onnx, ".xml": _take_ir},
)
ENGINES = (ENGINE,)
