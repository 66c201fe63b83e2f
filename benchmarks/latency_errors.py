"""How often the latency measurement errs: a model beside itself, a slower one and an INT8 variant, quiet and busy.

ONNX Runtime runs all of these; the model beside itself is compared in the other engines for processors, too (`ENGINES`). Every
comparison is appended to `latency_errors.jsonl`, so that an interrupted run goes on where it stopped; `summarise` makes
`latency_errors.json` and the picture of what there is.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from figures import RESULTS, save, share
from models.graphs import model_of
from onnx import helper, numpy_helper
from processes import busy

from tasks.engines.variants import session_settings
from tasks.measure.inventory import usable_cores
from tasks.measure.latency.compare import compare_latency
from tasks.measure.latency.patience import RunPatience
from tasks.measure.latency.process import Contestant, Worker, save_requests
from tasks.ptq.eight_bit.dynamic import quantize_dynamic
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from validators.job.candidate_name import decode
from validators.job.job_measurement import Measurement
from validators.records.latencies import Latency
from validators.records.run import SessionSettings
from validators.target_facts import CPU_PROVIDER

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
LOG = RESULTS / "latency_errors.jsonl"
# Twenty equal layers and two more are 10 % more work; what that is in time, a long comparison tells.
LAYERS, MORE_LAYERS = 20, 22
ROWS, WIDTH = 64, 256
# Both ends of the interval at 97.5 %: a model beside itself is called faster or slower in 5 % of the comparisons.
CONFIDENCE = 0.975
LONG = Measurement(launches=12, blocks=6, block_seconds=0.3)
# What is often done instead: one block of each, one after the other, and a difference of 5 % is one.
NAIVE_SECONDS, NAIVE_WARMUP_SECONDS, NAIVE_DIFFERENCE = 0.5, 0.2, 0.05
# What one comparison may wait for other processes: a run of twelve candidates has twelve times as much by default.
PATIENCE_SECONDS = 25.0
# Other engines by the kind of their comparisons, in which the model is beside itself.
ENGINES = ("openvino", "torch-inductor")


@app.command()
def run(
    quiet: Annotated[int, typer.Option(help="Comparisons of the model with itself.")] = 50,
    busy: Annotated[int, typer.Option(help="The same with one core taken.")] = 100,
    planted: Annotated[
        int, typer.Option(help="Comparisons with the slower model, and as many with one core taken.")
    ] = 40,
    faster: Annotated[int, typer.Option(help="Comparisons with the INT8 variant, with one core taken.")] = 50,
    engines: Annotated[int, typer.Option(help="Comparisons of the model with itself in each other engine.")] = 100,
) -> None:
    """Make the comparisons that are missing, in turn, and summarise."""
    # The planted ratio rests on one comparison: that is made until nothing disturbs it.
    done = {(e["kind"], e["index"]) for e in _read() if e["kind"] != "truth" or not e["disturbance"]}
    wanted = {
        "quiet": quiet,
        "busy": busy,
        "slower": planted,
        "slower_busy": planted,
        "faster_busy": faster,
        "truth": min(planted, 1),
        **dict.fromkeys(ENGINES, engines),
    }
    order = sorted((index / count, kind, index) for kind, count in wanted.items() for index in range(count))
    with tempfile.TemporaryDirectory(prefix="quantgate-") as folder:
        bench = _Bench(Path(folder))
        for _, kind, index in order:
            if (kind, index) not in done:
                entry = bench.compare(kind) | {"kind": kind, "index": index}
                with LOG.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")
    summarise()


@app.command()
def summarise() -> None:
    """Figures and picture of the comparisons that there are."""
    entries = _read()
    long = next((entry for entry in entries if entry["kind"] == "truth" and not entry["disturbance"]), None)
    figures: dict[str, Any] = {
        "layers": [LAYERS, MORE_LAYERS],
        "measurement": Measurement().model_dump(mode="json"),
        "one_sided_confidence": CONFIDENCE,
        "planted_ratio": long and long["ratio"],
        "planted_interval": long and long["interval"],
    }
    for kind in ("quiet", "busy", "slower", "slower_busy", "faster_busy", *ENGINES):
        if found := [entry for entry in entries if entry["kind"] == kind]:
            figures[kind] = _count(found)
    save("latency_errors", figures)
    _draw(entries, long and long["ratio"])


class _Bench:
    """The two models, their request, and the ways to compare them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        settings = SessionSettings(CPU_PROVIDER, usable_cores())
        self._model = Contestant(_layers(folder / "model.onnx", LAYERS), settings)
        self._slower = Contestant(_layers(folder / "slower.onnx", MORE_LAYERS), settings)
        quantize_dynamic(self._model.model, folder / "faster.onnx", weights=Int8Weights())
        self._faster = Contestant(folder / "faster.onnx", settings)
        _compile(self._model.model, folder / "model.pt2")
        files = (self._model.model, folder / "model.pt2")
        self._elsewhere = {
            engine: Contestant(file, session_settings(decode(f"fp32-fused@{engine}"), usable_cores()))
            for engine, file in zip(ENGINES, files, strict=True)
        }
        self._batch: dict[str, Any] = {"x": np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)}

    def compare(self, kind: str) -> dict[str, Any]:
        """One comparison by the method, and one by the naive rule right after it, under the same conditions."""
        others = {"slower": self._slower, "truth": self._slower, "faster": self._faster}
        model = self._elsewhere.get(kind, self._model)
        sides = model, others.get(kind.removesuffix("_busy"), model)
        with busy(int(kind.endswith("busy"))):
            started = time.monotonic()
            latency = self._measure(sides, LONG if kind == "truth" else Measurement())
            seconds = time.monotonic() - started
            naive = None if kind == "truth" else self._naive(sides)
        interval = None if latency.speedup.low is None else [latency.speedup.low, latency.speedup.high]
        assert latency.conditions is not None
        return {
            "ratio": latency.speedup.value,
            "interval": interval,
            "disturbance": latency.disturbance,
            "repeated": latency.conditions.repeated,
            "seconds": round(seconds, 2),
            "naive": naive,
        }

    def _measure(self, sides: tuple[Contestant, Contestant], measurement: Measurement) -> Latency:
        return compare_latency(
            *sides,
            [self._batch],
            measurement,
            confidence=CONFIDENCE,
            samples_path=self._folder / "samples.npz",
            patience=RunPatience(PATIENCE_SECONDS),
        )

    def _naive(self, sides: tuple[Contestant, Contestant]) -> float:
        inputs = save_requests(self._folder / "naive.npz", [self._batch])
        medians = []
        for contestant in sides:
            with Worker(contestant, inputs) as worker:
                worker.block(NAIVE_WARMUP_SECONDS, 3)
                medians.append(worker.block(NAIVE_SECONDS, 3).value_ms)
        return medians[0] / medians[1]


def _layers(path: Path, count: int) -> Path:
    """MatMul and Relu, `count` times, on `x[64, 256]`."""
    rng = np.random.default_rng(1)
    nodes, weights = [], {}
    for index in range(count):
        weights[f"w{index}"] = rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) * np.float32(np.sqrt(2 / WIDTH))
        source = f"h{index - 1}" if index else "x"
        nodes.append(helper.make_node("MatMul", [source, f"w{index}"], [f"p{index}"], name=f"m{index}"))
        nodes.append(helper.make_node("Relu", [f"p{index}"], [f"h{index}"]))
    shape = [ROWS, WIDTH]
    onnx.save(model_of(nodes, {"x": shape}, {f"h{count - 1}": shape}, weights), path)
    return path


def _compile(model: Path, path: Path) -> None:
    """Write the package that TorchInductor makes of the same layers."""
    import torch

    from tasks.engines.inductor.compile_process import write_package

    weights = [numpy_helper.to_array(weight) for weight in onnx.load(model).graph.initializer]
    layers = torch.nn.Sequential()
    for weight in weights:
        linear = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        linear.weight.data = torch.from_numpy(weight.T.copy())
        layers.extend([linear, torch.nn.ReLU()])
    with torch.no_grad():
        program = torch.export.export(layers.eval(), (torch.zeros(ROWS, WIDTH),))
        write_package(program, {"inputs": ["x"], "outputs": ["y"], "package": str(path)})


def _read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in LOG.read_text(encoding="utf-8").splitlines()] if LOG.exists() else []


def _count(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """What was said of the variant, by the method and by the naive rule, with 95 % intervals of the shares."""
    n = len(entries)
    clean = [entry for entry in entries if not entry["disturbance"]]
    said = {
        "faster": sum(entry["interval"][0] > 1 for entry in clean),
        "slower": sum(entry["interval"][1] < 1 for entry in clean),
        "disturbed": n - len(clean),
    }
    naive = {
        "faster": sum(entry["naive"] > 1 + NAIVE_DIFFERENCE for entry in entries),
        "slower": sum(entry["naive"] < 1 - NAIVE_DIFFERENCE for entry in entries),
    }
    figures: dict[str, Any] = {
        "comparisons": n,
        "method": {word: share(count, n) for word, count in said.items()},
        "naive": {word: share(count, n) for word, count in naive.items()},
        "seconds_median": float(np.median([entry["seconds"] for entry in entries])),
        "repeated_pairs": sum(entry["repeated"] for entry in entries),
    }
    if clean:
        wrong = said["faster"] + said["slower"]
        figures["method"]["faster or slower of the undisturbed"] = share(wrong, len(clean))
        widths = [(entry["interval"][1] - entry["interval"][0]) / 2 / entry["ratio"] for entry in clean]
        figures["half_width_median"] = float(np.median(widths))
    return figures


def _draw(entries: list[dict[str, Any]], truth: float | None) -> None:
    """Every comparison as its interval, in the order of the ratio, with the true one as a line; disturbed ones as crosses."""
    from matplotlib import pyplot

    panels = (
        ("quiet", "with itself", 1.0),
        ("busy", "with itself, one core taken", 1.0),
        ("slower", "with 10 % more layers", truth),
        ("slower_busy", "the same, one core taken", truth),
    )
    figure, axes = pyplot.subplots(1, len(panels), figsize=(8.8, 2.9), sharey=True, layout="constrained")
    for axis, (kind, title, true) in zip(axes, panels, strict=True):
        found = sorted((entry for entry in entries if entry["kind"] == kind), key=lambda entry: float(entry["ratio"]))
        for place, entry in enumerate(found):
            if entry["interval"] is None:
                axis.plot(place, entry["ratio"], "x", color="#999999", markersize=3)
            else:
                axis.plot([place, place], entry["interval"], color="#0072B2", linewidth=1.2)
        if true is not None:
            axis.axhline(true, color="#D55E00", linewidth=0.8)
        axis.set_title(title, fontsize="medium")
        axis.set_xlabel("comparison")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_yscale("log")
    axes[0].set_ylabel("speedup, 95 % interval")
    axes[0].set_yticks([0.8, 0.9, 1.0, 1.1, 1.25], ["0.8", "0.9", "1", "1.1", "1.25"])
    axes[0].set_ylim(0.7, 1.4)
    axes[0].minorticks_off()
    figure.savefig(RESULTS / "latency_errors.png", dpi=150)
    pyplot.close(figure)


if __name__ == "__main__":
    app()
