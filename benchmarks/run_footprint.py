"""Memory and disk of a run whose judged output is large: a small segmentation model of 21 classes on 256 x 256 pixels.

The outputs of 1,000 samples are 5.5 GB. A label metric (a function of one's own) and the noise of the outputs are judged, in a
process and a state folder of their own. The process tree and the folder are watched from outside, beside what the run says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import typer
from numpy.typing import NDArray

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests"), str(HERE.parent / "tests" / "support")]

from calibration_figures import save
from driving import environment, write_job

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
CLASSES, PIXELS, GRID, CHANNELS, HIDDEN = 21, 256, 32, 4, 8
CANDIDATES = ["int8-static-minmax-pc@ort-cpu", "int8-static-mse-pc@ort-cpu"]
MOST_MEMORY_MB, MOST_DISK_MB = 2000.0, 500.0
SAMPLE_SECONDS = 0.2
METRIC = '''
import numpy as np


def pixel_accuracy(outputs, labels):
    """The share of each sample's pixels whose best class is the label."""
    return (outputs.argmax(axis=1) == labels).mean(axis=(1, 2))
'''


@app.command()
def run(
    samples: Annotated[int, typer.Option(help="Evaluation samples.")] = 1000,
    out: Annotated[Path, typer.Option(help="Folder of the figures.")] = HERE / "results",
) -> None:
    """Run both jobs and write `run_footprint.json`."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="quantgate-") as folder:
        root = Path(folder)
        (root / "pixels.py").write_text(METRIC, encoding="utf-8")
        make_model(root / "segmentation.onnx")
        make_data(root, samples)
        for name, extra in {
            "pixel_accuracy": {"metric": "pixels:pixel_accuracy", "metric_direction": "higher"},
            "sqnr": {"metric": "sqnr", "gates": {"min_speedup": None, "max_size_ratio": None, "min_sqnr_db": 10.0}},
        }.items():
            figures[name] = _watched(root, name, extra)
    bounds = {"memory_mb": MOST_MEMORY_MB, "disk_mb": MOST_DISK_MB}
    shape = {
        "samples": samples,
        "output": [CLASSES, PIXELS, PIXELS],
        "outputs_mb": samples * CLASSES * PIXELS**2 * 4 / 1e6,
    }
    save(out, "run_footprint", shape | {"bounds": bounds, "candidates": CANDIDATES, "runs": figures})
    if not all(one["within_bounds"] for one in figures.values()):
        raise SystemExit("a run takes more than its bounds")


def make_model(path: Path) -> None:
    """Two convolutions with a resize between them, from a grid of 32 x 32 to 21 scores a pixel."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(1)
    weights = {
        "w": rng.normal(size=(HIDDEN, CHANNELS, 3, 3)) / 3,
        "b": rng.normal(size=HIDDEN) / 10,
        "v": rng.normal(size=(CLASSES, HIDDEN, 1, 1)),
        "c": rng.normal(size=CLASSES) / 10,
        "scales": np.array([1, 1, PIXELS / GRID, PIXELS / GRID]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["hidden"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["hidden"], ["lively"], "relu"),
        helper.make_node("Resize", ["lively", "", "scales"], ["large"], "resize", mode="nearest"),
        helper.make_node("Conv", ["large", "v", "c"], ["scores"], "head"),
    ]
    graph = helper.make_graph(
        nodes,
        "segmentation",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", CHANNELS, GRID, GRID])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", CLASSES, PIXELS, PIXELS])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def make_data(root: Path, samples: int) -> None:
    """Grids of noise; the labels are the model's own answers, with a tenth of the pixels drawn at random."""
    np.savez(root / "calibration.npz", x=_grids(128, 11))
    x, labels = _grids(samples, 12), np.empty((samples, PIXELS, PIXELS), np.uint8)
    rng = np.random.default_rng(13)
    import onnxruntime as ort

    session = ort.InferenceSession(root / "segmentation.onnx", providers=["CPUExecutionProvider"])
    for start in range(0, samples, 4):
        found = session.run(None, {"x": x[start : start + 4]})[0].argmax(axis=1)
        drawn = rng.random(found.shape) < 0.1
        labels[start : start + 4] = np.where(drawn, rng.integers(0, CLASSES, found.shape), found)
    np.savez_compressed(root / "evaluation.npz", x=x, label=labels)


def _grids(count: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(count, CHANNELS, GRID, GRID)).astype(np.float32)


def _watched(root: Path, name: str, extra: dict[str, Any]) -> dict[str, Any]:
    """`quantgate run` in a state folder of its own, watched until its end."""
    state, result = root / f"state-{name}", root / f"{name}.json"
    job = {
        "source": str(root / "segmentation.onnx"),
        "data": {"calibration": str(root / "calibration.npz"), "evaluation": str(root / "evaluation.npz")},
        "candidates": CANDIDATES,
        "search": "all",
        "gates": {"min_speedup": None, "max_drop": 0.2, "max_size_ratio": None},
        "measurement": {"launches": 1, "blocks": 3, "block_seconds": 0.02, "max_other_load": None},
        "budgets": {"seconds": 36000, "recovery": 0, "memory_mb": MOST_MEMORY_MB, "disk_mb": MOST_DISK_MB},
        "code": str(root),
    } | extra
    path = write_job(root / f"{name}.yaml", job)
    command = [sys.executable, "-m", "flows.cli.app", "run", str(path), "--result", str(result)]
    allowed = {"QUANTGATE_ALLOWED_HOOKS": f"pixels:pixel_accuracy@{root}"}
    with (root / "said").open("w+") as said:
        process = subprocess.Popen(command, env=environment(state, **allowed), stdout=said, stderr=said)
        try:
            peak_mb, disk_mb = _watch(process, state / "store")
        finally:
            process.kill()
        said.seek(0)
        assert result.exists(), said.read()[-3000:]
    told = json.loads(result.read_text(encoding="utf-8"))
    own = told["footprint"] or {}
    return {
        "outcome": told["outcome"],
        "reason": told["reason"],
        "candidates": {one["name"]: one["outcome"] for one in told["candidates"]},
        "footprint": own,
        "watched_memory_mb": round(peak_mb, 1),
        "watched_store_mb": round(disk_mb, 1),
        "seconds": told["seconds"]["total"],
        "within_bounds": bool(own)
        and max(peak_mb, own["peak_memory_mb"]) <= MOST_MEMORY_MB
        and max(disk_mb, own["disk_mb"]) <= MOST_DISK_MB,
    }


def _watch(process: subprocess.Popen[Any], store: Path) -> tuple[float, float]:
    """The highest resident memory of the process tree, and size of the store, in MB."""
    memory, disk = 0, 0
    tree = psutil.Process(process.pid)
    while process.poll() is None:
        resident = 0
        for one in _family(tree):
            with suppress(psutil.Error):
                resident += one.memory_info().rss
        memory = max(memory, resident)
        disk = max(disk, _size(store))
        time.sleep(SAMPLE_SECONDS)
    return memory / 1e6, max(disk, _size(store)) / 1e6


def _family(tree: psutil.Process) -> list[psutil.Process]:
    try:
        return [tree, *tree.children(recursive=True)]
    except psutil.Error:
        return []


def _size(folder: Path) -> int:
    """The bytes below a folder; files and folders may go meanwhile."""
    size = 0
    for place, _, names in os.walk(folder):  # it passes over folders that are gone, which rglob does not
        for name in names:
            with suppress(OSError):
                size += Path(place, name).lstat().st_size
    return size


if __name__ == "__main__":
    app()
