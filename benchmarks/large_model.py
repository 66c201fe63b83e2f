"""A model of more than 2 GB through every pass: that each works, and what memory it takes.

    python benchmarks/large_model.py run [--limit 3000] [static ...]

Three MatMuls with biases and random weights, 2.4 GB of float32 with external data, in a temporary folder (`TMPDIR`) that
needs 12 GB. Each pass goes through `tasks.engines.variants`, as in a run, in a process of its own; its variant is then compared
with the source. Writes `results/large_model.json`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from figures import save
from onnx import TensorProto, helper, numpy_helper
from processes import run_step

from tasks.engines.variants import make_variant, session_settings
from tasks.measure.inventory import this_processor
from tasks.ptq.build_variant import Materials
from tasks.ptq.calibrate.calibration import calibrate
from tasks.ptq.eight_bit.smooth import SmoothedGraph, read_channels, smooth
from tasks.ptq.graph.edits import gather_weights
from tasks.ptq.graph.prepare import prepare_graph
from tasks.runtimes.ort import open_session, run_outputs, with_mapped_weights
from validators.job.candidate_name import decode
from validators.records.run import DataFile, SessionSettings
from validators.samples.datasets import Arrays, Samples

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
WIDTH, DEPTH = 16384, 12288
SETTINGS = SessionSettings("CPUExecutionProvider", 2).without_spinning()
VARIANTS = {
    "static": "int8-static-minmax-pc@ort-cpu",
    "bias": "int8-static-minmax-pc-bc@ort-cpu",
    "dynamic": "int8-dynamic-pc@ort-cpu",
    "int4": "int4-g32-rtn@ort-cpu",
    "fp8": "fp8-amax-pc@ort-cpu",
    "smooth-static": "int8-static-minmax-pc-smooth@ort-cpu",
}


def write_model(path: Path, width: int, depth: int) -> None:
    """`x[batch, width]` through three layers, each weight in a file of its own as some exporters write them."""
    rng = np.random.default_rng(0)
    graph = onnx.GraphProto(name="large")
    tensor = "x"
    for index, (rows, columns) in enumerate([(width, depth), (depth, width), (width, depth)]):
        names = [f"{part}{index}" for part in ("weight", "bias", "product", "sum", "hidden")]
        weight = rng.standard_normal((rows, columns), dtype=np.float32)
        weight *= np.float32(rows**-0.5)
        (path.parent / f"{names[0]}.bin").write_bytes(memoryview(weight).cast("B"))
        stored = onnx.TensorProto(name=names[0], data_type=TensorProto.FLOAT, dims=weight.shape)
        stored.data_location = TensorProto.EXTERNAL
        stored.external_data.add(key="location", value=f"{names[0]}.bin")
        graph.initializer.extend(
            [stored, numpy_helper.from_array(rng.normal(size=columns).astype(np.float32), names[1])]
        )
        graph.node.append(helper.make_node("MatMul", [tensor, names[0]], [names[2]], name=f"layer{index}"))
        graph.node.append(helper.make_node("Add", [names[2], names[1]], [names[3]], name=f"add{index}"))
        graph.node.append(helper.make_node("Relu", [names[3]], [names[4]], name=f"relu{index}"))
        tensor = names[4]
    graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width]))
    graph.output.append(helper.make_tensor_value_info(tensor, TensorProto.FLOAT, ["batch", depth]))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


class Large:
    """The model and what passes start from, each in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.source, self.prepared = folder, folder / "source.onnx", folder / "prepared.onnx"
        x = np.random.default_rng(1).normal(size=(16, WIDTH)).astype(np.float32)
        self.samples = Samples(DataFile(self.source, "", len(x)), {"x": x}, None, {})
        self.probe: Arrays = {"x": np.random.default_rng(2).normal(size=(4, WIDTH)).astype(np.float32)}

    def gather(self) -> None:
        """Write what somebody registers, and make the source of it."""
        write_model(self.folder / "registered.onnx", WIDTH, DEPTH)
        gather_weights(self.folder / "registered.onnx", self.source)
        for file in self.folder.glob("*.bin"):
            file.unlink()

    def prepare(self) -> None:
        """Make the graph that all passes start from."""
        prepare_graph(self.source, self.prepared)

    def smooth(self) -> None:
        seen = read_channels(self.prepared, self.samples.batches(8))
        ways = [one.way for one in smooth(self.prepared, self.folder / "smoothed.onnx", seen, symmetric=False).values()]
        (self.folder / "ways.json").write_text(json.dumps(ways))

    @cached_property
    def smoothed(self) -> SmoothedGraph:
        """The smoothed graph, and how often its factors were folded into other constants."""
        ways = json.loads((self.folder / "ways.json").read_text())
        return SmoothedGraph(self.folder / "smoothed.onnx", ways.count("folded"), ways.count("multiplied"))

    def statistics(self, of_smoothed: bool) -> Path:
        """The ranges of the activations, in a file that the first call makes."""
        graph = self.smoothed.path if of_smoothed else self.prepared
        path = graph.with_suffix(".npz")
        if not path.exists():
            calibrate(graph, self.samples, path, threads=2, max_memory_mb=500)
        return path

    def make(self, name: str) -> None:
        materials = Materials(
            prepared=lambda: self.prepared,
            fused=lambda: self.prepared,
            smoothed=lambda: self.smoothed,
            statistics=self.statistics,
            ranking=lambda _: (),
            batches=lambda: list(self.samples.batches(8)),
            grams=lambda *_: {},
            processor=this_processor(),
        )
        (self.folder / name).mkdir()
        variant = make_variant(decode(VARIANTS[name]), materials, self.folder / name, threads=2)
        print(json.dumps({"file_mb": round(variant.size_bytes / 1e6)}))

    def compare(self, name: str) -> None:
        """Tell the relative error of a candidate's answers."""
        wanted = self._answer(self.prepared, SETTINGS)
        path = next((self.folder / name).rglob("*.onnx"))
        error = self._answer(path, session_settings(decode(VARIANTS[name]), 2)) - wanted
        print(
            json.dumps({"relative_error": round(float(np.sqrt(np.square(error).mean() / np.square(wanted).mean())), 4)})
        )

    def _answer(self, model: Path, settings: SessionSettings) -> np.ndarray:
        with open_session(model, with_mapped_weights(settings.without_spinning(), model)) as session:
            return run_outputs(session, self.probe, [session.get_outputs()[0].name])[0]


@app.command()
def step(name: str, root: Path) -> None:
    """Do one step in this process."""
    large = Large(root)
    steps: dict[str, Callable[[], object]] = {
        "gather": large.gather,
        "prepare": large.prepare,
        "calibrate": lambda: large.statistics(False),
        "smooth": large.smooth,
        "calibrate smoothed": lambda: large.statistics(True),
    }
    steps |= {one: partial(large.make, one) for one in VARIANTS}
    steps |= {f"{one}, error": partial(large.compare, one) for one in VARIANTS}
    steps[name]()


@app.command()
def run(
    passes: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(VARIANTS)}; all by default.")] = None,
    limit: Annotated[int | None, typer.Option(help="Most memory in MB, cached files with it, of a step.")] = None,
) -> None:
    """Every pass, or those that are named, after what all of them need."""
    names = passes or list(VARIANTS)
    figures: dict[str, Any] = {"limit_mb": limit}
    with tempfile.TemporaryDirectory(prefix="quantgate-large-") as path:
        root = Path(path)
        before = ["gather", "prepare", "calibrate"] + ["smooth", "calibrate smoothed"] * ("smooth-static" in names)
        for name in [*before, *names]:
            figures[name] = run_step(__file__, name, root, limit)
            if name in names:
                figures[name] |= {"relative_error": run_step(__file__, f"{name}, error", root, None)["relative_error"]}
            print(name, figures[name], flush=True)
    save("large_model", figures)


if __name__ == "__main__":
    app()
