"""Exported programs of other tools: compared with the source before they are compiled, or refused by what is wrong."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from processors import AMX, source_alone

from tasks.engines.catalog import find_target
from tasks.engines.given import files_of, has_ranges_at_run_time
from tasks.engines.inductor import compile as inductor
from tasks.engines.variants import refuse_other_targets
from tasks.runtimes.torch_program import RANGES
from validators.errors import CandidateRefused
from validators.job.candidate_name import decode
from validators.job.given_file import GivenFile

# Of torch about itself.
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")
Forward = Callable[..., object]


class Net(torch.nn.Module):
    """A layer, used by the function that is the test's."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.forward = forward.__get__(self)


def fits(self: Any, x: torch.Tensor) -> object:
    return self.layer(x)


def renamed(self: Any, tokens: torch.Tensor) -> object:
    return self.layer(tokens)


def more_inputs(self: Any, x: torch.Tensor, mask: torch.Tensor) -> object:
    return self.layer(x) * mask


def more_outputs(self: Any, x: torch.Tensor) -> object:
    return self.layer(x), x


def in_doubles(self: Any, x: torch.Tensor) -> object:
    return self.layer(x.float())


def by_key(self: Any, x: torch.Tensor) -> object:
    return {"scores": self.layer(x)}


def save(path: Path, forward: Forward, *, fixed: bool = False, dtype: torch.dtype = torch.float32) -> GivenFile:
    count = forward.__code__.co_argcount - 1
    axes = ({0: torch.export.Dim.DYNAMIC},) * count
    inputs = tuple(torch.zeros(3, 4, dtype=dtype) for _ in range(count))
    torch.export.save(torch.export.export(Net(forward), inputs, dynamic_shapes=None if fixed else axes), path)
    return given_of(path)


def given_of(path: Path, **more: object) -> GivenFile:
    return GivenFile.model_validate({"name": "theirs", "file": path, "engine": "torch-inductor"} | more)


def taken(given: GivenFile, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], str]:
    """The order that the compiler gets for a file, and what is said of its maker. The source is `x[n, 4] -> y[n, 4]`."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph), folder / "source.onnx")
    asked: dict[str, Any] = {}

    def run_compiler(order: dict[str, Any], _folder: Path) -> dict[str, Any]:
        asked.update(order)
        return {"seconds": 1.0, "changes": {}}

    monkeypatch.setattr(inductor, "run_compiler", run_compiler)
    materials = replace(source_alone(folder / "source.onnx"), batches=lambda: [{"x": np.zeros((1, 4), np.float32)}] * 2)
    takes = find_target(given.engine).takes
    assert files_of(given, takes) == [given.file]
    return asked, takes[".pt2"](given, folder / "model.pt2", materials)


@pytest.mark.parametrize(
    ("forward", "more"),
    [(fits, {}), (renamed, {"inputs": {"tokens": "x"}}), (by_key, {"outputs": {"scores": "y"}})],
)
def test_program_that_fits_is_compiled_as_it_is(
    forward: Forward, more: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the names of the source: its outputs are known by their order, unless they have keys."""
    save(tmp_path / "theirs.pt2", forward)
    order, maker = taken(given_of(tmp_path / "theirs.pt2", **more), tmp_path, monkeypatch)
    assert (order["inputs"], order["outputs"], len(order["batches"])) == (["x"], ["y"], 1)
    assert order["recipe"] == {"precision": "int8", "is_given": True}
    assert maker == f"torch.export of torch {torch.__version__}"


@pytest.mark.parametrize(
    ("forward", "form", "said"),
    [
        (renamed, {}, r"inputs tokens.*set `inputs: \{tokens: x\}`"),
        (more_inputs, {}, "inputs.*mask"),
        (more_outputs, {}, "outputs.*linear"),
        (by_key, {}, "outputs scores"),
        (fits, {"fixed": True}, r"input is x.*\[3, 4\]"),
        (in_doubles, {"dtype": torch.float64}, "input is x.*float64"),
    ],
)
def test_program_that_does_not_fit_is_refused(
    forward: Forward, form: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is compiled."""
    given = save(tmp_path / "theirs.pt2", forward, **form)
    monkeypatch.setattr(inductor, "_compile", lambda *_: pytest.fail("compiled"))
    with pytest.raises(CandidateRefused, match=f"(?s){said}") as refusal:
        taken(given, tmp_path, monkeypatch)
    assert refusal.value.kind == "invalid" and "theirs.pt2" in refusal.value.found


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def damaged(path: Path, how: str) -> GivenFile:
    """A program that fits, damaged in one way."""
    given = save(path, fits)
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:-200])
    elif how == "a pickle":
        path.write_bytes(pickle.dumps(Trap(path.with_name("sprung"))))
    elif how == "missing":
        path.unlink()
    elif how == "codes":
        given = given_of(path, codes={"x": {"scale": 0.5}})
    elif how == "without tensors":
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        model = json.loads(members["theirs/models/model.json"])
        del model["graph_module"]["graph"]["tensor_values"]["x"]
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in (members | {"theirs/models/model.json": json.dumps(model).encode()}).items():
                archive.writestr(name, content)
    else:
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(how, b"")
    return given


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("truncated", r"theirs\.pt2"),
        ("a pickle", "BadZipFile"),
        ("missing", "no such file"),
        ("codes", "codes"),
        ("without tensors", "cannot be read: KeyError: 'x'"),
        ("theirs/../../evil", "evil"),
        ("/etc/evil", "evil"),
        ("theirs/data/weights/model.pt", "weights/model.pt"),
        ("theirs/data/aotinductor/model/a.wrapper.so", "compiled package: native code"),
    ],
)
def test_file_that_is_no_sound_program_is_refused(how: str, said: str, tmp_path: Path) -> None:
    given = damaged(tmp_path / "theirs.pt2", how)
    with pytest.raises(CandidateRefused, match=said) as refusal:
        files_of(given, [".pt2"])
    assert refusal.value.kind == "invalid" and "theirs.pt2" in refusal.value.found
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("precision", ["int8", "int4", "fp8"])
def test_rules_of_recipes_do_not_bind_programs(precision: str) -> None:
    """A GPU's target makes no INT8 with fixed ranges, and INT4 in some blocks alone; a file may have them."""
    refuse_other_targets(decode(f"{precision}-given-theirs@torch-cuda"), AMX)


@pytest.mark.parametrize("is_dynamic", [True, False])
def test_package_says_whether_ranges_come_at_run_time(is_dynamic: bool, tmp_path: Path) -> None:
    about = json.dumps({RANGES: is_dynamic})
    with zipfile.ZipFile(tmp_path / "model.pt2", "w") as archive:
        archive.writestr("model/data/aotinductor/model/a.wrapper_metadata.json", json.dumps({"quantgate": about}))
    assert has_ranges_at_run_time(tmp_path / "model.pt2") is is_dynamic
