"""The check for a machine with a GPU, as far as it goes without one: going on, merging, the table, the refusals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from dying import count_and_die
from gpu.apart import apart, each_apart
from gpu.first import wanted_forms
from gpu.first_table import floor_ms, render_first
from gpu.forms import RECIPES
from gpu.host_compiler import choose_compiler
from gpu.parts import part_bytes
from gpu.record import Results, merge, read, results_path
from gpu.seeded import MODELS, Seeded, small
from gpu.session import Check, Options, packed
from gpu.table import refuse_rehearsal, render
from gpu.trtexec import command, measure_trtexec, parse
from gpu.wheels import REQUIREMENTS

from validators.errors import CandidateRefused, DataError, InfrastructureError
from validators.job.candidate_name import decode
from validators.targets import facts_of

ROOT = Path(__file__).parents[3]
INVENTORY = {"device": "NVIDIA H200 cc9.0", "cpu": "c", "cores": 16, "versions": {"torch": "2"}}
INVENTORY["gpu"] = {"name": "NVIDIA H200", "compute_capability": "9.0"}
FAILED = {"refused": {"kind": "infrastructure", "reason": "the process died"}}
UNSUPPORTED = {"refused": {"kind": "unsupported", "reason": "no kernels"}}


def test_recipes_of_torch_cuda_are_its_default_candidates() -> None:
    """They are written out there, since their grammar is not importable with PyTorch alone; GPTQ needs SciPy too."""
    names = [name for name in facts_of("torch-cuda").default_candidates if "gptq" not in name]
    decoded = {name.partition("@")[0]: asdict(decode(name)) for name in names}
    assert {name: {field: one[field] for field in RECIPES[name]} for name, one in decoded.items()} == RECIPES


def test_what_is_there_is_not_measured_again(tmp_path: Path) -> None:
    """A new process goes on with the file; only what failed for reasons outside the model is tried again."""
    path = tmp_path / "r.json"
    results = Results(path, INVENTORY, rehearsal=False)
    for key, figure in (("a", {"p50_ms": 1.0}), ("b", FAILED), ("c", UNSUPPORTED)):
        results.put("cells", key, figure)
    asked: list[str] = []
    check = Check(Options(tmp_path), Results(path, INVENTORY, rehearsal=False), lambda _: None)
    for key in "abcd":
        check.figure("cells", key, lambda key=key: asked.append(key) or {"p50_ms": 2.0})
    assert asked == ["b", "d"]
    assert {key: figure.get("p50_ms") for key, figure in read(path)["cells"].items()} == {
        "a": 1.0,
        "b": 2.0,
        "c": None,
        "d": 2.0,
    }


def test_refusal_is_a_figure_and_our_own_error_is_told_in_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error that nobody foresaw is written down, shown with where it came from, and tried again next time."""

    def refuse() -> dict[str, Any]:
        raise CandidateRefused(kind="unsupported", found="f", expected="e", fix="x")

    check = Check(Options(tmp_path), Results(tmp_path / "r.json", INVENTORY, rehearsal=False), lambda _: None)
    assert check.figure("cells", "a", refuse) == {"refused": {"kind": "unsupported", "reason": "f; expected e; x"}}
    found = check.figure("cells", "b", lambda: {"p50_ms": 1 / 0})
    assert found is not None and found["refused"]["kind"] == "infrastructure"
    assert "ZeroDivisionError" in found["refused"]["reason"] and "Traceback" in capsys.readouterr().err
    assert check.results.has("cells", "a") and not check.results.has("cells", "b")


def test_nothing_is_begun_that_would_not_end_in_time(tmp_path: Path) -> None:
    check = Check(
        Options(tmp_path, seconds=100.0),
        Results(tmp_path / "r.json", INVENTORY, rehearsal=False),
        lambda _: None,
    )
    check.longest = 99.0
    assert check.figure("cells", "a", lambda: {"p50_ms": 1.0}) is not None
    check.longest = 101.0
    assert check.figure("cells", "b", lambda: {"p50_ms": 1.0}) is None and check.left == 1
    assert check.figure("cells", "a", lambda: {"p50_ms": 3.0}) == {"p50_ms": 1.0}


def write(path: Path, cells: dict[str, Any], **changes: Any) -> Path:
    figures = Results(path, INVENTORY, rehearsal=False).figures | {"cells": cells} | changes
    path.write_text(json.dumps(figures), encoding="utf-8")
    return path


def test_files_of_one_gpu_are_merged_by_key(tmp_path: Path) -> None:
    """The later figure wins, and no refusal takes the place of a figure."""
    one = write(tmp_path / "1.json", {"a": {"p50_ms": 1.0}, "b": FAILED, "c": {"p50_ms": 3.0}}, parts=[{"n": 1}])
    two = write(tmp_path / "2.json", {"a": FAILED, "b": {"p50_ms": 2.0}, "c": {"p50_ms": 4.0}}, parts=[{"n": 2}])
    merged = merge([one, two])
    assert merged["cells"] == {"a": {"p50_ms": 1.0}, "b": {"p50_ms": 2.0}, "c": {"p50_ms": 4.0}}
    assert merged["parts"] == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    "changes", [{"rehearsal": True}, {"inventory": INVENTORY | {"device": "another"}}, {"check": "gpu-first"}]
)
def test_figures_of_two_machines_are_not_mixed(changes: dict[str, Any], tmp_path: Path) -> None:
    one, other = write(tmp_path / "1.json", {}), write(tmp_path / "2.json", {}, **changes)
    with pytest.raises(DataError, match="in one file"):
        merge([one, other])
    with pytest.raises(DataError, match="in one file"):
        Results(other, INVENTORY, rehearsal=False)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path / "r.json")


def test_the_newest_file_of_the_gpu_is_gone_on_with(tmp_path: Path) -> None:
    for day in ("2026-01-02", "2026-01-03"):
        (tmp_path / f"gpu_nvidia-h200_cc9.0_{day}.json").touch()
    (tmp_path / "gpu_nvidia-h100_cc9.0_2026-02-01.json").touch()
    assert results_path(tmp_path, INVENTORY, rehearsal=False).name == "gpu_nvidia-h200_cc9.0_2026-01-03.json"
    assert results_path(tmp_path, INVENTORY, rehearsal=True).name.startswith("gpu_rehearsal_")


MODEL = {
    "source": "weights rounded",
    "metric": "accuracy",
    "rounding": {"before": 0.75, "after": 0.7495},
    "evaluation_samples": 2000,
    "macs_a_sample": 500_000_000,
}
CELL = {
    "p50_ms": 0.25,
    "speedup": {"value": 2.0, "low": 1.9, "high": 2.1},
    "against": "fp16",
    "tflop_per_s": 40.0,
    "weights_gb_per_s": 400.0,
    "energy_mj": 12.5,
    "peak_gpu_memory_mb": 1234.0,
    "end_to_end": {"p50_ms": 0.5},
    "trtexec": {"gpu_compute_ms": 0.24},
}
ARTIFACT = {
    "value": 0.745,
    "drop": {"value": 0.005, "low": 0.001, "high": 0.009},
    "coverage": {"low": 0.97},
    "size_bytes": 45_000_000,
    "engine_bytes": 24_000_000,
}


def figures_of(**changes: Any) -> dict[str, Any]:
    key = "tensorrt/text/int8-static-minmax-pc"
    return {
        "schema": 1,
        "check": "gpu",
        "rehearsal": False,
        "inventory": INVENTORY,
        "parts": [{"started": "2026-01-02T10:00:00+0000", "driver": "580"}, {"started": "2026-01-02T11:00:00+0000"}],
        "ceilings": {"copy": {"gb_per_s": 4000.0}, "int8": {"tflop_per_s": 800.0}, "fp8": UNSUPPORTED},
        "models": {"text": MODEL},
        "artifacts": {key: ARTIFACT},
        "cells": {"tensorrt/text/b8/int8-static-minmax-pc": CELL, "ort-cuda/text/b8/int8-x": UNSUPPORTED},
    } | changes


def test_the_table_has_each_figure_beside_its_limit() -> None:
    """40 of 800 TFLOP/s are 5 %, 400 of 4,000 GB/s 10 %; what was refused is listed with its reason."""
    text = render(figures_of())
    row = next(line for line in text.splitlines() if line.startswith("| tensorrt"))
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "tensorrt",
        "`int8-static-minmax-pc`",
        "0.25",
        "2.00 [1.90, 2.10]",
        "0.5",
        "0.7450",
        "+0.0050 [+0.0010, +0.0090]",
        "97%",
        "24",
        "1234",
        "12.5",
        "40 (5.0%)",
        "400 (10.0%)",
        "0.24",
    ]
    head = next(line for line in text.splitlines() if line.startswith("| runtime"))
    assert head.count("|") == row.count("|")
    assert "`fp8`, `ort-cuda/text/b8/int8-x`: unsupported: no kernels" in text
    assert "NVIDIA H200 cc9.0, driver 580" in text and "2026-01-02" in text


def test_a_figure_that_is_missing_is_told_as_such() -> None:
    cell = {key: CELL[key] for key in ("p50_ms", "speedup", "tflop_per_s", "weights_gb_per_s")} | {"against": "fp32"}
    text = render(figures_of(cells={"pytorch/text/b8/fp16-compiled": cell}, artifacts={}, ceilings={}))
    row = next(line for line in text.splitlines() if line.startswith("| pytorch"))
    assert row.count("not told") == 8 and "(no ceiling)" in row and "| |" not in row.replace("  ", " ")


def test_a_rehearsal_is_no_table_of_a_gpu() -> None:
    with pytest.raises(DataError, match="rehearsal"):
        refuse_rehearsal(figures_of(rehearsal=True), allowed=False)
    refuse_rehearsal(figures_of(rehearsal=True), allowed=True)
    assert render(figures_of(rehearsal=True)).startswith("**A rehearsal on a processor")


# Written after the documented form of the summary (TensorRT's samples/trtexec/README.md): no output of the program was at hand.
SUMMARY = """\
[01/02/2026-10:00:00] [I] === Performance summary ===
[01/02/2026-10:00:00] [I] Throughput: 1234.5 qps
[01/02/2026-10:00:00] [I] Latency: min = 0.81 ms, max = 1.2 ms, mean = 0.85 ms, median = 0.84 ms, percentile(90%) = 0.9 ms
[01/02/2026-10:00:00] [I] Enqueue Time: min = 0.1 ms, max = 0.3 ms, mean = 0.15 ms, median = 0.14 ms
[01/02/2026-10:00:00] [I] H2D Latency: min = 0.01 ms, max = 0.02 ms, mean = 0.012 ms, median = 0.011 ms
[01/02/2026-10:00:00] [I] GPU Compute Time: min = 0.71 ms, max = 1.1 ms, mean = 0.75 ms, median = 0.742 ms
[01/02/2026-10:00:00] [I] D2H Latency: min = 0.004 ms, max = 0.02 ms, mean = 0.005 ms, median = 0.0049 ms
[01/02/2026-10:00:00] [I] Total Host Walltime: 3.00 s
"""


def test_the_summary_of_trtexec_is_read() -> None:
    """Of the lines with a median, that of the GPU and that of whole requests."""
    assert parse(SUMMARY) == {"gpu_compute_ms": 0.742, "latency_ms": 0.84}


@pytest.mark.parametrize(("word", "other"), [("GPU Compute Time", "GPU time"), ("median", "middle")])
def test_another_output_is_refused(word: str, other: str) -> None:
    with pytest.raises(CandidateRefused, match="without a median"):
        parse(SUMMARY.replace(word, other))


def test_trtexec_is_called_with_the_shapes_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tmp_path / "e.plan"
    assert "--shapes=ids:8x48,mask:8x48" in command("trtexec", engine, {"ids": (8, 48), "mask": (8, 48)})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CandidateRefused, match="no trtexec on the PATH"):
        measure_trtexec(engine, {"x": (1, 2)})
    program = tmp_path / "trtexec"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nprint({SUMMARY!r}) if '--shapes=x:1x2' in sys.argv else sys.exit('bad')\n"
    )
    program.chmod(0o755)
    assert measure_trtexec(engine, {"x": (1, 2)})["gpu_compute_ms"] == 0.742
    with pytest.raises(CandidateRefused, match="bad"):
        measure_trtexec(engine, {"x": (2, 2)})


def test_a_process_apart_answers_raises_or_is_given_up() -> None:
    assert apart(max, 3, 4, seconds=60) == 4
    with pytest.raises(ZeroDivisionError):
        apart(divmod, 1, 0, seconds=60)
    with pytest.raises(InfrastructureError, match="exit code 7"):
        apart(sys.exit, 7, seconds=60)


def test_figures_of_a_process_that_dies_are_kept() -> None:
    """Each is yielded as soon as it is there, and its error after them."""
    figures = each_apart(count_and_die, 2, seconds=60)
    assert [next(figures), next(figures)] == [0, 1]
    with pytest.raises(InfrastructureError, match="of count_and_die ended with exit code 7"):
        next(figures)


def test_an_earlier_file_is_gone_on_with_and_left_as_it_is(tmp_path: Path) -> None:
    """As on a machine whose output folder is empty, with the results of the first one in the tree."""
    earlier = write(tmp_path / "1.json", {"a": {"p50_ms": 1.0}}, parts=[{"started": "then", "driver": "1"}])
    content = earlier.read_bytes()
    results = Results(tmp_path / "out" / "2.json", INVENTORY, rehearsal=False, earlier=earlier)
    results.put("cells", "b", {"p50_ms": 2.0})
    assert set(read(tmp_path / "out" / "2.json")["cells"]) == {"a", "b"} and earlier.read_bytes() == content
    assert results.figures["parts"] == [{"started": "then", "driver": "1"}]


def test_models_without_an_archive_are_left_out_by_name(tmp_path: Path) -> None:
    (tmp_path / "image.zip").touch()
    said: list[str] = []
    results = Results(tmp_path / "r.json", INVENTORY, rehearsal=False)
    assert packed(Check(Options(tmp_path, bundle=tmp_path), results, said.append)) == ["image"]
    assert [line.partition(":")[0] for line in said] == ["text", "language"]
    (tmp_path / "image.zip").unlink()
    with pytest.raises(DataError, match="none of text, image, language"):
        packed(Check(Options(tmp_path, bundle=tmp_path), results, said.append))


def test_a_part_fits_beside_the_tree() -> None:
    """What is carried to a borrowed machine is the tree and one part, 64 MiB together; ignored files stay behind."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    tree = sum((ROOT / name).stat().st_size for name in listed.split("\0") if name and (ROOT / name).is_file())
    assert tree < 20 << 20, "a borrowed machine gets the tree with each command"
    assert 0 < part_bytes() <= (64 << 20) - tree - (1 << 20)


def test_the_script_names_its_parts(tmp_path: Path) -> None:
    (tmp_path / "text.zip").touch()
    script = ROOT / "infra" / "gpu_full.sh"
    told = os.environ | {"PYTHON": sys.executable}
    run = subprocess.run([str(script), "halves", str(tmp_path)], env=told, capture_output=True, text=True, check=False)
    assert run.returncode == 2 and "expected: torch, runtimes, whole or all" in run.stderr


FIRST = {
    "check": "gpu-first",
    "ceilings": {
        "copy": {"gb_per_s": 4000.0},
        "bfloat16": {"tflop_per_s": 800.0},
        "fp8": {"tflop_per_s": 1600.0},
        "graph_kernel": {"us": 1.0},
    },
    "models": {"encoder": {"about": "small", "product_weights": 4_000_000}},
    "artifacts": {
        "torch-cuda/encoder/bf16": {"macs_a_sample": 10**9, "coverage": {"low": 0.0}},
        "torch-cuda/encoder/fp8-amax-pc": {"macs_a_sample": 10**9, "coverage": {"low": 0.5}, "relative_error": 0.031},
    },
}


def test_the_least_time_is_that_of_products_or_of_weights() -> None:
    """By hand: 2 x 10^9 operations a sample at 800 TFLOP/s, or half of them at 1,600; 4 or 8 MB at 4,000 GB/s."""
    figures = figures_of(**FIRST)
    assert floor_ms(figures, "encoder", "bf16", 8) == (pytest.approx(0.02), "products")
    assert floor_ms(figures, "encoder", "fp8-amax-pc", 8) == (pytest.approx(0.015), "products")
    # At one sample 8 MB take 0.0020 ms, and the operations 0.0025; in FP8 4 MB take 0.0010 and the operations 0.001875.
    assert floor_ms(figures, "encoder", "bf16", 1) == (pytest.approx(0.0025), "products")
    figures["models"]["encoder"]["product_weights"] = 40_000_000
    assert floor_ms(figures, "encoder", "fp8-amax-pc", 1) == (pytest.approx(0.01), "weights")
    assert floor_ms(figures, "encoder", "int8-dynamic-pc", 1) is None


def test_table_of_first_contact_has_least_time_and_refusals() -> None:
    timed = {"p50_ms": 0.03, "against": "bf16", "speedup": {"value": 1.2, "low": 1.1, "high": 1.3}}
    cells = {"torch-cuda/encoder/b8/fp8-amax-pc": timed, "torch-cuda/encoder/b1/int8-dynamic-pc": UNSUPPORTED}
    text = render_first(figures_of(**FIRST, cells=cells))
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    assert rows[2][:3] == ["1", "`int8-dynamic-pc`", "refused"]
    assert rows[3] == [
        "8",
        "`fp8-amax-pc`",
        "0.03",
        "1.20 [1.10, 1.30]",
        "1.33",
        "0.015 (50%)",
        "products",
        "50%",
        "3.1e-02",
    ]
    assert len({len(row) for row in rows}) == 1
    assert "unsupported: no kernels" in text and "A100" in text


@pytest.mark.parametrize(
    ("lacking", "wanted"), [("", False), ("relative_error", True), ("coverage", True), ("cell", True)]
)
def test_a_form_is_wanted_until_it_is_timed_and_compared(lacking: str, wanted: bool, tmp_path: Path) -> None:
    """As after a run whose comparison of answers was wrong and was removed: nothing is timed twice for it."""
    results = Results(tmp_path / "r.json", INVENTORY, rehearsal=False, check="gpu-first")
    artifact = {"relative_error": 0.01, "coverage": {"low": 0.0}}
    results.put("artifacts", "torch-cuda/encoder/bf16", {key: artifact[key] for key in artifact if key != lacking})
    if lacking != "cell":
        results.put("cells", "torch-cuda/encoder/b1/bf16", {"p50_ms": 1.0})
    options = Options(tmp_path, models=("encoder",), forms=("bf16",), batches=(1,))
    found = wanted_forms(Check(options, results, lambda _: None))
    assert [(model.name, label) for model, label in found] == [("encoder", "bf16")] * wanted


@pytest.mark.parametrize("model", [small(model) for model in MODELS], ids=lambda model: model.name)
def test_seeded_model_is_reproducible_and_answers_its_requests(model: Seeded) -> None:
    """Another default device draws other numbers from a seed, so that answers could not be compared."""
    first = model.build()
    with torch.device("meta"):
        again = model.build()
    assert all(torch.equal(one, other) for one, other in zip(first.parameters(), again.parameters(), strict=True))
    with torch.inference_mode():
        answer = first(*(torch.from_numpy(array) for array in model.request(3).values()))
    assert answer.shape[0] == 3 and bool(torch.isfinite(answer).all())
    assert 0 < model.product_weights() <= sum(one.numel() for one in first.parameters())


def test_a_compiler_whose_code_does_not_run_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CXX names one that makes a library without the probe; the system's is taken, or none."""
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setattr("gpu.host_compiler.SYSTEM", str(tmp_path / "absent"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert choose_compiler() is None and os.environ["CXX"] == str(broken)
    monkeypatch.undo()
    monkeypatch.setenv("CXX", str(broken))
    found = choose_compiler()
    assert found is None or (found != str(broken) and os.environ["CXX"] == found)


def gpu_check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_gpu_it_ends_at_once_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    run = gpu_check("run", str(tmp_path))
    assert run.returncode == 1 and "Traceback" not in run.stderr
    assert [line.partition(":")[0] for line in run.stderr.splitlines()] == ["found", "expected", "fix"]
    assert "--provider cpu" in run.stderr


def test_what_is_installed_is_what_a_user_installs() -> None:
    """Each requirement of a check is a requirement of quantgate, or of its extra `gpu`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = {*project["dependencies"], *project["optional-dependencies"]["gpu"]}
    asked = [line for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert asked and not set(asked) - known


# What a requirement of the check brings: by `pip download`, for Python 3.12 on Linux.
BROUGHT = {
    "numpy",
    "onnx",
    "google",
    "ml_dtypes",
    "typing_extensions",
    "onnxruntime",
    "flatbuffers",
    "packaging",
    "pynvml",
}
BROUGHT |= {"pydantic", "pydantic_core", "annotated_types", "typing_inspection", "scipy", "jiwer", "rapidfuzz", "click"}


def test_nothing_is_imported_that_its_requirements_do_not_bring() -> None:
    """All of `run` but PyTorch itself, which it imports where it needs it: no Prefect, no MLflow, nothing of the pages."""
    code = (
        "import gpu.run, onnxruntime, sys\n"
        "from importlib import metadata\n"
        "known = metadata.packages_distributions()\n"
        "print(*{name.partition('.')[0] for name, module in sys.modules.items() if module} & known.keys())"
    )
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT)])}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | paths
    )
    # What setuptools adds to every interpreter of an environment, and this project itself.
    ours = {"tasks", "validators", "_distutils_hack", "distutils-precedence", "__editable___quantgate_0_1_0_finder"}
    assert set(run.stdout.split()) - ours - BROUGHT <= {"charset_normalizer", "cryptography"}, run.stdout


@pytest.mark.parametrize("given", [[], ["absent"], ["--models", "text"]])
def test_the_script_says_what_it_lacks(given: list[str], tmp_path: Path) -> None:
    """A copy of it, in a tree without models: no environment is made, nothing is fetched."""
    script = tmp_path / "infra" / "gpu_full.sh"
    script.parent.mkdir()
    shutil.copy(ROOT / "infra" / "gpu_full.sh", script)
    run = subprocess.run([str(script), "runtimes", *given], capture_output=True, text=True, check=False)
    assert run.returncode == 2 and run.stderr.startswith("found: no models in ") and "fix: " in run.stderr
    assert ("/absent;" if given == ["absent"] else "/.quantgate/gpu-check/bundle;") in run.stderr
    assert not (tmp_path / ".quantgate").exists()


# In the place of Python: tells the CUDA of its PyTorch, and writes down what pip is to install.
PYTHON = """#!/bin/bash
case "$*" in
  *torch.version.cuda*) echo "$CUDA" ;;
  "-m venv"*) mkdir -p "${@: -1}" ;;
  "-m pip"*) echo "$*" > "$ASKED"; exit 9 ;;
  -\\ *) cat > /dev/null ;;
esac
"""


@pytest.mark.parametrize(("cuda", "brings"), [("12.8", True), ("13.0", False), ("", False)])
def test_cuda_13_libraries_are_installed_beside_another_pytorch(cuda: str, brings: bool, tmp_path: Path) -> None:
    """ONNX Runtime is linked with them: without, each of its cells would be refused."""
    python, asked = tmp_path / "python", tmp_path / "asked"
    python.write_text(PYTHON, encoding="utf-8")
    python.chmod(0o755)
    (tmp_path / "models.zip").touch()
    told = {"PYTHON": str(python), "VENV": str(tmp_path / "venv"), "CUDA": cuda, "ASKED": str(asked)}
    script = ROOT / "infra" / "gpu_full.sh"
    run = subprocess.run(
        [str(script), "runtimes", str(tmp_path)], env=os.environ | told, capture_output=True, text=True, check=False
    )
    assert run.returncode == 9, run.stderr
    words = asked.read_text(encoding="utf-8").split()
    assert "benchmarks/gpu/requirements.txt" in words and ("onnxruntime-gpu[cuda,cudnn]" in words) == brings
