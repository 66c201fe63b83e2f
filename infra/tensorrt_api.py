"""Read the API of the pinned TensorRT bindings into `tests/support/tensorrt_api.json`: `infra/tensorrt_api.py [WHEEL]`.

Names, arguments and members alone: facts that the tests hold the adapter against where TensorRT itself cannot be installed.
The bindings are linked with TensorRT's libraries, which they need not find to be imported: libraries of those names that do
nothing serve as well. Needs `cc` and, without WHEEL, pip.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

WHEEL = "tensorrt-cu13-bindings==11.4.0.106"
MODULE = "tensorrt_bindings.tensorrt"
TARGET = Path(__file__).parents[1] / "tests" / "support" / "tensorrt_api.json"
# What `tasks/engines/tensorrt/shipped` may use; whatever else it uses fails the test until it stands here.
CLASSES = (
    "Builder",
    "EngineInspector",
    "IBuilderConfig",
    "ICudaEngine",
    "IExecutionContext",
    "IHostMemory",
    "ILogger",
    "INetworkDefinition",
    "IOptimizationProfile",
    "IProfiler",
    "ITensor",
    "ITimingCache",
    "OnnxParser",
    "ParserError",
    "Runtime",
)
ENUMS = (
    "BuilderFlag",
    "DataType",
    "ErrorCode",
    "LayerInformationFormat",
    "MemoryPoolType",
    "ProfilingVerbosity",
    "TensorIOMode",
    "TensorLocation",
)
# The functions that the bindings are linked with, by library: `nm -D --undefined-only tensorrt.so`.
LINKED = {
    "libnvinfer.so.11": """createInferBuilder_INTERNAL createInferRefitter_INTERNAL createInferRuntime_INTERNAL
        getBuilderPluginRegistry getPluginRegistry""",
    "libnvinfer_plugin.so.11": "initLibNvInferPlugins",
    "libnvonnxparser.so.11": "createNvOnnxParserRefitter_INTERNAL createNvOnnxParser_INTERNAL getNvOnnxParserVersion",
}


def describe_module(module: Any) -> dict[str, Any]:
    """Methods with their overloads, properties and members of a module's classes and enums; those it lacks are left out."""
    return {
        "classes": {name: _describe_class(getattr(module, name)) for name in CLASSES if hasattr(module, name)},
        "enums": {name: sorted(getattr(module, name).__members__) for name in ENUMS if hasattr(module, name)},
    }


def _describe_class(found: type) -> dict[str, Any]:
    methods, properties = {}, []
    for name in sorted(dir(found)):
        member = inspect.getattr_static(found, name)
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, property):
            properties.append(name)
        elif callable(getattr(found, name)) and not isinstance(getattr(found, name), type):
            methods[name] = signatures(name, getattr(found, name).__doc__ or "")
    return {"methods": {name: found for name, found in methods.items() if found}, "properties": properties}


def signatures(name: str, text: str) -> list[str]:
    """The overloads that pybind11 writes at the top of a docstring: arguments, "?" after one with a default, and what it gives.

    >>> signatures("f", "f(self: m.C, a: int, b: list[tuple] = <E.X: 0>) -> m.sub.D")
    ['self, a, b? -> D']
    >>> signatures("f", "f(*args, **kwargs)\\nOverloaded function.\\n\\n1. f(a: int) -> bool\\n\\n2. f(b: str) -> list[m.D]")
    ['a -> bool', 'b -> list[D]']
    """
    lines = re.findall(rf"^(?:\d+\. )?{re.escape(name)}\((.*)\) -> (.+)$", text, flags=re.MULTILINE)
    overloads = [
        f"{', '.join(_argument(part) for part in _split(inside))} -> {re.sub(r'[A-Za-z_][A-Za-z0-9_]*(?:::|[.])', '', gives)}"
        for inside, gives in lines
    ]
    return list(dict.fromkeys(overloads))  # those that differ in types alone are one


def _argument(text: str) -> str:
    return text.partition(":")[0].strip() + ("?" if "=" in text else "")


def _split(text: str) -> list[str]:
    """The parts between commas that stand in no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[(<{") - (letter in "])>}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


def extract(wheel: Path, folder: Path) -> dict[str, Any]:
    """Return what the bindings in a wheel offer, read in a process of its own with libraries that do nothing.

    Raises:
        CalledProcessError: `cc` or the import fails.
    """
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "wheel")
    for library, names in LINKED.items():
        source = folder / f"{library}.c"
        source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in names.split()), encoding="utf-8")
        command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{library}", "-o", str(folder / library), str(source)]
        subprocess.run(command, check=True)
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(folder / "wheel")}
    done = subprocess.run(
        [sys.executable, __file__, "--read", MODULE], env=environment, check=True, capture_output=True, text=True
    )
    described: dict[str, Any] = json.loads(done.stdout)
    return {"wheel": wheel.name.split("-")[0].replace("_", "-") + "==" + wheel.name.split("-")[1]} | described


def download(folder: Path) -> Path:
    """The pinned wheel.

    Raises:
        CalledProcessError: pip does not get it.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    subprocess.run(command, check=True)
    return next(folder.glob("tensorrt_cu13_bindings-*.whl"))


def main(arguments: list[str]) -> None:
    """Write the file; with `--read MODULE`, write what a module offers to the standard output."""
    if arguments[:1] == ["--read"]:
        print(json.dumps(describe_module(importlib.import_module(arguments[1]))))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = Path(arguments[0]) if arguments else download(folder)
        TARGET.write_text(json.dumps(extract(wheel, folder), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
