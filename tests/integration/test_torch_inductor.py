"""The target `torch-inductor`: coverage of planted fallbacks, and what it says where it cannot compile."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from driving import TESTS, environment
from processors import AMX, HERE
from torch_sources import input_of, materials_of, run_program, write_source

from tasks.engines.catalog import find_target
from tasks.engines.given import has_ranges_at_run_time
from tasks.engines.inductor import session as inductor
from tasks.engines.variants import make_variant, refuse_other_targets, session_settings
from tasks.ptq.build_variant import Materials
from tasks.runtimes.confined import confined_environment
from tasks.runtimes.coverage import measure_coverage
from tasks.runtimes.runner import open_runner
from validators.digests import digest_file
from validators.errors import CandidateRefused
from validators.gates.coverage import judge_coverage
from validators.job.candidate_name import decode
from validators.job.given_file import GivenFile
from validators.job.job_gates import Gates
from validators.processors import TORCH_BF16

MISSING = inductor.why_missing() or inductor.why_no_int8()
needs_compiler = pytest.mark.skipif(bool(MISSING), reason=MISSING.found if MISSING else "")
needs_bf16 = pytest.mark.skipif(not HERE.has_any(TORCH_BF16), reason="no bfloat16 instructions")
INT8, BF16, FP32 = (
    session_settings(decode(f"{name}@torch-inductor"), 2) for name in ("int8-static-minmax-pc", "bf16", "fp32-fused")
)
# Multiply-accumulates of the products of `inductor_faults.py` for five samples.
SOUND, BETWEEN, ALONE, HALF = (5 * size for size in (64 * 48, 48 * 40, 40 * 32, 32 * 16))


# Writes an exported program, a batch and its answers.
PROGRAM = """
import sys
import numpy as np, torch
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(512, 32), torch.nn.Linear(32, 4)
).eval()
x = torch.randn(6, 3, 8, 8)
program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
torch.export.save(program, sys.argv[1] + "/original.pt2")
np.savez(sys.argv[1] + "/batch.npz", x=x.numpy(), y=model(x).detach().numpy())
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source as a run resolves it, and `batch.npz` with its answers."""
    return write_source(tmp_path_factory.mktemp("source"), PROGRAM)


@needs_compiler
@needs_bf16
@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "precisions", "error"),
    [
        ("fp32-fused", {"float"}, 1e-5),
        ("bf16", {"half"}, 0.02),
        ("int8-static-mse-pc", {"low"}, 0.1),
        # Inductor has no convolution with ranges at run time.
        ("int8-dynamic-pc", {"low", "float"}, 0.1),
    ],
)
def test_form_answers_like_its_source(
    source: Path, tmp_path: Path, recipe: str, precisions: set[str], error: float
) -> None:
    """The products run in the precision of the name; the answers differ by its rounding, relative to their deviation."""
    with np.load(source / "batch.npz") as archive:
        batch, expected = {"x": archive["x"]}, archive["y"]
    name, materials = input_of(source), materials_of(source, batch["x"])
    variant = make_variant(decode(f"{recipe}@torch-inductor"), materials, tmp_path, threads=2)
    assert variant.path.name == "model.pt2" and variant.compile_seconds
    assert f"compiled in {variant.compile_seconds:.1f} s" in variant.notes
    with open_runner(variant.path, variant.session) as runner:
        (found,) = runner.run({name: batch["x"]}, [runner.outputs[0].name])
    assert 0 <= np.abs(found - expected).max() / expected.std() < error
    coverage = measure_coverage(variant.path, variant.session, {name: batch["x"]})
    assert {coverage.precision(kernel) for kernel in coverage.macs_by_kernel} == precisions
    assert sum(coverage.macs_by_kernel.values()) == 6 * (64 * 8 * 27 + 512 * 32 + 32 * 4)


# Quantizes the program with torchao's quantizer for x86, as its guide does.
QUANTIZED = """
import sys
import numpy as np, torch
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86
x = torch.from_numpy(np.load(sys.argv[1] + "/batch.npz")["x"])
axes = ({0: torch.export.Dim.DYNAMIC},)
model = torch.export.load(sys.argv[1] + "/original.pt2").module()
quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
prepared = prepare_pt2e(torch.export.export(model, (x,), dynamic_shapes=axes).module(), quantizer)
prepared(x)
torch.export.save(torch.export.export(convert_pt2e(prepared), (x,), dynamic_shapes=axes), sys.argv[1] + "/theirs.pt2")
"""


@needs_compiler
@pytest.mark.slow
def test_program_of_another_tool_keeps_its_int8(source: Path, tmp_path: Path) -> None:
    """It is compiled as it is, with the names of the source; its record names the file and the torch that wrote it."""
    run_program(QUANTIZED, source)
    with np.load(source / "batch.npz") as archive:
        x, expected = archive["x"], archive["y"]
    given, batch = GivenFile(name="theirs", file=source / "theirs.pt2", engine="torch-inductor"), {input_of(source): x}
    materials = replace(materials_of(source, x), given=given, source=source / "model.onnx")
    variant = make_variant(decode(given.candidate), materials, tmp_path, threads=2)
    assert variant.path.name == "model.pt2" and variant.compile_seconds and variant.saturates_without
    assert f"sha256 {digest_file(given.file)}, says that torch.export of torch {torch.__version__}" in variant.notes[0]
    assert not has_ranges_at_run_time(variant.path)
    with open_runner(variant.path, variant.session) as runner:
        (found,) = runner.run(batch, [onnx.load(source / "model.onnx").graph.output[0].name])
    assert 0 < np.abs(found - expected).max() / expected.std() < 0.1
    coverage = measure_coverage(variant.path, variant.session, batch)
    assert {coverage.precision(kernel) for kernel in coverage.macs_by_kernel} == {"low"}
    assert sum(coverage.macs_by_kernel.values()) == 6 * (64 * 8 * 27 + 512 * 32 + 32 * 4)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    command = [sys.executable, "-W", "ignore", str(TESTS / "inductor_faults.py"), str(folder / "model.pt2")]
    told = environment(folder) | confined_environment(folder)
    done = subprocess.run(command, env=told, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "model.pt2"


@needs_compiler
@needs_bf16
@pytest.mark.slow
def test_coverage_names_each_planted_fallback(planted: Path, tmp_path: Path) -> None:
    batch = {"x": np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)}
    coverage = measure_coverage(planted, BF16, batch, folder=tmp_path)
    # Sums over the file, and over each precision.
    macs = dict.fromkeys(("low", "half", "float"), 0)
    for kernel, count in coverage.macs_by_kernel.items():
        macs[coverage.precision(kernel)] += count
    assert macs == {"low": SOUND, "half": HALF, "float": BETWEEN + ALONE}
    kinds = {node.macs: coverage.precision(node.kernel) for node in coverage.products}
    assert kinds == {SOUND: "low", BETWEEN: "float", ALONE: "float", HALF: "half"}
    assert len(coverage.float_nodes) == 2 and len(coverage.half_nodes) == 1
    # With the implementation between, whose name differs from processor to processor.
    assert coverage.low_precision and all(name.endswith(" u8 x s8") for name in coverage.low_precision)
    assert coverage.us_by_kernel and coverage.kernels_path and coverage.kernels_path.exists()
    verdict = judge_coverage("int8-static-minmax-pc@torch-inductor", coverage, Gates(min_coverage=0.5))
    assert verdict and verdict.outcome == "fail" and coverage.float_nodes[0] in verdict.reason


@needs_compiler
@needs_bf16
@pytest.mark.slow
@pytest.mark.parametrize("settings", [INT8, FP32])
def test_bfloat16_that_was_not_asked_for_is_refused(planted: Path, settings: object) -> None:
    batch = {"x": np.zeros((5, 64), np.float32)}
    with pytest.raises(CandidateRefused) as caught:
        measure_coverage(planted, settings, batch)  # type: ignore[arg-type]  # parametrized as an object
    assert caught.value.kind == "invalid" and "1 products in 16 bits" in caught.value.found


@needs_compiler
@needs_bf16
@pytest.mark.slow
def test_arrays_that_do_not_fit_are_refused(planted: Path) -> None:
    """The compiled code would read past their ends."""
    with open_runner(planted, INT8) as runner:
        assert [(spec.name, spec.dtype, spec.shape) for spec in runner.inputs] == [("x", "float32", (None, 64))]
        assert runner.run({"x": np.zeros((3, 64), np.float32)}, ["y"])[0].shape == (3, 16)
        for wrong in (np.zeros((3, 60), np.float32), np.zeros((3, 64)), np.zeros((64,), np.float32)):
            with pytest.raises(CandidateRefused) as caught:
                runner.run({"x": wrong}, ["y"])
            assert "expected float32 [" in caught.value.found and "correct the array" in caught.value.found


def test_source_of_onnx_is_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    absent = Materials(*[lambda *_: pytest.fail("made a material")] * 7, HERE)  # type: ignore[arg-type]  # none of them may be called
    with pytest.raises(CandidateRefused) as caught:
        make_variant(decode("fp32-fused@torch-inductor"), absent, tmp_path, threads=1)
    assert caught.value.kind == "unsupported" and "TorchInductor compiles no ONNX" in caught.value.expected


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("int8-static-entropy-pc", "'entropy'"),
        ("int8-static-p99.9-pc", "'p99.9'"),
        ("int8-static-minmax-pt", "'pt'"),
        ("int8-static-minmax-pc-all", "'all'"),
        ("int8-static-minmax-pc-s8s8", "'s8s8'"),
        ("int8-static-mse-pc-smooth", "'smooth'"),
        ("int8-static-mse-pc-bc", "'bc'"),
        ("int8-static-mse-pc-40db", "a search for the forms"),
        ("int8-static-mse-pc-bf16", "'bf16'"),
        ("int8-dynamic-pc+fused", "'+fused'"),
        ("int4-g32-rtn", "INT4"),
        ("fp8-amax-pc", "FP8"),
        ("fp16", "float16"),
    ],
)
def test_recipe_without_a_form_is_refused_by_name(recipe: str, words: str) -> None:
    with pytest.raises(CandidateRefused) as caught:
        refuse_other_targets(decode(f"{recipe}@torch-inductor"), AMX)
    assert caught.value.kind == "unsupported" and words in caught.value.found


def test_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    target = find_target("torch-inductor")
    found = target.availability(())
    assert not found.is_here and "no C++ compiler (/nowhere/c++)" in found.why and "install g++" in found.mend
    with pytest.raises(CandidateRefused) as caught:
        target.check_device()
    assert caught.value.kind == "unsupported" and "C++ compiler" in caught.value.found
