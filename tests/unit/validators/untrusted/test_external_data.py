"""External data of ONNX models: whatever a file says, nothing outside of its folder is read, and nothing that is not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import tiny_model, tiny_weights
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession

from tasks.engines.catalog import lint
from validators.errors import SourceError
from validators.graph.source_graph import check_source_graph, is_quantized
from validators.untrusted.external_data import external_files
from validators.untrusted.paths import inside

SECRET = np.arange(64 * 128, dtype=np.float32).reshape(64, 128)


def outside(tensor: TensorProto, **told: str) -> TensorProto:
    """Make a tensor external."""
    for field in ("raw_data", "float_data"):
        tensor.ClearField(field)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in told.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def write(folder: Path, change: Callable[[onnx.ModelProto], object]) -> Path:
    """A model of `folder/model` with a fault; `folder/secret.bin` lies outside of its folder."""
    (folder / "model").mkdir(exist_ok=True)
    SECRET.tofile(folder / "secret.bin")
    SECRET.tofile(folder / "model" / "weights.bin")
    model = tiny_model(*tiny_weights())
    change(model)
    path = folder / "model" / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def first(**told: str) -> Callable[[onnx.ModelProto], onnx.ModelProto]:
    def change(model: onnx.ModelProto) -> onnx.ModelProto:
        outside(model.graph.initializer[0], **told)
        return model

    return change


def constant(name: str = "w") -> TensorProto:
    return numpy_helper.from_array(np.ones((64, 128), np.float32), name)


def in_attribute(model: onnx.ModelProto) -> None:
    node = helper.make_node("Constant", [], ["stolen"], value=outside(constant(), location="../secret.bin"))
    model.graph.node.insert(0, node)


def in_branch(model: onnx.ModelProto) -> None:
    """Two branches deep."""

    def branch(name: str, nodes: list[onnx.NodeProto], tensors: list[TensorProto]) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, 1, None)], tensors)

    stolen = outside(constant("s"), location="../secret.bin")
    deep = branch("deep", [helper.make_node("Identity", ["s"], ["deep"])], [stolen])
    plain = [branch(name, [helper.make_node("Identity", ["bias"], [name])], []) for name in ("p", "q")]
    inner = helper.make_node("If", ["yes"], ["then"], then_branch=deep, else_branch=plain[0])
    outer = helper.make_node("If", ["yes"], ["out"], then_branch=branch("then", [inner], []), else_branch=plain[1])
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.graph.node.insert(0, outer)


def in_function(model: onnx.ModelProto) -> None:
    node = helper.make_node("Constant", [], ["b"], value=outside(constant(), location="../secret.bin"))
    model.functions.append(helper.make_function("mine", "F", ["a"], ["b"], [node], [helper.make_opsetid("", 21)]))


def sparse(part: str, where: str) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        tensor = onnx.SparseTensorProto(dims=[64, 128])
        tensor.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "sparse"))
        tensor.indices.CopyFrom(numpy_helper.from_array(np.zeros(1, np.int64), "i"))
        outside(getattr(tensor, part), location="../secret.bin")
        if where == "initializer":
            model.graph.sparse_initializer.append(tensor)
        else:
            model.graph.node.insert(0, helper.make_node("Constant", [], ["sp"], sparse_value=tensor))

    return change


def in_training(model: onnx.ModelProto) -> None:
    info = model.training_info.add()
    info.initialization.initializer.append(outside(constant(), location="../secret.bin"))


ESCAPES: dict[str, Callable[[onnx.ModelProto], object]] = {
    "parent": first(location="../secret.bin"),
    "through a folder": first(location="x/../../secret.bin"),
    "down and up": first(location="./../secret.bin"),
    "absolute": first(location="/etc/passwd"),
    "link": first(location="link.bin"),
    "link in a linked folder": first(location="linked/secret.bin"),
    "nothing": first(location=""),
    "no location": first(offset="0"),
    "the folder itself": first(location="."),
    "backslashes": first(location="..\\secret.bin"),
    "two locations": lambda model: outside(
        outside(model.graph.initializer[0], location="weights.bin"), location="../secret.bin"
    ),
    "attribute": in_attribute,
    "branch of a branch": in_branch,
    "function": in_function,
    "sparse values": sparse("values", "initializer"),
    "sparse indices": sparse("indices", "initializer"),
    "sparse attribute": sparse("values", "attribute"),
    "training": in_training,
    "fifo": first(location="fifo.bin"),
    "folder": first(location="folder"),
    "device": first(location="zero.bin"),
    "missing": first(location="gone.bin"),
    "offset beyond": first(location="weights.bin", offset="1000000000000"),
    "length beyond": first(location="weights.bin", length="99999999999999"),
    "offset and length beyond": first(location="weights.bin", offset="32764", length="8"),
    "negative offset": first(location="weights.bin", offset="-4"),
    "negative length": first(location="weights.bin", length="-1"),
    "no number": first(location="weights.bin", length="1e3"),
    "a number of another script": first(location="weights.bin", offset="٣٣٣٣٣٣٣٣"),
}


@pytest.mark.parametrize("name", ESCAPES)
def test_nothing_but_the_models_own_files(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused, by the check itself and not by whoever comes after it."""
    path = write(tmp_path, ESCAPES[name])
    (path.parent / "link.bin").symlink_to(tmp_path / "secret.bin")
    (path.parent / "linked").symlink_to(tmp_path)
    (path.parent / "zero.bin").symlink_to("/dev/zero")
    (path.parent / "folder").mkdir()
    os.mkfifo(path.parent / "fifo.bin")
    monkeypatch.setattr(onnx.checker, "check_model", lambda *_: pytest.fail("too late"))
    for reader in (check_source_graph, is_quantized):
        with pytest.raises(SourceError) as caught:
            reader(path)
        assert caught.value.exit_code == 2 and "model.onnx" in caught.value.found
    if name != "missing":  # the linter reads no weights
        with pytest.raises(SourceError):
            lint(path, "ort-cpu")


@pytest.mark.parametrize("name", ["attribute", "function", "training"])
def test_a_session_would_load_what_is_refused_here(tmp_path: Path, name: str) -> None:
    """Why nobody is left to look at this by themselves."""
    path = write(tmp_path, ESCAPES[name])
    InferenceSession(path, providers=["CPUExecutionProvider"])
    with pytest.raises(SourceError, match=r"names '\.\./secret.bin'"):
        check_source_graph(path)


def test_a_models_own_files_are_accepted(tmp_path: Path) -> None:
    """Beside it and below it, whole and in part, also by a link that stays inside, and where the folder is a link."""
    for told in ({"location": "weights.bin"}, {"location": "weights.bin", "offset": "0", "length": "32768"}):
        path = write(tmp_path, first(**told))
        check_source_graph(path)
        assert external_files(path) == [path.parent / "weights.bin"]
    assert inside(path.parent, "./weights.bin", said_by="x") == path.parent / "weights.bin"
    (path.parent / "inner.bin").symlink_to("weights.bin")
    assert inside(path.parent, "inner.bin", said_by="x").exists()
    (tmp_path / "elsewhere").symlink_to(path.parent)
    check_source_graph(tmp_path / "elsewhere" / "model.onnx")


PIECES = st.sampled_from(
    ["..", ".", "/", "\\", "a", "model", "secret.bin", "link", "~", "", "\0", "%2e%2e", "\uff0e\uff0e", " "]
)


@given(st.lists(PIECES, min_size=1, max_size=6), st.sampled_from(["/", "\\", "//", ""]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_name_leads_out_of_its_folder(tmp_path: Path, parts: list[str], between: str) -> None:
    """Whatever is accepted lies below the folder, by where the system finds it."""
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (folder / "link").symlink_to(tmp_path)
    name = between.join(parts)
    with contextlib.suppress(SourceError):
        found = inside(folder, name, said_by="x")
        assert os.path.realpath(found).startswith(f"{os.path.realpath(folder)}/") or found.samefile(folder)


def huge_input(model: onnx.ModelProto) -> None:
    model.graph.value_info.append(helper.make_tensor_value_info("sum", 1, [1 << 30, 1 << 30]))


def huge_constant(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[:] = [1 << 40, 1 << 20]


def huge_fill(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array([1 << 20, 1 << 30]), "shape"))
    model.graph.node.insert(0, helper.make_node("ConstantOfShape", ["shape"], ["filled"], name="fill"))


def negative(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[0] = -64


@pytest.mark.parametrize("fault", [huge_input, huge_constant, huge_fill, negative])
def test_absurd_shapes_are_refused(
    tmp_path: Path, fault: Callable[[onnx.ModelProto], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any session would try to find the memory."""
    monkeypatch.setattr(onnx.checker, "check_model", lambda *_: pytest.fail("too late"))
    with pytest.raises(SourceError, match="has the shape"):
        check_source_graph(write(tmp_path, fault))
