"""Small models of which OpenVINO computes another function than their file says, and the forms of them that it gets right.

    python benchmarks/engine_disagreements.py [--files FOLDER]

Each is x, a few operators, a pair of QuantizeLinear and DequantizeLinear, and a product with INT8 weights. The error is the
root mean square of OpenVINO's answers less those of ONNX Runtime at its basic level, as a share of the latter's.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from fallback_plants import Draft
from figures import save
from numpy.typing import NDArray
from onnx import helper

from tasks.ptq.graph.equal_floats import parity_settings
from tasks.runtimes.parity import relative_distance
from tasks.runtimes.runner import open_runner
from validators.records.run import SessionSettings
from validators.target_facts import OPENVINO

WIDE, ROWS = 64, 16
node = helper.make_node
Array = NDArray[Any]


def _before(name: str) -> list[onnx.NodeProto]:
    """The operators that make `p` of `x`."""
    first = {"graph input": "Identity", "MatMul, Relu": "MatMul", "MatMul, Gelu": "MatMul"}.get(name, name)
    inputs = {"MatMul": ["x", "w0"], "Add": ["x", "b"]}.get(first, ["x"])
    then = name.partition(", ")[2]
    last = [node(then, ["q"], ["p"])] if then else []
    return [node(first, inputs, ["q" if then else "p"]), *last]


def patterns(gains: str) -> dict[str, tuple[list[onnx.NodeProto], tuple[int, ...]]]:
    """The operators that make `h` of `x`, and the shape of a sample; `gains` names the factors."""
    flat, rows = (WIDE,), (5, WIDE)
    found = {
        f"{before}, Mul": ([*_before(before), node("Mul", ["p", gains], ["h"])], flat)
        for before in ("graph input", "MatMul, Relu", "Softmax", "Tanh", "MatMul", "MatMul, Gelu", "Add")
    }
    found["graph input, Div"] = ([*_before("graph input"), node("Div", ["p", gains], ["h"])], flat)
    for rank, shape in ((2, flat), (3, rows)):
        for bias in ([], ["b"]):
            name = f"LayerNormalization {'with' if bias else 'without'} bias, rank {rank}"
            found[name] = ([node("LayerNormalization", ["x", gains, *bias], ["h"], axis=-1)], shape)
    return found


def quantized_model(
    nodes: list[onnx.NodeProto], shape: tuple[int, ...], gains: Array, weight: Array
) -> onnx.ModelProto:
    """Return the model with its pair of operators and product, in INT8."""
    rng = np.random.default_rng(1)
    scale = np.float32(np.abs(weight).max() / 127)
    constants: dict[str, Array] = {
        "g": gains,
        "b": rng.normal(size=WIDE).astype(np.float32),
        "w0": (rng.normal(size=(WIDE, WIDE)) / 8).astype(np.float32),
        "w": np.rint(weight / scale).astype(np.int8),
        "w_step": np.asarray(scale),
    }
    draft = Draft(True, list(nodes), constants)
    hidden = draft.pair("h", "int8", largest=4 * np.abs(gains).max())
    draft.node("MatMul", [hidden, draft.node("DequantizeLinear", ["w", "w_step"], "wd")], "y")
    return draft.model("y", *shape)


def apart(path: Path, x: Array) -> float:
    """Return the error of OpenVINO on a file."""
    answers = []
    for settings in (parity_settings(()), SessionSettings(OPENVINO, 1)):
        with open_runner(path, settings) as runner:
            answers.append(runner.run({"x": x}, ["y"])[0])
    return relative_distance(*answers)


def main(files: Annotated[Path | None, typer.Option(help="Folder to write the models to.")] = None) -> None:
    """Measure each pattern with factors of both signs, and with the signs in the weights."""
    rng = np.random.default_rng(0)
    gains = rng.normal(size=WIDE)
    gains = (np.sign(gains) * np.maximum(np.abs(gains), 0.2)).astype(np.float32)
    weight = (rng.normal(size=(WIDE, WIDE)) / 8).astype(np.float32)
    forms = {"as written": (gains, weight), "signs in the weights": (np.abs(gains), weight * np.sign(gains)[:, None])}
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, (nodes, shape) in patterns("g").items():
            row: dict[str, Any] = {"pattern": name}
            for form, (factors, weights) in forms.items():
                path = Path(files or scratch, f"{name}, {form}.onnx".replace(", ", "_").replace(" ", "-"))
                onnx.save(quantized_model(nodes, shape, factors, weights), path)
                row[form] = round(apart(path, rng.normal(size=(ROWS, *shape)).astype(np.float32)), 4)
            rows.append(row)
            print(f"{name:40}" + "".join(f"{row[form]:10.4f}" for form in forms), flush=True)
    save("engine_disagreements", {"patterns": rows}, quiet=True)


if __name__ == "__main__":
    typer.run(main)
