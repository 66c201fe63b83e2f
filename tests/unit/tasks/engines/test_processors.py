"""What targets do on each kind of processor: candidates that are refused, bits of weights, and portable variants."""

from __future__ import annotations

from pathlib import Path

import pytest
from processors import HERE, KINDS, openvino_capabilities

from tasks.engines.openvino.session import why_missing
from tasks.engines.variants import refuse_other_targets
from tasks.ptq.build_variant import weight_bits
from validators.errors import CandidateRefused, JobError
from validators.job.candidate_name import decode
from validators.job.job import Job
from validators.job.read_job import parse_job
from validators.processors import OPENVINO_BF16, PORTABLE, TORCH_BF16, Processor
from validators.targets import facts_of

BF16, DYNAMIC = "bf16@openvino", "int8-dynamic-pc@openvino"
# Candidates that are refused on each kind, of one that needs each instruction set.
REFUSED = {
    "AVX2": {BF16, DYNAMIC, "bf16@torch-inductor"},
    "AVX-VNNI": {BF16, "bf16@torch-inductor"},
    "AVX-VNNI with bfloat16": {"bf16@torch-inductor"},
    "AVX512": {BF16, DYNAMIC, "bf16@torch-inductor"},
    "AVX512-VNNI": {BF16, "bf16@torch-inductor"},
    "AVX512-VNNI with bfloat16": set(),
    "AMX": set(),
    "ARM": {BF16, DYNAMIC, "bf16@torch-inductor"},
    "ARM with i8mm": {BF16, DYNAMIC},
}
ASKED = (
    "int8-static-mse-pc@ort-cpu",
    "int8-dynamic-pc@ort-cpu",
    "int8-static-mse-pc-all@openvino",
    "int8-static-mse-pc@torch-inductor",
    "int4-g32-rtn@ort-cpu",
    BF16,
    DYNAMIC,
    "bf16@torch-inductor",
)


def refusal(name: str, processor: Processor) -> CandidateRefused | None:
    try:
        refuse_other_targets(decode(name), processor)
    except CandidateRefused as error:
        return error
    return None


def job_for(**changes: object) -> Job:
    return parse_job(
        {"source": "m.onnx", "data": {"calibration": "c.npz", "evaluation": "e.npz"}} | changes, base=Path()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_candidates_are_refused_by_the_instruction_sets(kind: str) -> None:
    assert {name for name in ASKED if refusal(name, KINDS[kind])} == REFUSED[kind]


def test_refusal_names_instructions_and_a_possible_candidate() -> None:
    """The advice is followed, on the processor that lacks them."""
    for name, lacking, instead in (
        (BF16, "without bfloat16", "fp32-fused@openvino"),
        (DYNAMIC, "without VNNI", "int8-static-mse-pc@openvino"),
        ("bf16@openvino-decoder", "without bfloat16", "int8-g64-rtn@openvino-decoder"),
        ("int8-dynamic-pc@openvino-decoder", "without VNNI", "int8-g64-rtn@openvino-decoder"),
        ("bf16@torch-inductor", "without bfloat16", "fp32-fused@torch-inductor"),
    ):
        error = refusal(name, KINDS["AVX2"])
        assert error and error.kind == "unsupported" and lacking in error.found and "avx512" in error.expected
        word = instead.partition("-mse")[0].partition("@")[0]
        assert word in error.fix or "without bf16" in error.fix
        assert refusal(instead, KINDS["AVX2"]) is None


@pytest.mark.parametrize("kind", KINDS)
def test_weights_have_7_bits_where_sums_of_8_saturate(kind: str) -> None:
    expected = 7 if kind in ("AVX2", "AVX512") else 8
    for engine in ("ort-cpu", "openvino", "torch-inductor"):
        assert weight_bits(decode(f"int8-static-mse-pc@{engine}"), KINDS[kind]) == expected
    assert weight_bits(decode("int8-dynamic-pc@torch-cuda"), KINDS[kind]) == 8, "a GPU multiplies"


@pytest.mark.parametrize("target", ["cpu", "openvino", "torch-inductor", "cpu-decoder"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_default_list_has_candidates_for_every_kind(target: str, kind: str) -> None:
    """Of every engine, low precision among them."""
    names = [name for name in facts_of(target).default_candidates if not refusal(name, KINDS[kind])]
    engines = facts_of(target).engines or (target,)
    assert {decode(name).target for name in names} == set(engines)
    assert any(decode(name).precision.startswith("int") for name in names)


@pytest.mark.skipif(why_missing() is not None, reason="OpenVINO is not installed")
def test_instruction_sets_agree_with_openvino() -> None:
    assert HERE.has_any(OPENVINO_BF16) == ("BF16" in openvino_capabilities())


def test_instruction_sets_agree_with_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    capabilities = torch.cpu.get_capabilities()
    assert HERE.has_any(TORCH_BF16) == any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "arm_bf16"))


def test_portable_variants_are_those_for_the_least_processor() -> None:
    """Whatever the processor of the run has."""
    assert PORTABLE.isa == KINDS["AVX2"].isa and PORTABLE.adds_pairs_in_16_bits
    assert {name for name in ASKED if refusal(name, PORTABLE)} == REFUSED["AVX2"] | {
        "int8-static-mse-pc@torch-inductor"
    }
    error = refusal("fp32-fused@torch-inductor", PORTABLE)
    assert error and "`portable: true`" in error.found and "`portable: false`" in error.fix


def test_portable_is_about_processors() -> None:
    assert job_for(portable=True, target="cpu").portable and not job_for(target="cpu").portable
    with pytest.raises(JobError, match="torch-cuda runs on a GPU"):
        job_for(portable=True, target="torch-cuda")
