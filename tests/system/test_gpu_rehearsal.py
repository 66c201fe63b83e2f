"""Every step of the GPU check once, on the CPU provider and a small encoder: `run`, going on with it, and the table."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu.answers import rows_of
from gpu.bundle import Bundle, Notes, narrow, pack, unpack
from gpu.pytorch_modes import MODES, measure_launch, rows_of_module
from packages import linked

from tasks.engines.inductor.session import why_missing
from validators.records.run import SessionSettings
from validators.target_facts import CPU_PROVIDER

# The export, and a process for each figure, which imports PyTorch or ONNX Runtime anew.
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SAMPLES, TOKENS, VOCABULARY = 64, 12, 97
# Of an environment that has PyTorch and NumPy, and nothing of this one.
BARE = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "CXX")}


def small_bundle(folder: Path) -> Path:
    """A one-layer encoder with random weights, as `text`: its labels are its own answers, but for every eighth sample."""
    import torch

    from tasks.demo.bert import BertEncoder, BertShape, Dense, TextClassifier
    from tasks.demo.text import exported

    torch.manual_seed(1)
    shape = BertShape(vocabulary=VOCABULARY, positions=16, width=64, heads=4, inner_width=128, layers=1)
    module = TextClassifier(BertEncoder(shape), Dense(shape.width, 2)).eval().requires_grad_(False)
    for parameter in module.parameters():
        parameter.copy_(torch.randn_like(parameter) / 4)
    rng = np.random.default_rng(2)
    ids = rng.integers(0, VOCABULARY, (2 * SAMPLES, TOKENS))
    mask = (np.arange(TOKENS) < rng.integers(3, TOKENS + 1, (len(ids), 1))).astype(np.int64)
    label = module(torch.from_numpy(ids), torch.from_numpy(mask)).argmax(dim=1).numpy()
    label[::8] = 1 - label[::8]
    half = {"input_ids": ids[:SAMPLES], "attention_mask": mask[:SAMPLES]}
    other = {"input_ids": ids[SAMPLES:], "attention_mask": mask[SAMPLES:], "label": label[SAMPLES:]}
    model = exported(module)
    notes = Notes(
        "text",
        "accuracy",
        "logits",
        (1, 2, 4),
        32,
        module={"kind": "bert", "shape": asdict(shape), "classes": 2},
        rounding={"before": 0.875, "after": 0.875, "samples": SAMPLES},
        rounded=narrow(model),
    )
    return pack(folder, notes, model, half, other)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With `text.zip`."""
    return small_bundle(tmp_path_factory.mktemp("bundle")).parent


@pytest.fixture(scope="module")
def bundle(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return unpack(folder / "text.zip", tmp_path_factory.mktemp("unpacked"))


def test_the_module_has_the_weights_of_the_source(bundle: Bundle) -> None:
    """PyTorch and ONNX Runtime answer alike, and 7 in 8 of the labels are what the model says."""
    ours, value = rows_of(bundle.source, SessionSettings(CPU_PROVIDER, 1), bundle)
    theirs, again = rows_of_module(bundle, "fp32", "cpu")
    assert value == again == 0.875
    np.testing.assert_array_equal(ours, theirs)
    rows, half = rows_of_module(bundle, "fp16", "cpu")
    assert rows.shape == ours.shape and half == pytest.approx(0.875, abs=0.05)


def test_a_mode_that_fails_leaves_the_others_measured(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no compiler here\nand more")

    monkeypatch.setattr("torch.compile", fail)
    launch = measure_launch(bundle, 2, MODES, "cpu")
    assert launch.refused == {"fp16-compiled": "no compiler here"}
    assert {mode: len(blocks) for mode, blocks in launch.blocks_ms.items()} == {"fp32": 3, "fp16": 3}
    assert all(ms > 0 for blocks in launch.blocks_ms.values() for ms in blocks)


def gpu_check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
    )


# Minutes on a machine with nothing else to do; the budget that it is given is spent on one that is busy.
@pytest.mark.timeout(1500)
def test_a_rehearsal_fills_every_cell_and_is_no_figure_of_a_gpu(folder: Path, tmp_path: Path) -> None:
    """Each part, model, candidate and batch size has a figure or a reason; what is there is not measured again."""
    results = tmp_path / "rehearsal.json"
    command = ["run", str(folder), "--provider", "cpu", "--models", "text", "--launches", "1", "--batches", "4"]
    command += ["--block-seconds", "0.01", "--out", str(results), "--work", str(tmp_path / "work")]

    first = gpu_check(*command, "--only", "ceilings,ort-cuda", "--seconds", "900")
    assert first.returncode == 0, first.stderr
    figures = json.loads(results.read_text(encoding="utf-8"))
    assert figures["rehearsal"] is True and figures["inventory"]["gpu"] is None
    for key in ("fp32", "int8-static-minmax-pc", "int4-g32-rtn"):
        artifact = figures["artifacts"][f"ort-cpu/text/{key}"]
        assert artifact["value"] == pytest.approx(0.875, abs=0.1) and artifact["size_bytes"] > 0
        cell = figures["cells"][f"ort-cpu/text/b4/{key}"]
        assert cell["p50_ms"] > 0 and cell["against"] == "fp32" and cell["speedup"]["low"] is not None
        macs = figures["models"]["text"]["macs_a_sample"]
        assert cell["tflop_per_s"] == pytest.approx(2 * macs * 4 / (cell["p50_ms"] / 1e3) / 1e12)
    assert figures["artifacts"]["ort-cpu/text/int8-static-minmax-pc"]["coverage"]["low"] > 0.5
    assert figures["artifacts"]["ort-cpu/text/fp32"]["coverage"]["low"] == 0.0
    assert "fp16 on ort-cpu" in figures["cells"]["ort-cpu/text/b4/fp16"]["refused"]["reason"]
    assert figures["ceilings"]["float32"]["tflop_per_s"] > 0 and "refused" in figures["ceilings"]["tf32"]

    second = gpu_check(*command, "--seconds", "300")
    assert second.returncode == 0, second.stderr
    later = json.loads(results.read_text(encoding="utf-8"))
    assert {key: later["cells"][key] for key in figures["cells"]} == figures["cells"]
    assert later["artifacts"]["pytorch/text/fp32"]["value"] == 0.875
    assert later["cells"]["pytorch/text/b4/fp32"]["against"] == "fp16"
    assert all("refused" in cell for key, cell in later["cells"].items() if key.startswith("tensorrt/"))
    assert [part["left"] for part in later["parts"]] == [0, 0]

    refused = gpu_check("table", str(results))
    assert refused.returncode == 2 and "rehearsal" in refused.stderr and not refused.stdout
    assert "A rehearsal on a processor" in gpu_check("table", str(results), "--rehearsal").stdout


@pytest.mark.skipif(bool(why_missing()), reason="no C++ compiler")
@pytest.mark.timeout(1500)
def test_trained_models_need_pytorch_alone(folder: Path, tmp_path: Path) -> None:
    """A form is compiled, answered with and timed; the other models are left out; the table shows what there is."""
    python, results = linked(tmp_path / "venv", ("torch", "numpy")), tmp_path / "rehearsal.json"
    command = [
        str(python),
        "-m",
        "benchmarks.gpu",
        "torch",
        str(folder),
        "--provider",
        "cpu",
        "--forms",
        "int8-dynamic-pc",
    ]
    command += ["--launches", "1", "--batches", "2", "--block-seconds", "0.01", "--seconds", "900"]
    command += ["--out", str(results), "--work", str(tmp_path / "work")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=BARE)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "image: left out" in done.stdout and "language: left out" in done.stdout
    figures = json.loads(results.read_text(encoding="utf-8"))
    assert figures["rehearsal"] is True and figures["ceilings"]["int8"]["tflop_per_s"] > 0
    artifact = figures["artifacts"]["torch-cuda/text/int8-dynamic-pc"]
    cell = figures["cells"]["torch-cuda/text/b2/int8-dynamic-pc"]
    assert artifact["value"] >= 0.75 and artifact["compile_seconds"] > 0 and artifact["coverage"]["low"] > 0.5
    assert cell["p50_ms"] > 0 and cell["speedup"]["value"] > 0 and cell["against"] == "fp16"
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=BARE)
    assert again.returncode == 0 and "artifacts" not in again.stdout, again.stdout
    assert "`int8-dynamic-pc`" in gpu_check("table", str(results), "--rehearsal").stdout


def bare_copy(folder: Path) -> Path:
    """Copy what git tracks, as it travels to a borrowed machine."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.skipif(bool(why_missing()), reason="no C++ compiler")
@pytest.mark.timeout(1500)
def test_killed_first_contact_resumes_from_its_output_alone(tmp_path: Path) -> None:
    """In a copy of the tree, with PyTorch and NumPy; the second machine has the output folder and nothing else."""
    python, tree, out = linked(tmp_path / "venv", ("torch", "numpy")), bare_copy(tmp_path / "tree"), tmp_path / "out"
    options = "--provider cpu --models decoder --forms int8-dynamic-pc --batches 1,8 --seconds 900"
    command = ["make", "gpu-first", f"PYTHON={python}", f"ARGS={options}"]
    environment = BARE | {"OUT": str(out)}
    started = subprocess.Popen(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        until = time.monotonic() + 600
        while time.monotonic() < until and started.poll() is None and "b1/bf16" not in read_all(out):
            time.sleep(0.1)
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()
    (path,) = out.glob("*.json")
    figures = json.loads(path.read_text(encoding="utf-8"))
    assert "torch-cuda/decoder/b1/bf16" in figures["cells"] and figures["ceilings"]["copy"]["gb_per_s"] > 0
    shutil.rmtree(tree / ".quantgate")
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    later = json.loads(path.read_text(encoding="utf-8"))
    assert later["ceilings"] == figures["ceilings"]
    assert {key: later["cells"][key] for key in figures["cells"]} == figures["cells"]
    assert later["cells"]["torch-cuda/decoder/b8/int8-dynamic-pc"]["p50_ms"] > 0
    artifact = later["artifacts"]["torch-cuda/decoder/int8-dynamic-pc"]
    assert artifact["coverage"]["low"] > 0.5 and 0 < artifact["relative_error"] < 0.05
    table = gpu_check("table", str(path), "--rehearsal").stdout
    assert table.strip() == path.with_suffix(".md").read_text(encoding="utf-8").strip()
    assert "`int8-dynamic-pc`" in table and "at most, by the ceilings" in table


def read_all(folder: Path) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.json"))


def test_what_the_time_does_not_reach_for_is_left(folder: Path, tmp_path: Path) -> None:
    run = gpu_check(
        *["run", str(folder), "--provider", "cpu", "--models", "text", "--only", "ort-cuda", "--seconds", "0.5"],
        *["--out", str(tmp_path / "r.json"), "--work", str(tmp_path / "work")],
    )
    assert run.returncode == 3 and "left, run the same again" in run.stdout, run.stderr
