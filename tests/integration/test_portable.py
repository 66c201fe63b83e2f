"""Versions on processors of both kinds: 8-bit weights are refused where sums saturate, portable ones answer alike everywhere.

Each kind is a process of its own, which opens the versions as a consumer does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from other_processor import environment, own_kind, why_not
from processors import AMX

from tasks.engines.variants import make_variant
from tasks.measure.inventory import take_inventory
from tasks.ptq.build_variant import Materials
from tasks.ptq.calibrate.calibration import calibrate
from tasks.ptq.graph.prepare import prepare_graph
from tasks.runtimes.ort import open_session, run_batches
from validators.digests import digest_file
from validators.job.candidate_name import decode
from validators.processors import PORTABLE
from validators.records.run import DataFile, SessionSettings
from validators.samples.datasets import Samples

STATIC, DYNAMIC = "int8-static-minmax-pc@ort-cpu", "int8-dynamic-pc@ort-cpu"
BASIC = SessionSettings("CPUExecutionProvider", 1, "basic")
SAMPLES, FEATURES, CLASSES = 64, 96, 24
CONSUMER = """
import json, sys, warnings
from pathlib import Path
from types import SimpleNamespace
import numpy as np
warnings.simplefilter("ignore")
from tasks.champion.consumer.consumer import OnnxChampion

told = {}
x = np.load(sys.argv[1])
for folder in map(Path, sys.argv[2:]):
    champion = OnnxChampion()
    try:
        champion.load_context(SimpleNamespace(artifacts={key: str(folder / name) for key, name in (
            ("manifest", "manifest.json"), ("variant", "variant"))}))
        told[folder.name] = champion.predict(None, {"x": x})["y"].tolist()
    except RuntimeError as error:
        told[folder.name] = str(error)
print(json.dumps(told))
"""
Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def x() -> NDArray[np.float32]:
    """Zeros and ones, mostly ones: pairs of products are as large as can be, and all values are on every grid."""
    drawn = (np.random.default_rng(0).random((SAMPLES, FEATURES)) < 0.9).astype(np.float32)
    drawn[0] = 1
    return drawn


@pytest.fixture(scope="module")
def weights() -> NDArray[np.float32]:
    found = np.random.default_rng(1).uniform(0.5, 1, (FEATURES, CLASSES)).astype(np.float32)
    found[:, ::2] *= -1
    return found


@pytest.fixture(scope="module")
def versions(
    tmp_path_factory: pytest.TempPathFactory, x: NDArray[np.float32], weights: NDArray[np.float32]
) -> dict[str, Path]:
    """Folders of versions: each recipe for a processor with VNNI, and portable."""
    root = tmp_path_factory.mktemp("versions")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", CLASSES])],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), root / "m.onnx")
    prepare_graph(root / "m.onnx", root / "prepared.onnx")
    samples = Samples(DataFile(root / "m.onnx", "", SAMPLES), {"x": x}, None, {})
    calibrate(root / "prepared.onnx", samples, root / "statistics.npz", threads=1, max_memory_mb=100)
    found = {}
    for recipe in (STATIC, DYNAMIC):
        for kind, processor in (("vnni", AMX), ("portable", PORTABLE)):
            materials = Materials(
                prepared=lambda: root / "prepared.onnx",
                fused=lambda: root / "prepared.onnx",
                smoothed=lambda: pytest.fail("not smoothed"),
                statistics=lambda _: root / "statistics.npz",
                ranking=lambda _: (),
                batches=lambda: list(samples.batches(8)),
                grams=lambda *_: {},
                processor=processor,
            )
            folder = root / f"{recipe.partition('@')[0]}-{kind}"
            found[folder.name] = folder
            write_version(folder, recipe, materials)
    return found


def write_version(folder: Path, recipe: str, materials: Materials) -> None:
    """The files that a consumer opens, approved on a processor with VNNI."""
    variant = make_variant(decode(recipe), materials, folder / "variant", threads=1)
    manifest: dict[str, Any] = {
        "files": {variant.path.name: digest_file(variant.path)},
        "session": {
            "provider": variant.session.provider,
            "threads": 1,
            "optimization": variant.session.optimization,
            "entries": variant.session.entries,
            "provider_options": {},
        },
        "libraries": [],
        "engine": None,
        "loader": "tasks.runtimes.shipped.model",
        "artifact": "model.onnx",
        "compiled": False,
        "runtime": "onnxruntime",
        "outputs": ["y"],
        "inputs": {"x": "float32"},
        "runtime_version": onnxruntime.__version__,
        "hardware": {"processor": take_inventory("ort-cpu").cpu, "isa": {}, "cores": 1, "gpu": None},
        "saturates_without": list(variant.saturates_without),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def open_on(kind: str, versions: dict[str, Path], x: NDArray[np.float32], policy: str = "warn") -> dict[str, Any]:
    """The answers of the versions, or why they are refused, in a process on a kind of processor."""
    folder = next(iter(versions.values())).parent
    np.save(folder / "x.npy", x)
    command = [sys.executable, "-c", CONSUMER, str(folder / "x.npy"), *map(str, versions.values())]
    variables = environment(kind) | {"QUANTGATE_MISMATCH": policy, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def integers(weights: NDArray[np.float32], x: NDArray[np.float32], limit: int) -> Floats:
    """The product of UINT8 activations from 0 to 1 and of weights from -limit to limit, in integers of 64 bits."""
    scales = np.abs(weights).max(axis=0) / np.float32(limit)
    stored = np.rint(weights / scales).astype(np.int64)
    return (np.rint(x * 255).astype(np.int64) @ stored) * scales.astype(np.float64) / 255


def close(found: Any, expected: Floats) -> bool:
    """Equal but for the rounding of floats, and of an output to 255 steps of its range."""
    steps = float(np.ptp(expected)) / 255
    return bool(np.abs(np.asarray(found) - expected).max() <= steps)


@pytest.mark.skipif(why_not("avx2") is not None, reason=f"no AVX2 here: {why_not('avx2')}")
def test_portable_versions_answer_alike_on_both_kinds(
    versions: dict[str, Path], x: NDArray[np.float32], weights: NDArray[np.float32]
) -> None:
    """As the integers do; those with 8-bit weights answer so with VNNI, and are refused without."""
    exact = {"vnni": integers(weights, x, 127), "portable": integers(weights, x, 64)}
    without = open_on("avx2", versions, x)
    for name, answer in without.items():
        kind = name.rpartition("-")[2]
        if kind == "vnni":
            assert isinstance(answer, str) and "sums of the version's INT8 products saturate" in answer, name
        else:
            assert close(answer, exact[kind]), name
    here = open_on(own_kind(), versions, x)
    saturates_here = own_kind() in ("avx2", "avx512")
    for name, answer in here.items():
        kind = name.rpartition("-")[2]
        if kind == "vnni" and saturates_here:
            assert isinstance(answer, str), name
        else:
            assert close(answer, exact[kind]), name


@pytest.mark.skipif(why_not("avx2") is not None, reason=f"no AVX2 here: {why_not('avx2')}")
def test_versions_that_saturate_are_opened_where_that_is_allowed(
    versions: dict[str, Path], x: NDArray[np.float32], weights: NDArray[np.float32]
) -> None:
    """They are wrong indeed: the refusal is no false alarm."""
    answers = open_on("avx2", {name: path for name, path in versions.items() if name.endswith("vnni")}, x, "allow")
    exact = integers(weights, x, 127)
    for name, answer in answers.items():
        error = np.abs(np.asarray(answer) - exact).max() / np.abs(exact).max()
        assert error > 0.2, (name, error)


def test_the_reference_is_what_the_file_says(
    versions: dict[str, Path], x: NDArray[np.float32], weights: NDArray[np.float32]
) -> None:
    """The pairs of both static files computed in float."""
    for kind, limit in (("vnni", 127), ("portable", 64)):
        path = versions[f"int8-static-minmax-pc-{kind}"] / "variant" / "model.onnx"
        with open_session(path, BASIC) as session:
            assert close(run_batches(session, [{"x": x}], "y"), integers(weights, x, limit))
