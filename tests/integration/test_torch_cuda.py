"""The target `torch-cuda` on its twin: the same rewrites, packages and coverage with torch's device `cpu`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch
from processors import AMX
from torch_cuda_twin import NAME
from torch_sources import input_of, materials_of, write_source

from tasks.engines.inductor import session as inductor
from tasks.engines.inductor.engine import CUDA
from tasks.engines.variants import make_variant, refuse_other_targets
from tasks.runtimes.coverage import measure_coverage
from tasks.runtimes.runner import open_runner
from validators.errors import CandidateRefused
from validators.job.candidate_name import decode
from validators.targets import GROUP, installed_targets, load_target

MISSING = inductor.why_missing()
needs_compiler = pytest.mark.skipif(bool(MISSING), reason=MISSING.found if MISSING else "")

# Writes an exported program with a convolution, attention and linear layers, one of a width that no kernel takes; a batch and
# its answers.
PROGRAM = """
import sys
import numpy as np, torch
from torch.nn import functional as F
torch.manual_seed(0)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(3, 64, 3, padding=1)
        self.qkv, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64, bias=False)
        self.wide = torch.nn.Parameter(torch.randn(64, 128) / 8)
        self.last = torch.nn.Linear(128, 5)
    def forward(self, x):
        y = torch.relu(self.conv(x)).transpose(1, 2)
        q, k, v = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.qkv(y).chunk(3, -1))
        y = y + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.last(F.gelu(y @ self.wide)).mean(1)
model = Model().eval()
x = torch.randn(6, 3, 12)
program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
torch.export.save(program, sys.argv[1] + "/original.pt2")
np.savez(sys.argv[1] + "/batch.npz", x=x.numpy(), y=model(x).detach().numpy())
"""
TOKENS = 6 * 12
CONVOLVED, ATTENDED = TOKENS * 64 * 9, 6 * 4 * 12 * 12 * 16 * 2
QKV, OUT, WIDE, LAST = TOKENS * 64 * 192, TOKENS * 64 * 64, TOKENS * 64 * 128, TOKENS * 128 * 5


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source as a run resolves it, and `batch.npz` with its answers."""
    return write_source(tmp_path_factory.mktemp("source"), PROGRAM)


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    entries = [metadata.EntryPoint(NAME, "torch_cuda_twin:TARGET", GROUP)]
    monkeypatch.setattr(metadata, "entry_points", lambda group: entries if group == GROUP else [])
    for cached in (installed_targets, load_target):
        cached.cache_clear()
    yield
    for cached in (installed_targets, load_target):
        cached.cache_clear()


def precision_by_tensor() -> str:
    """Return "low" where oneDNN has a product in FP8 with scales by tensor, as on processors with AMX; "float" elsewhere."""
    codes, one = torch.zeros(16, 16).to(torch.float8_e4m3fn), torch.ones(())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        torch._scaled_mm(codes, codes.t(), one, one, out_dtype=torch.bfloat16)
    return "float" if any(event.name in ("aten::mm", "aten::addmm") for event in found.events()) else "low"


# A compilation takes half a minute: fp32-fused, which rewrites nothing, is compiled for `torch-inductor`, and bf16 in the
# rehearsal of the GPU check; tests/unit/tasks/ptq/test_program_grams.py has the other methods of INT4.
# With scales by row every processor multiplies floats within `_scaled_mm`: no share counts as FP8.
@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "error", "macs"),
    [
        ("fp16", 5e-3, {"half": CONVOLVED + ATTENDED + QKV + OUT + WIDE + LAST}),
        ("int8-dynamic-pc", 0.05, {"low": QKV + OUT + WIDE, "half": CONVOLVED + ATTENDED + LAST}),
        ("int4-g32-gptq-asym", 0.4, {"low": QKV + OUT + WIDE, "half": CONVOLVED + ATTENDED + LAST}),
        ("fp8-amax-pc", 0.15, {"float": QKV + OUT + WIDE, "half": CONVOLVED + ATTENDED + LAST}),
        ("fp8-amax-pt", 0.15, {"by tensor": QKV + OUT + WIDE, "half": CONVOLVED + ATTENDED + LAST}),
    ],
)
def test_form_answers_like_its_source(
    twin: None, source: Path, tmp_path: Path, recipe: str, error: float, macs: dict[str, int]
) -> None:
    """Each product runs in the precision of the name; the answers differ by its rounding, relative to their deviation."""
    macs = {
        precision_by_tensor() if precision == "by tensor" else precision: count for precision, count in macs.items()
    }
    with np.load(source / "batch.npz") as archive:
        batch, expected = {"x": archive["x"]}, archive["y"]
    name, materials = input_of(source), materials_of(source, batch["x"])
    variant = make_variant(decode(f"{recipe}@{NAME}"), materials, tmp_path, threads=2)
    with open_runner(variant.path, variant.session) as runner:
        (found,) = runner.run({name: batch["x"]}, [runner.outputs[0].name])
        # A single sample has fewer rows than the INT8 kernel takes.
        (one,) = runner.run({name: batch["x"][:1]}, [runner.outputs[0].name])
    assert 0 <= np.abs(found - expected).max() / expected.std() < error
    assert np.abs(one - expected[:1]).max() / expected.std() < error
    coverage = measure_coverage(variant.path, variant.session, {name: batch["x"]}, folder=tmp_path)
    by_precision = dict.fromkeys(("low", "half", "float"), 0)
    for kernel, count in coverage.macs_by_kernel.items():
        by_precision[coverage.precision(kernel)] += count
    assert {precision: count for precision, count in by_precision.items() if count} == macs


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("int8-static-minmax-pc", "'static'"),
        ("int8-dynamic-pt", "'dynamic-pt'"),
        ("int8-dynamic-pc-smooth", "'smooth'"),
        ("int8-dynamic-pc-40db", "a search for the forms"),
        ("int8-g32-rtn", "INT8 in blocks"),
        ("int4-g16-rtn", "'g16'"),
        ("int4-g128-awq", "'awq'"),
        ("int4-g64-hqq", "symmetric blocks by half-quadratic"),
        ("int4-g128-rtn-bf16", "'bf16'"),
        ("fp16+fused", "'+fused'"),
    ],
)
def test_recipe_without_a_form_is_refused_by_name(recipe: str, words: str) -> None:
    with pytest.raises(CandidateRefused) as caught:
        refuse_other_targets(decode(f"{recipe}@torch-cuda"), AMX)
    assert caught.value.kind == "unsupported" and words in caught.value.found


def test_torch_without_a_gpu_is_named() -> None:
    """A build for processors, as the suite has, or a machine without a GPU."""
    missing = inductor.why_no_gpu()
    if missing is None:
        pytest.skip("torch computes on a GPU here")
    found = CUDA.availability(())
    assert not found.is_here and found.mend
    with pytest.raises(CandidateRefused) as caught:
        CUDA.check_device()
    assert caught.value.kind == "unsupported"
