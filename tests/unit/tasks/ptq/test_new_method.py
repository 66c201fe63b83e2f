"""A method of rounding and one of ranges, added as CONTRIBUTING says: in a copy of the source, by one row and one function."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Tiny
from numpy.typing import NDArray
from onnx import numpy_helper

from validators.source_code import OURS, PACKAGES

# Text that is put before another one, by file: the rows, and the functions by their words.
ADDED = {
    "validators/job/methods.py": {
        '        Rounding("hqq"': '        Rounding("floor", "rounded down", needs_grams=True, wide=True),\n',
        '        RangeMethod("entropy"': '        RangeMethod("half", "half of the extremes", wide=True),\n',
    },
    "tasks/ptq/weight_only/roundings.py": {
        "from tasks.ptq.weight_only.gptq": "from tasks.ptq.weight_only.floor import round_down\n",
        '    "hqq"': '    "floor": round_down,\n',
    },
    "tasks/ptq/calibrate/range_methods.py": {
        "# By the words": """
def half_range(statistics: TensorStatistics, _levels: int, *, symmetric: bool) -> Range:
    low, high = minmax_range(statistics, symmetric=symmetric)
    return low / 2, high / 2


""",
        '    "entropy"': '    "half": half_range,\n',
    },
}
FUNCTION = "tasks/ptq/weight_only/floor.py"
ROUND_DOWN = """
import numpy as np

from tasks.ptq.weight_only.int4_grid import QuantizedWeight, as_blocks, fit_grid


def round_down(weight, gram, *, block_size, symmetric, dtype):
    assert gram.shape == (len(weight), len(weight))
    blocks = as_blocks(weight, block_size)
    grid = fit_grid(blocks, symmetric=symmetric, dtype=dtype)
    codes = np.clip(np.floor(blocks / grid.scales[:, None] + grid.zero_points[:, None]), 0, 15)
    return QuantizedWeight(codes.reshape(-1, weight.shape[1]).astype(np.uint8), grid, block_size, symmetric)
"""
# Makes both candidates, and prints what else the code knows of them.
PROGRAM = """
import json, sys
from pathlib import Path

from tasks.engines.variants import make_variant, refuse_other_targets
from tasks.ptq.build_variant import Materials, gram_inputs
from tasks.ptq.calibrate.calibration import calibrate
from tasks.ptq.calibrate.grams import collect_grams
from tasks.ptq.graph.prepare import prepare_graph
from validators.errors import CandidateRefused
from validators.job.candidate_name import decode
from validators.job.recipe_words import describe
from validators.job.wide_candidates import wide_candidates
from validators.processors import Processor
from validators.samples.datasets import TensorSpec, load_samples

model, data, folder = map(Path, sys.argv[1:])
samples = load_samples(data, (TensorSpec("x", "float32", ("batch", 64)),), label="label", role="calibration")
prepare_graph(model, folder / "prepared.onnx")
calibrate(folder / "prepared.onnx", samples, folder / "statistics.npz", threads=1, max_memory_mb=500)
processor = Processor(("avx2", "avx512_vnni"))


def no(*_):
    raise AssertionError("not needed")


def grams(candidate, graph):
    return collect_grams(graph, gram_inputs(candidate, graph), lambda: samples.batches(8), max_memory_mb=500)


materials = Materials(
    lambda: folder / "prepared.onnx", no, no, lambda _: folder / "statistics.npz", no, no, grams, processor
)


def is_refused(name):
    try:
        refuse_other_targets(decode(name), processor)
    except CandidateRefused:
        return True
    return False


told = {"wide": wide_candidates("ort-cpu"), "made": {}}
for recipe in ("int4-g32-floor", "int8-static-half-pc"):
    candidate = decode(f"{recipe}@ort-cpu")
    variant = make_variant(candidate, materials, folder / recipe, threads=1)
    told["made"][candidate.name] = [str(variant.path), describe(candidate), candidate.is_calibrated]
told["refused"] = [name for name in (
    "int4-g64-floor@tensorrt", "int4-g64-floor@torch-cuda", "int8-static-half-pc@torch-inductor",
    "int8-static-half-pc@openvino", "int4-g64-floor@openvino",
) if is_refused(name)]
print(json.dumps(told))
"""


@dataclass(frozen=True)
class Told:
    """What the program in the copy wrote and printed."""

    wide: list[str]
    made: dict[str, tuple[str, str, bool]]
    refused: list[str]

    def constants(self, name: str) -> dict[str, NDArray[Any]]:
        graph = onnx.load(self.made[name][0]).graph
        return {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}


@pytest.fixture(scope="module")
def told(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Told:
    root, folder = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("made")
    for package in PACKAGES:
        shutil.copytree(OURS.root / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, texts in ADDED.items():
        source = (root / name).read_text(encoding="utf-8")
        for before, text in texts.items():
            assert source.count(before) == 1, f"{name}: {before!r} is not there once"
            source = source.replace(before, text + before)
        (root / name).write_text(source, encoding="utf-8")
    (root / FUNCTION).write_text(ROUND_DOWN, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tiny.model), str(tiny.calibration), str(folder)],
        capture_output=True,
        text=True,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    assert run.returncode == 0, run.stderr
    return Told(**json.loads(run.stdout.splitlines()[-1]))


def test_file_has_the_codes_of_a_new_rounding(told: Told, tiny: Tiny) -> None:
    """Both weights, rounded down here in another way; not one of them to the nearest."""
    constants = told.constants("int4-g32-floor@ort-cpu")
    for name, weight in (("first", tiny.weights[0]), ("second", tiny.weights[2])):
        stored = constants[f"{name}_Q4"]
        codes = np.stack([stored & 15, stored >> 4], axis=-1).reshape(weight.shape[1], -1).T
        expected = np.empty(weight.shape)
        for start in range(0, len(weight), 32):
            block = weight[start : start + 32].astype(np.float64)
            largest = np.take_along_axis(block, np.abs(block).argmax(axis=0)[None], axis=0)
            steps = (largest / -8).astype(np.float32).astype(np.float64)
            expected[start : start + 32] = np.clip(np.floor(block / steps) + 8, 0, 15)
        np.testing.assert_array_equal(codes, expected)


def test_file_has_the_scales_of_new_ranges(told: Told, tiny: Tiny) -> None:
    x = np.load(tiny.calibration)["x"]
    scales = [
        float(value)
        for name, value in told.constants("int8-static-half-pc@ort-cpu").items()
        if "scale" in name and value.size == 1
    ]
    expected = (min(float(x.min()), 0.0) / -2 + float(x.max()) / 2) / 255
    assert any(scale == pytest.approx(expected, rel=1e-5) for scale in scales)


def test_new_methods_are_known_wherever_methods_are_asked_for(told: Told) -> None:
    _, words, is_calibrated = told.made["int4-g32-floor@ort-cpu"]
    assert words == "INT4 weights in blocks of 32, symmetric, rounded down" and is_calibrated
    assert "activations by half" in told.made["int8-static-half-pc@ort-cpu"][1]
    assert {f"int4-g{size}-floor@ort-cpu" for size in (32, 64, 128)} <= set(told.wide)
    assert {"int8-static-half-pc@ort-cpu", "int8-static-half-pc-all@ort-cpu"} <= set(told.wide)
    # Engines that round weights, or find ranges, by themselves.
    assert told.refused == ["int4-g64-floor@tensorrt", "int8-static-half-pc@torch-inductor"]


def test_contributing_names_the_files_that_were_changed() -> None:
    rows = {}
    for line in (OURS.root / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            what, where, *_ = (cell.strip() for cell in line.strip("|").split("|"))
            rows[what] = set(re.findall(r"`((?:tasks|validators)/[\w/]+\.py)`", where))
    methods, roundings, ranges = ADDED
    assert rows["method that rounds INT4 weights"] == {methods, roundings}
    assert rows["range method"] == {methods, ranges}
