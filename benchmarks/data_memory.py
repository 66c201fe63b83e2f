"""Memory of a run by the number of its pictures: a folder of JPEG files, read by a function of the job, 64 x 64 pixels each.

The process tree is watched from outside. Own memory is what no file backs: pages of the arrays on disk are given back when
others need the room. `validate` is timed on the same jobs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from driving import environment, write_job
from figures import save
from jobs import BRIEFLY, QUANTGATE
from processes import peaks_of

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
PIXELS, CLASSES, CALIBRATION = 64, 10, 256
# Growth of own memory from the smallest to the largest number of pictures.
MOST_GROWTH = 0.10
CODE = """
import numpy as np
from PIL import Image


def picture(path):
    with Image.open(path) as image:
        return {"x": np.float32(image).transpose(2, 0, 1) / 255, "label": int(path.stem.rpartition("-")[2])}
"""


@app.command()
def run(
    pictures: Annotated[list[int] | None, typer.Option(help="Numbers of evaluation pictures.")] = None,
) -> None:
    """Run the jobs and write `data_memory.json`."""
    figures = {}
    for count in pictures or [1000, 20_000]:
        with tempfile.TemporaryDirectory(prefix="quantgate-") as folder:
            figures[str(count)] = _measure(Path(folder), count)
            print(count, figures[str(count)], flush=True)
    own = [one["run"]["own_mb"] for one in figures.values()]
    growth = own[-1] / own[0] - 1
    save("data_memory", {"pixels": PIXELS, "runs": figures, "growth_of_own_memory": round(growth, 4)})
    if growth > MOST_GROWTH:
        raise SystemExit(f"memory grows by {growth:.0%}")


def _measure(root: Path, count: int) -> dict[str, Any]:
    _make_model(root / "model.onnx")
    _make_pictures(root / "calibration", CALIBRATION, seed=1)
    _make_pictures(root / "evaluation", count, seed=2)
    (root / "prepare.py").write_text(CODE, encoding="utf-8")
    job = {
        "source": str(root / "model.onnx"),
        "target": "ort-cpu",
        "data": {"calibration": "calibration", "evaluation": "evaluation", "read": "prepare:picture"},
        "candidates": ["int8-static-minmax-pc@ort-cpu"],
        "gates": {"min_speedup": None, "max_drop": 0.1, "max_size_ratio": None, "min_coverage": None},
        "measurement": BRIEFLY,
    }
    path = write_job(root / "job.yaml", job)
    return {
        "arrays_mb": count * 3 * PIXELS**2 * 4 / 1e6,
        # In this order: the first one also decodes the pictures.
        "validate": _watched(root, "validate", path),
        "validate_again": _watched(root, "validate", path),
        "run": _watched(root, "run", path),
    }


def _make_model(path: Path) -> None:
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.Conv2d(8, 16, 3, 2), torch.nn.ReLU()]
    model = torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, CLASSES)
    )
    axes = {"x": {0: "batch"}, "scores": {0: "batch"}}
    example = (torch.zeros(2, 3, PIXELS, PIXELS),)
    torch.onnx.export(
        model.eval(), example, path, input_names=["x"], output_names=["scores"], dynamic_axes=axes, dynamo=False
    )


def _make_pictures(folder: Path, count: int, seed: int) -> None:
    """Write blurred noise; the label, drawn at random, is in the name."""
    from PIL import Image

    folder.mkdir()
    rng = np.random.default_rng(seed)
    for number in range(count):
        image = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((PIXELS, PIXELS))
        image.save(folder / f"{number:06d}-{rng.integers(CLASSES)}.jpg", quality=90)


def _watched(root: Path, command: str, job: Path) -> dict[str, float]:
    """Peaks of a command's process tree in MB, own and resident memory, its seconds and its exit code."""
    words = [*QUANTGATE, command, str(job)]
    allowed = {"QUANTGATE_ALLOWED_HOOKS": f"prepare:picture@{root}"}
    with (root / "said").open("w+") as said:
        environ = environment(root / "state", **allowed)
        process = subprocess.Popen(words, env=environ, stdout=said, stderr=said)
        told = peaks_of(process)
        said.seek(0)
        text = said.read()
    # 3: no variant passes, which noise may well bring about.
    if process.returncode not in (0, 3, 4):
        raise SystemExit(text[-3000:])
    return told | {"exit_code": process.returncode}


if __name__ == "__main__":
    app()
