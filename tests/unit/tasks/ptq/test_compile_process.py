"""The compiling process of TorchInductor: its device, its answer where a package crashes, and what it asks of the compiler."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.engines.inductor import compile_process, programs
from tasks.runtimes.confined import confined_environment
from validators.source_code import OURS


def test_pytorch_alone_can_compile() -> None:
    """The machine of `make gpu-first` has neither onnx nor a runtime of it."""
    code = (
        "import sys\n"
        "for name in ('onnx', 'onnxruntime', 'pydantic'): sys.modules[name] = None\n"
        "import tasks.engines.inductor.compile_process, tasks.engines.inductor.compiler"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=OURS.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_gpu_has_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an H200, torch refused a program that was moved to `cuda`, whose tensors were on `cuda:0`."""
    monkeypatch.setattr("torch.cuda.current_device", lambda: 2)
    assert str(compile_process._device("cuda")) == "cuda:2" and str(compile_process._device("cpu")) == "cpu"


def test_package_that_crashes_when_loaded_leaves_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The crash ends the process, as an interrupt does here; a package that loads leaves what was made."""
    order = {"folder": str(tmp_path), "written_bytes": 1}
    monkeypatch.setattr(compile_process, "confine", lambda _: None)
    monkeypatch.setattr(compile_process, "_compile", lambda _: {"seconds": 1.0, "changes": {}})
    monkeypatch.setenv("CXX", "/opt/other/g++")

    def crash(_: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compile_process, "_load", crash)
    with pytest.raises(KeyboardInterrupt):
        compile_process.main(order)
    told = json.loads((tmp_path / compile_process.ANSWER).read_text(encoding="utf-8"))
    assert "crashes when it is loaded. /opt/other/g++ compiled it" in told["error"] and "set CXX" in told["error"]
    monkeypatch.setattr(compile_process, "_load", lambda _: None)
    compile_process.main(order)
    told = json.loads((tmp_path / compile_process.ANSWER).read_text(encoding="utf-8"))
    assert told == {"seconds": 1.0, "changes": {}}


# Of torch about itself.
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")
@pytest.mark.parametrize("autotunes", [False, True])
def test_generated_kernels_compete_where_asked(autotunes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    exported = programs.export(programs.Flat(_linear()), (torch.zeros(2, 4),), [{}])
    asked: dict[str, Any] = {}
    monkeypatch.setattr(
        "torch._inductor.aoti_compile_and_package", lambda *_, inductor_configs, **__: asked.update(inductor_configs)
    )
    order = {"package": "model.pt2", "inputs": ["x"], "outputs": ["y"]}
    compile_process.write_package(exported, order, records_kernels=True, autotunes=autotunes)
    assert asked["max_autotune_gemm"] is autotunes and asked["cpp.enable_kernel_profile"] is True


class _Ranges(torch.nn.Module):
    """A layer on the codes of a tensor, whose range is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        quantized = torch.ops.quantized_decomposed
        scale, zero = quantized.choose_qparams.tensor(x, 0, 255, 1e-5, torch.uint8)
        codes = quantized.quantize_per_tensor.tensor(x, scale, zero, 0, 255, torch.uint8)
        return self.layer(quantized.dequantize_per_tensor.tensor(codes, scale, zero, 0, 255, torch.uint8))


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")
@pytest.mark.parametrize("is_dynamic", [True, False])
def test_package_tells_of_ranges_at_run_time(is_dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.ao.quantization.fx import _decomposed  # noqa: F401  # registers the operators

    asked: dict[str, Any] = {}
    monkeypatch.setattr(
        "torch._inductor.aoti_compile_and_package", lambda *_, inductor_configs, **__: asked.update(inductor_configs)
    )
    exported = torch.export.export(_Ranges(), (torch.zeros(2, 4),)) if is_dynamic else _linear()
    compile_process.write_package(exported, {"package": "model.pt2", "inputs": ["x"], "outputs": ["y"]})
    assert json.loads(asked["aot_inductor.metadata"]["quantgate"])[compile_process.RANGES] is is_dynamic


def _linear() -> torch.export.ExportedProgram:
    return torch.export.export(torch.nn.Linear(4, 4), (torch.zeros(2, 4),))


def test_linker_of_a_gpu_finds_its_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of CUDA name the folder of `libcuda`'s stub in LIBRARY_PATH, and the toolkit in CUDA_HOME or CUDA_PATH."""
    for name in ("LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.setenv(name, "/usr/local/cuda")
    kept = confined_environment(tmp_path)
    assert {kept[name] for name in ("LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")} == {"/usr/local/cuda"}
