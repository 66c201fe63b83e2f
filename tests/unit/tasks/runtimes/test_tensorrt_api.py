"""The adapter against the names and arguments that TensorRT, TensorRT-RTX, CUDA's and NVML's bindings really have.

TensorRT's are read from its pinned wheel into `tensorrt_api.json`, the others are asked where they are installed. The
adapter's objects have no types, so a table says by what names they go in which file; it is checked both ways.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from api_uses import Reader, Use, fault
from fake_cuda import Error, FakeCuda, cudaMemcpyKind

ROOT = Path(__file__).parents[4]
ADAPTER = ROOT / "tasks" / "engines" / "tensorrt" / "shipped"
API: dict[str, Any] = json.loads((ROOT / "tests" / "support" / "tensorrt_api.json").read_text(encoding="utf-8"))

# By what names the API's objects go in each file of the adapter.
RECEIVERS = {
    "api.py": {},
    "build.py": {
        "builder": "Builder",
        "cache": "ITimingCache",
        "config": "IBuilderConfig",
        "error": "ParserError",
        "loaded": "ICudaEngine",
        "network": "INetworkDefinition",
        "parser": "OnnxParser",
        "self._config": "IBuilderConfig",
        "shapes": "IOptimizationProfile",
        "tensor": "ITensor",
    },
    "cuda.py": {},
    "files.py": {},
    "model.py": {},
    "request.py": {"engine": "ICudaEngine", "self._context": "IExecutionContext"},
    "run.py": {"self._engine": "ICudaEngine", "self._runtime": "Runtime", "inspector": "EngineInspector"},
    "stale.py": {},
    "tensors.py": {"engine": "ICudaEngine"},
}
# What has members of the same names and is not the API's.
OURS = {"model.py": {"plan"}}
# What TensorRT has not, and the adapter asks of `tensorrt_rtx` alone.
RTX_ONLY = {
    ("", "ComputeCapability"),
    ("IBuilderConfig", "num_compute_capabilities"),
    ("IBuilderConfig", "set_compute_capability"),
}


def load_extractor() -> ModuleType:
    """`infra/tensorrt_api.py`, which is no package."""
    spec = importlib.util.spec_from_file_location("tensorrt_api", ROOT / "infra" / "tensorrt_api.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reader(path: Path) -> Reader:
    return Reader(path, API, RECEIVERS[path.name])


def all_uses() -> list[Use]:
    return [use for name in RECEIVERS for use in reader(ADAPTER / name).uses()]


def test_the_table_has_every_file() -> None:
    assert {path.name for path in ADAPTER.glob("*.py")} - {"__init__.py"} == set(RECEIVERS)


@pytest.mark.parametrize("name", RECEIVERS)
def test_the_table_has_every_object(name: str) -> None:
    """Whatever has a member called like one of the API's is in the table, and nothing stands there that the file lacks."""
    one = reader(ADAPTER / name)
    list(one.uses())
    assert one.unknown(frozenset(OURS.get(name, ()))) == []
    assert one.met == set(RECEIVERS[name])


def test_tensorrt_has_what_is_used() -> None:
    """By the names and arguments of the pinned wheel; and what is excepted is used, and is not there."""
    uses = all_uses()
    assert len(uses) > 40
    excepted = [use for use in uses if (use.owner, use.member) in RTX_ONLY]
    assert {(use.owner, use.member) for use in excepted} == RTX_ONLY
    assert [problem for use in uses if use not in excepted and (problem := fault(use, API))] == []
    assert all(fault(use, API) for use in excepted)


def test_tensorrt_rtx_has_what_is_used() -> None:
    """By asking it."""
    module = pytest.importorskip("tensorrt_rtx", reason="its wheels are for x86-64 Linux alone")
    extractor = load_extractor()
    extractor.ENUMS += ("ComputeCapability",)
    live = extractor.describe_module(module)
    assert [problem for use in all_uses() if (problem := fault(use, live))] == []


def test_the_kept_names_are_those_of_the_extractor() -> None:
    """All that it looks for, of the version that it pins."""
    extractor = load_extractor()
    assert API["wheel"] == extractor.WHEEL
    assert sorted(API["classes"]) == sorted(extractor.CLASSES)
    assert sorted(API["enums"]) == sorted(extractor.ENUMS)


@pytest.mark.slow
def test_the_kept_names_are_the_wheels(tmp_path: Path) -> None:
    """Read once more."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    extractor = load_extractor()
    try:
        wheel = extractor.download(tmp_path)
    except subprocess.CalledProcessError:
        pytest.skip("pip does not get the wheel")
    assert extractor.extract(wheel, tmp_path) == API


def calls_of(names: set[str]) -> list[tuple[str, ast.Attribute, ast.Call | None]]:
    """Members of modules that go by these names in `cuda.py`, with the calls of them."""
    tree = ast.parse((ADAPTER / "cuda.py").read_text(encoding="utf-8"))
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return [
        (node.attr, node, calls.get(id(node)))
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in names
    ]


def wrong_calls(module: ModuleType, names: set[str]) -> list[str]:
    """Calls that the functions of a module do not take; one that is handed on is called with a handle."""
    found = calls_of(names)
    assert found
    wrong = []
    for name, _, call in found:
        member = getattr(module, name, None)
        if member is None:
            wrong.append(f"no {name}")
        elif callable(member) and not isinstance(member, type):
            count = len(call.args) if call else 1
            try:
                inspect.signature(member).bind(*range(count))
            except TypeError as error:
                wrong.append(f"{name}: {error}")
    return wrong


def test_cuda_has_what_is_used() -> None:
    """Functions with as many arguments as they are given, and the members of enums."""
    module = importlib.import_module("cuda.bindings.runtime") if importlib.util.find_spec("cuda") else None
    if module is None:
        pytest.skip("no cuda-bindings")
    assert wrong_calls(module, {"cudart", "load_cuda()", "self._cudart"}) == []
    for enum in ("cudaMemcpyKind", "cudaStreamCaptureMode"):
        used = [name for name, _, _ in calls_of({f"cudart.{enum}", f"self._cudart.{enum}"})]
        assert used and all(hasattr(getattr(module, enum), name) for name in used)


def test_the_stand_in_for_cuda_has_its_arguments() -> None:
    """By name and order, and the same numbers of enums and errors."""
    if importlib.util.find_spec("cuda") is None:
        pytest.skip("no cuda-bindings")
    module = importlib.import_module("cuda.bindings.runtime")
    functions = [name for name in dir(FakeCuda) if name.startswith("cuda")]
    assert len(functions) > 15
    for name in functions:
        ours = list(inspect.signature(getattr(FakeCuda, name)).parameters)[1:]
        assert (name, ours) == (name, list(inspect.signature(getattr(module, name)).parameters))
    for enum, real in ((Error, "cudaError_t"), (cudaMemcpyKind, "cudaMemcpyKind")):
        assert {one.name: one.value for one in enum}.items() <= {
            one.name: int(one) for one in getattr(module, real)
        }.items()


def test_nvml_has_what_is_used() -> None:
    assert wrong_calls(pytest.importorskip("pynvml", reason="comes with the extras dev and gpu"), {"nvml"}) == []


SNIPPETS = {
    "context.execute_async_v2(stream)": "no such method",
    "context.execute_async_v3()": "0 arguments",
    "context.execute_async_v3(stream, 1)": "2 arguments",
    "context.execute_async_v3(stream=stream)": "('stream',)",
    "context.all_shapes": "no such property",
    "context.infer_shapes": "no such property",
    "api.Runtime()": "0 arguments",
    "api.Runtime(logger).deserialize_cuda_engine(plan, 3)": "2 arguments",
    "api.DataType.FLOAT16": "no such member",
    "api.Precision": "no such name",
    "class P(api.IProfiler):\n    def report_layer_time(self, name, ms): ...": "expected ['self, layer_name, ms -> None']",
}


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_a_wrong_use_is_found(tmp_path: Path, snippet: str) -> None:
    """Each kind of mistake, planted."""
    (tmp_path / "x.py").write_text(snippet, encoding="utf-8")
    uses = list(Reader(tmp_path / "x.py", API, {"context": "IExecutionContext"}).uses())
    problems = [problem for use in uses if (problem := fault(use, API))]
    assert len(problems) == 1 and SNIPPETS[snippet] in problems[0]


def test_right_uses_have_no_fault(tmp_path: Path) -> None:
    """Of each kind, and as many as there are."""
    (tmp_path / "x.py").write_text(
        "api.Runtime(logger).deserialize_cuda_engine(plan).create_execution_context().execute_async_v3(stream_handle=1)\n"
        "context.profiler = p\ncontext.set_input_shape('x', (1,))\napi.TensorIOMode.INPUT\n"
        "class P(api.IProfiler):\n    def __init__(self): api.IProfiler.__init__(self)\n"
        "    def report_layer_time(self, layer_name, ms): ...\n",
        encoding="utf-8",
    )
    uses = list(Reader(tmp_path / "x.py", API, {"context": "IExecutionContext"}).uses())
    assert [problem for use in uses if (problem := fault(use, API))] == []
    assert sorted(use.member for use in uses if use.kind == "call") == [
        "Runtime",
        "__init__",
        "create_execution_context",
        "deserialize_cuda_engine",
        "execute_async_v3",
        "set_input_shape",
    ]


def test_an_object_by_an_unknown_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("thing.execute_async_v3(1)\nmine.name\n", encoding="utf-8")
    assert Reader(tmp_path / "x.py", API, {}).unknown(frozenset({"mine"})) == ["x.py:1: thing.execute_async_v3"]
