"""A model of more than 2 GB through every pass: that each works, and what memory it takes.

    python benchmarks/large_model.py [--width 16384 --depth 12288] [PASS ...]

Three MatMuls with biases and random weights, 2.4 GB of float32 with external data, in a temporary folder (`TMPDIR`) that
needs 12 GB; 12 GB of memory. Each pass goes through `tasks.engines.variants`, as in a run; its variant is compared with the
source. Prints a line a pass: the peak of this process's memory in it, the bytes of what it made, and the relative error.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tasks.engines.variants import make_variant
from tasks.measure.inventory import this_processor
from tasks.ptq.build_variant import Materials
from tasks.ptq.calibrate.calibration import calibrate
from tasks.ptq.eight_bit.smooth import SmoothedGraph, read_channels, smooth
from tasks.ptq.graph.edits import gather_weights, model_bytes
from tasks.ptq.graph.prepare import prepare_graph
from tasks.runtimes.ort import open_session, run_outputs
from validators.job.candidate_name import decode
from validators.records.run import DataFile, SessionSettings
from validators.samples.datasets import Arrays, Samples

SETTINGS = SessionSettings("CPUExecutionProvider", 2).without_spinning()
VARIANTS = {
    "static": "int8-static-minmax-pc@ort-cpu",
    "bias": "int8-static-minmax-pc-bc@ort-cpu",
    "dynamic": "int8-dynamic-pc@ort-cpu",
    "int4": "int4-g32-rtn@ort-cpu",
    "fp8": "fp8-amax-pc@ort-cpu",
    "smooth": "int8-static-minmax-pc-smooth@ort-cpu",
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
    """The model and what passes start from, each made on first use."""

    def __init__(self, folder: Path, width: int) -> None:
        self.folder, self.source = folder, folder / "source.onnx"
        x = np.random.default_rng(1).normal(size=(16, width)).astype(np.float32)
        self.samples = Samples(DataFile(self.source, "", len(x)), {"x": x}, None, {})
        self.probe: Arrays = {"x": np.random.default_rng(2).normal(size=(4, width)).astype(np.float32)}

    @property
    def prepared(self) -> Path:
        return self.folder / "prepared.onnx"

    @cached_property
    def smoothed(self) -> SmoothedGraph:
        seen = read_channels(self.prepared, self.samples.batches(8))
        ways = [one.way for one in smooth(self.prepared, self.folder / "smoothed.onnx", seen, symmetric=False).values()]
        return SmoothedGraph(self.folder / "smoothed.onnx", ways.count("folded"), ways.count("multiplied"))

    def statistics(self, of_smoothed: bool) -> Path:
        graph = self.smoothed.path if of_smoothed else self.prepared
        path = graph.with_suffix(".npz")
        if not path.exists():
            calibrate(graph, self.samples, path, threads=2, max_memory_mb=500)
        return path

    @cached_property
    def outputs(self) -> np.ndarray:
        return self.run(self.prepared, SETTINGS)

    def run(self, model: Path, settings: SessionSettings) -> np.ndarray:
        with open_session(model, settings.without_spinning()) as session:
            return run_outputs(session, self.probe, [session.get_outputs()[0].name])[0]

    def make(self, name: str) -> str:
        """Make a candidate, hold it against the source, and leave nothing of it."""
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
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            variant = make_variant(decode(name), materials, Path(folder), threads=2)
            made = peak_mb()
            error = self.run(variant.path, variant.session) - self.outputs
            lost = float(np.sqrt(np.square(error).mean() / np.square(self.outputs).mean()))
            return f"{made:,.0f} MB to make it, {variant.size_bytes / 1e6:,.0f} MB on disk, relative error {lost:.4f}"


def peak_mb() -> float:
    """The most memory that the process took since the last call; in files that it maps, which the system may drop, too."""
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    Path("/proc/self/clear_refs").write_text("5")
    return int(peak.group(1)) * 1024 / 1e6 if peak else float("nan")


def main() -> None:
    """Every pass, or those that are named, after what all of them need."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("passes", nargs="*", help=f"of {', '.join(VARIANTS)}; all if none is given")
    parser.add_argument("--width", type=int, default=16384)
    parser.add_argument("--depth", type=int, default=12288)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quantgate-large-") as path:
        folder = Path(path)
        large = Large(folder, given.width)
        write_model(folder / "registered.onnx", given.width, given.depth)
        steps: dict[str, Callable[[], object]] = {
            "gather": lambda: gather_weights(folder / "registered.onnx", large.source),
            "drop": lambda: [file.unlink() for file in folder.glob("*.bin")],
            "prepare": lambda: prepare_graph(large.source, large.prepared),
            "run": lambda: large.outputs.shape,
            "calibrate": lambda: large.statistics(False),
        }
        steps |= {name: lambda name=name: large.make(VARIANTS[name]) for name in given.passes or VARIANTS}
        for name, step in steps.items():
            peak_mb()
            said = step()
            print(f"{name}: peak {peak_mb():,.0f} MB; {said if isinstance(said, str) else ''}", flush=True)
            if name == "gather":
                print(f"source: {model_bytes(large.source) / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
