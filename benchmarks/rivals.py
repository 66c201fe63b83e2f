"""What a user would run in place of quantgate on a CPU, each by its own tools: ONNX Runtime's quantizers, the recipe that
Hugging Face's optimum gives them for AVX512-VNNI, OpenVINO with and without NNCF, TorchInductor with and without torchao.

NNCF and torchao, and what they need beyond the development environment, are installed into a folder of their own, which only
the processes that make rivals see:

    python -m pip install --no-deps --target build/rivals -r benchmarks/rivals.txt
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from validators.samples.datasets import Arrays, part_of, rows_of
from validators.target_facts import CPU_PROVIDER, OPENVINO

Batches = Sequence[Arrays]
# The provider of the target `torch-inductor`; without that target its rivals are refused.
INDUCTOR = "TorchInductor"
PACKAGES = Path(__file__).parents[1] / "build" / "rivals"
# In the folder of a rival that could not be made: the reason.
REFUSED = "refused.txt"


@dataclass(frozen=True)
class Source:
    """The model that rivals start from: its ONNX file, its kind (text, image), calibration samples as `.npz`.

    `torch_weights` has the weights of the PyTorch module, as `rivals_torch.module` reads them. Calibration takes
    `batch_size` samples at once.
    """

    onnx: Path
    kind: str
    calibration: Path
    torch_weights: Path | None = None
    batch_size: int = 16

    def batches(self) -> list[Arrays]:
        """Return the calibration samples, batch by batch."""
        with np.load(self.calibration) as archive:
            arrays = {key: archive[key] for key in archive.files if key != "label"}
        starts = range(0, rows_of(arrays), self.batch_size)
        return [part_of(arrays, at, at + self.batch_size) for at in starts]


@dataclass(frozen=True)
class Rival:
    """A way to run the model: how its file is written, and the provider and options that run it.

    Without `recipe` the source's own file is run. Rivals with one recipe share its file.
    """

    recipe: str | None
    provider: str = CPU_PROVIDER
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        """Return the name of its file; the suffix is what its tools expect."""
        return {CPU_PROVIDER: "model.onnx", OPENVINO: "model.xml", INDUCTOR: "model.pt2"}[self.provider]


def optimized(source: Source, path: Path) -> None:
    """`onnxruntime.transformers.optimizer`, float32."""
    from onnxruntime.transformers import optimizer

    model = optimizer.optimize_model(str(source.onnx), model_type="bert", num_heads=0, hidden_size=0, opt_level=1)
    model.save_model_to_file(str(path))


def static_default(source: Source, path: Path) -> None:
    """`quantize_static(source, path, reader)`: S8S8, per tensor, MinMax."""
    from onnxruntime.quantization import quantize_static

    quantize_static(source.onnx, path, _reader(source))


def static_strong(source: Source, path: Path) -> None:
    """After `quant_pre_process`: per channel, U8S8, MatMul, Gemm and Conv with constant weights."""
    from onnxruntime.quantization import QuantType, quant_pre_process, quantize_static

    prepared = path.with_name("prepared.onnx")
    quant_pre_process(source.onnx, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared,
        path,
        _reader(source),
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["MatMul", "Gemm", "Conv"],
        extra_options={"MatMulConstBOnly": True},
    )


def dynamic(source: Source, path: Path) -> None:
    """`quantize_dynamic`, per channel."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(source.onnx, path, per_channel=True, weight_type=QuantType.QInt8)


def vnni_static(source: Source, path: Path) -> None:
    """optimum-onnx 0.1.0, `AutoQuantizationConfig.avx512_vnni(is_static=True, per_channel=True)`: every operator, U8S8.

    Its quantizer calls the one of ONNX Runtime with these arguments.
    """
    from onnxruntime.quantization import QuantType, quantize_static

    quantize_static(
        source.onnx,
        path,
        _reader(source),
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        extra_options={
            "WeightSymmetric": True,
            "ActivationSymmetric": False,
            "QDQOpTypePerChannelSupportToAxis": {"MatMul": 1},
        },
    )


def nncf_default(source: Source, path: Path, **options: Any) -> None:
    """`nncf.quantize(model, dataset)` on all samples, one by one; for transformers with `model_type`, as its guide says."""
    import nncf
    import openvino

    batches = replace(source, batch_size=1).batches()
    model_type = None if source.kind == "image" else nncf.ModelType.TRANSFORMER
    model = openvino.Core().read_model(source.onnx)
    quantized = nncf.quantize(model, nncf.Dataset(batches), model_type=model_type, subset_size=len(batches), **options)
    openvino.save_model(quantized, path, compress_to_fp16=False)


# Of TorchInductor: `torch.export` and `aoti_compile_and_package` with freezing, in float and after torchao's
# `X86InductorQuantizer` with its default configuration.
RECIPES: dict[str, Callable[[Source, Path], None]] = {
    "optimized": optimized,
    "static_default": static_default,
    "static_strong": static_strong,
    "dynamic": dynamic,
    "vnni_static": vnni_static,
    "nncf_default": nncf_default,
    "nncf_slow_bias": partial(nncf_default, fast_bias_correction=False),
    "inductor_float": lambda source, path: _compiler(source).in_float(path),
    "torchao_static": lambda source, path: _compiler(source).in_int8(path, is_dynamic=False),
    "torchao_dynamic": lambda source, path: _compiler(source).in_int8(path, is_dynamic=True),
}
# OpenVINO's own defaults compute what is not quantized in bfloat16 where the processor has it.
IN_F32 = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
RIVALS = {
    "ORT fp32, transformer-optimized": Rival("optimized"),
    "ORT static, defaults": Rival("static_default"),
    "ORT static, strong": Rival("static_strong"),
    "ORT dynamic": Rival("dynamic"),
    "optimum VNNI static": Rival("vnni_static"),
    "OpenVINO, defaults": Rival(None, OPENVINO),
    "OpenVINO, f32": Rival(None, OPENVINO, IN_F32),
    "NNCF in OpenVINO, defaults": Rival("nncf_default", OPENVINO),
    "NNCF in OpenVINO, f32": Rival("nncf_default", OPENVINO, IN_F32),
    "NNCF, slow bias correction, defaults": Rival("nncf_slow_bias", OPENVINO),
    "NNCF, slow bias correction, f32": Rival("nncf_slow_bias", OPENVINO, IN_F32),
    "TorchInductor, f32": Rival("inductor_float", INDUCTOR),
    "torchao static in TorchInductor": Rival("torchao_static", INDUCTOR),
    "torchao dynamic in TorchInductor": Rival("torchao_dynamic", INDUCTOR),
}


def make(rival: Rival, source: Source, folder: Path) -> Path | str:
    """Return the rival's file, made by a process of its own, or the reason why there is none; either is kept in the folder.

    A process of its own, since some take all memory.
    """
    if rival.recipe is None:
        return source.onnx
    place = folder / rival.recipe
    if not place.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Whole or absent: an interrupted run goes on where it stopped.
        with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as unfinished:
            reason = _make(rival, source, Path(unfinished, rival.file_name))
            if reason:
                Path(unfinished, REFUSED).write_text(reason, encoding="utf-8")
            Path(unfinished).rename(place)
    refused = place / REFUSED
    return refused.read_text(encoding="utf-8") if refused.exists() else place / rival.file_name


def _make(rival: Rival, source: Source, path: Path) -> str | None:
    """Write the rival's file in a process of its own, and return why it could not, if so."""
    assert rival.recipe
    order = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(source).items()}
    packages = os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, __file__, rival.recipe, json.dumps(order), str(path)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": packages},
    )
    if done.returncode < 0:
        return f"ended by signal {-done.returncode}"
    lines = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else (lines[-1][:200] if lines else f"exit code {done.returncode}")


def _compiler(source: Source) -> Any:
    import onnx
    import rivals_torch

    graph = onnx.load(source.onnx, load_external_data=False).graph
    names = (tuple(value.name for value in values) for values in (graph.input, graph.output))
    return rivals_torch.Compiler(
        rivals_torch.module_of(source.kind, source.onnx, source.torch_weights), source.batches(), *names
    )


def _reader(source: Source) -> Any:
    """Return the batches as ONNX Runtime's calibrators ask for them."""
    return SimpleNamespace(get_next=partial(next, iter(source.batches()), None))


def main(recipe: str, order: str, path: str) -> None:
    told = json.loads(order)
    paths = {key: Path(told[key]) if told[key] else None for key in ("onnx", "calibration", "torch_weights")}
    # The first to go when memory runs out, rather than whoever measures.
    Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    RECIPES[recipe](Source(**told | paths), Path(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
