"""Models whose weights lie in files: what is read, written and shared, and the memory that a pass over them takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from validators.graph import stored
from validators.graph.stored import from_array, load_model, locate, save_model, spilling, to_array

RNG = np.random.default_rng(0)
ARRAYS: dict[str, Any] = {
    "float": RNG.normal(size=(40, 50)).astype(np.float32),
    "half": RNG.normal(size=(40, 50)).astype(np.float16),
    "bfloat": RNG.normal(size=(40, 50)).astype(ml_dtypes.bfloat16),
    "codes": RNG.integers(-8, 8, (60, 61)).astype(ml_dtypes.int4),
    "bytes": RNG.integers(0, 256, (60, 60)).astype(np.uint8),
    "nothing": np.zeros((0, 3), np.float32),
    "one": np.array(3, np.int64),
}


def model_of(arrays: dict[str, Any]) -> onnx.ModelProto:
    """A graph with these constants, one of words, and one that an operator has as an attribute."""
    words = helper.make_tensor("words", TensorProto.STRING, [2], [b"a" * 900, b"b" * 900])
    held = helper.make_node("Constant", [], ["held"], value=numpy_helper.from_array(ARRAYS["float"], "value"))
    graph = helper.make_graph(
        [held],
        "g",
        [],
        [helper.make_tensor_value_info("held", TensorProto.FLOAT, [40, 50])],
        [*(numpy_helper.from_array(array, name) for name, array in arrays.items()), words],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def check(path: Path) -> dict[str, onnx.TensorProto]:
    """Compare the constants of a file with what they were; return them, without those that lie in other files."""
    model = load_model(path)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, array in ARRAYS.items():
        found = to_array(constants[name])
        assert found.dtype == array.dtype and np.array_equal(found.astype(np.float32), array.astype(np.float32)), name
    assert to_array(constants["words"]).tolist() == ["a" * 900, "b" * 900]
    assert np.array_equal(to_array(model.graph.node[0].attribute[0].t), ARRAYS["float"])
    onnx.checker.check_model(str(path))
    return {name: one for name, one in constants.items() if one.data_location != TensorProto.EXTERNAL}


def test_weights_go_to_a_file_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every type, through a copy and in place; what a runtime reads from the message alone stays in it."""
    monkeypatch.setattr(stored, "EXTERNAL_DATA_BYTES", 1000)
    save_model(model_of(ARRAYS), tmp_path / "m.onnx")
    assert set(check(tmp_path / "m.onnx")) == {"nothing", "one", "words"}
    (tmp_path / "copy").mkdir()
    for path in (tmp_path / "copy" / "c.onnx", tmp_path / "m.onnx"):
        save_model(load_model(tmp_path / "m.onnx"), path)
        assert set(check(path)) == {"nothing", "one", "words"}
        assert sorted(file.name for file in path.parent.glob("*.*")) == [path.name, f"{path.name}.data"]
    monkeypatch.undo()
    save_model(load_model(tmp_path / "m.onnx"), tmp_path / "m.onnx")
    assert set(check(tmp_path / "m.onnx")) == {*ARRAYS, "words"} and not (tmp_path / "m.onnx.data").exists()


def test_an_attribute_in_a_file_is_read_in(tmp_path: Path) -> None:
    model = model_of(ARRAYS)
    onnx.save(
        model,
        tmp_path / "m.onnx",
        save_as_external_data=True,
        size_threshold=0,
        convert_attribute=True,
        location="all.bin",
    )
    check(tmp_path / "m.onnx")
    save_model(load_model(tmp_path / "m.onnx"), tmp_path / "n.onnx")
    # The digest of a source is that of its file.
    assert (tmp_path / "n.onnx").read_bytes() == onnx.load(tmp_path / "m.onnx").SerializeToString()
    (tmp_path / "all.bin").unlink()
    check(tmp_path / "n.onnx")


def test_weights_in_the_same_folder_can_be_shared(tmp_path: Path) -> None:
    onnx.save(model_of(ARRAYS), tmp_path / "m.onnx", save_as_external_data=True, location="m.onnx.data")
    save_model(load_model(tmp_path / "m.onnx"), tmp_path / "n.onnx", shares=True)
    assert (tmp_path / "n.onnx").stat().st_size < 16_000 and not (tmp_path / "n.onnx.data").exists()
    check(tmp_path / "n.onnx")


def test_what_a_pass_makes_goes_to_a_file_beyond_a_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "KEPT_BYTES", 17_000)
    model = model_of({})
    with spilling():
        made = [from_array(array, name) for name, array in ARRAYS.items()]
        away = {one.name for one in made if one.data_location == TensorProto.EXTERNAL}
        assert away == {"codes", "bytes"}
        model.graph.initializer.extend(made)
        save_model(model, tmp_path / "m.onnx")
    assert set(check(tmp_path / "m.onnx")) == {*ARRAYS, "words"}
    assert from_array(ARRAYS["float"], "f").data_location != TensorProto.EXTERNAL


def test_a_graph_that_was_loaded_without_its_folder_is_located(tmp_path: Path) -> None:
    onnx.save(model_of(ARRAYS), tmp_path / "m.onnx", save_as_external_data=True, location="m.bin")
    model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    locate(model, tmp_path)
    assert np.array_equal(to_array(model.graph.initializer[0]), ARRAYS["float"])


PASS = """
import resource, sys
from pathlib import Path
import numpy as np
from onnx import TensorProto, helper, numpy_helper
from tasks.ptq.weight_only.matmul_nbits import BlockWeights, quantize_weights
from validators.graph import stored

folder, layers, width = Path(sys.argv[1]), 24, 1536
stored.EXTERNAL_DATA_BYTES = stored.KEPT_BYTES = 10_000_000
np.ones((width, width), np.float32) @ np.ones((width, width), np.float32)
graph = helper.make_graph([], "g", [helper.make_tensor_value_info("t0", TensorProto.FLOAT, ["b", width])],
                          [helper.make_tensor_value_info(f"t{layers}", TensorProto.FLOAT, ["b", width])])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
free = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (free + 150_000_000,) * 2)
with stored.spilling():
    rng = np.random.default_rng(0)
    for layer in range(layers):
        weight = rng.normal(size=(width, width)).astype(np.float32)
        model.graph.initializer.append(stored.from_array(weight, f"w{layer}"))
        model.graph.node.append(helper.make_node("MatMul", [f"t{layer}", f"w{layer}"], [f"t{layer + 1}"], name=f"m{layer}"))
    stored.save_model(model, folder / "source.onnx")
with stored.spilling():
    quantize_weights(folder / "source.onnx", folder / "variant.onnx", BlockWeights("rtn", 32, True, bits=8))
"""


def test_a_pass_takes_the_memory_of_a_few_weights(tmp_path: Path) -> None:
    """226 MB of them, and 64 MB in INT8, with room for 150 MB; the kernel counts what no file backs."""
    done = subprocess.run([sys.executable, "-c", PASS, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "source.onnx.data").stat().st_size > 220_000_000
    assert (tmp_path / "variant.onnx.data").stat().st_size > 60_000_000
