"""The linter's rules for ONNX Runtime, against the sessions that it makes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from packaging.version import Version
from qdq_models import E4M3, IMAGE, INT4, SINGLE, Part, const, drawn, model, op, pair, product, weight

from tasks.targets.catalog import lint
from validators.graph.ort_rules import CPU_RULES, CUDA_RULES

CPU, CUDA = ({rule.identifier: rule for rule in rules} for rules in (CPU_RULES, CUDA_RULES))
ALL, NONE = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


def made(part: Part, shape: tuple[int | str, ...] = ("n", 64)) -> onnx.ModelProto:
    return model(part, shape, floats=SINGLE)


def x(codes: object = np.uint8, **changes: object) -> Part:
    return pair(codes=codes, floats=SINGLE, **changes)  # type: ignore[arg-type]  # the table gives the right types


def w(*shape: int, **changes: object) -> Part:
    return weight(*shape, floats=SINGLE, **changes)  # type: ignore[arg-type]  # the table gives the right types


def out(name: str = "m") -> Part:
    return pair(name, "y", codes=np.uint8, floats=SINGLE, scale=0.5)


CONV = x() + w(8, 4, 3, 3, axis=0)
FLOAT_RUNS = {
    "a Conv with a float output": ("CPU201", made(CONV + product(kind="Conv"), IMAGE)),
    "a Conv with a float Relu behind": (
        "CPU201",
        made(CONV + product(kind="Conv", output="c") + op("Relu", "c", "y"), IMAGE),
    ),
    "INT8 by INT4": ("CPU202", made(x() + w(64, 32, codes=INT4) + product())),
    "16 bits": ("CPU202", made(x(np.int16) + w(64, 32) + product())),
    "ConvTranspose": (
        "CPU203",
        made(x() + w(4, 8, 3, 3, axis=None) + product(kind="ConvTranspose", output="m") + out(), IMAGE),
    ),
    "Gemm without zero points": ("CPU205", made(x() + w(64, 32) + product(kind="Gemm"))),
    "a float weight": ("CPU204", made(x() + const(w=drawn(64, 32).astype(SINGLE)) + product("xd w"))),
}
# With the kernel that stands for the product.
SOUND = {
    "MatMul": (made(x() + w(64, 32) + product()), "MatMulIntegerToFloat"),
    "Gemm": (made(x() + w(64, 32, zero=[0] * 32) + product(kind="Gemm")), "QGemm"),
    "Conv": (made(CONV + product(kind="Conv", output="m") + out(), IMAGE), "QLinearConv"),
    "Conv, Relu": (
        made(CONV + product(kind="Conv", output="c") + op("Relu", "c", "m") + out(), IMAGE),
        "QLinearConv",
    ),
    "INT4 weights": (made(w(256, 32, codes=INT4, axis=0, blocks=4) + product("x wd"), ("n", 256)), "MatMulNBits"),
}


def session(path: Path, level: object = ALL) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.optimized_model_filepath = str(path.with_suffix(".optimized.onnx"))
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def kernels(path: Path) -> Counter[str]:
    session(path)
    return Counter(node.op_type for node in onnx.load(path.with_suffix(".optimized.onnx")).graph.node)


def saved(folder: Path, proto: onnx.ModelProto) -> Path:
    onnx.save(proto, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize("name", FLOAT_RUNS)
def test_what_is_said_to_run_in_float_does(tmp_path: Path, name: str) -> None:
    rule, proto = FLOAT_RUNS[name]
    path = saved(tmp_path, proto)
    assert [finding.rule for finding in lint(path, "ort-cpu")] == [CPU[rule].title]
    assert any(kernels(path)[kind] for kind in ("Conv", "ConvTranspose", "FusedConv", "Gemm", "MatMul"))


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_file_has_no_finding_and_its_kernel(tmp_path: Path, name: str) -> None:
    proto, kernel = SOUND[name]
    path = saved(tmp_path, proto)
    assert lint(path, "ort-cpu") == () and kernels(path)[kernel] == 1


@pytest.mark.parametrize("kind", ["MatMul", "Conv"])
def test_fp8_does_not_load_or_runs_in_float(tmp_path: Path, kind: str) -> None:
    parts = {"MatMul": w(64, 32, codes=E4M3), "Conv": w(8, 4, 3, 3, codes=E4M3, axis=0)}
    whole = x(E4M3) + parts[kind] + product(kind=kind, output="m")
    whole += pair("m", "y", codes=E4M3, floats=SINGLE)
    path = saved(tmp_path, made(whole, ("n", 64) if kind == "MatMul" else IMAGE))
    assert CPU["CPU001"].title in {finding.rule for finding in lint(path, "ort-cpu")}
    if Version(onnxruntime.__version__) < Version("1.32"):
        with pytest.raises(Exception, match="float8e4m3fn"):
            session(path)
    else:
        assert kernels(path)[kind] == 1
    session(path, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC)


def test_scales_along_the_sum_fail_or_give_other_numbers(tmp_path: Path) -> None:
    """Against the unoptimized graph, which computes what the file says; per output channel the two agree."""
    data = {"x": drawn(8, 64).astype(np.float32)}
    difference = {}
    for axis in (0, 1):
        path = saved(tmp_path, made(x() + w(64, 64, axis=axis) + product()))
        found = [finding.rule for finding in lint(path, "ort-cpu")]
        assert found == ([CPU["CPU101"].title] if axis == 0 else [])
        answers = [session(path, level).run(None, data)[0] for level in (ALL, NONE)]
        difference[axis] = np.abs(answers[0] - answers[1]).max() / np.abs(answers[1]).max()
    assert difference[1] < 1e-5 and difference[0] > 0.1
    path = saved(tmp_path, made(x() + w(64, 32, axis=0) + product()))
    assert [finding.rule for finding in lint(path, "ort-cpu")] == [CPU["CPU101"].title]
    with pytest.raises(Exception, match="MatMulIntegerToFloat"):
        session(path).run(None, data)


def test_pairs_are_no_use_to_the_cuda_provider(tmp_path: Path) -> None:
    assert [item.rule for item in lint(saved(tmp_path, SOUND["MatMul"][0]), "ort-cuda")] == [CUDA["CUDA201"].title]
    assert lint(saved(tmp_path, SOUND["INT4 weights"][0]), "ort-cuda") == ()
