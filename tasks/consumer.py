"""What a consumer runs: `mlflow.pyfunc.load_model("models:/<name>@champion-<target>").predict({...})`.

MLflow copies this one file beside the variant and runs it where the model is loaded, so that it may import mlflow, numpy
and onnxruntime and nothing of quantgate.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import mlflow
import mlflow.pyfunc
import numpy as np


def _plugin_device(provider: str, plugin: dict[str, Any]) -> Any:
    """The processor as a provider knows it that comes in a package of its own; registers the provider once a process.

    Raises:
        RuntimeError: the package is not installed, or takes no processor of this machine.
    """
    import onnxruntime as ort

    needed = f"{plugin['distribution']}=={plugin['version']}"
    try:
        found = metadata.version(plugin["distribution"])
        library = import_module(plugin["module"]).get_library_path()
    except (ImportError, OSError) as error:
        raise RuntimeError(f"found {error}; the variant runs on {provider} alone; install {needed}") from error
    if found != plugin["version"]:
        warnings.warn(
            f"found {plugin['distribution']} {found}; the variant was approved on {plugin['version']}: accuracy and speed "
            "may differ; install that version",
            stacklevel=2,
        )
    try:
        ort.register_execution_provider_library(provider, library)
    except Exception as error:  # the bindings raise a dozen unrelated classes; another champion may have registered it
        if "already registered" not in str(error):
            raise RuntimeError(f"found {error}; expected a library that loads; install {needed}") from error
    cpu = ort.OrtHardwareDeviceType.CPU
    devices = [one for one in ort.get_ep_devices() if one.ep_name == provider and one.device.type == cpu]
    if not devices:
        raise RuntimeError(
            f"found {plugin['distribution']} {found} without a device for this processor; expected one of the maker that the "
            f"variant was approved on ({provider}); load it there, or take the champion of ort-cpu"
        )
    return devices[0]


# ONNX Runtime's names, and words of which the name of every operator that multiplies has one.
CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
GPU_PROVIDERS = (CUDA, TENSORRT)
PRODUCTS = ("MatMul", "Gemm", "Conv", "Attention", "LSTM", "GRU", "RNN", "Einsum")
DOMAINS = ("", "ai.onnx", "com.microsoft")


def _gpu_providers(provider: str, options: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
    """Providers with the options that the variant was approved with, less folders of the machine where that was."""
    import onnxruntime as ort

    ort.preload_dlls()
    given = {name: value for name, value in options.items() if not name.endswith("_cache_path")}
    if provider == CUDA:
        return [(CUDA, given)]
    import_module("tensorrt")  # loads its libraries, which may lie where no search path leads
    return [(TENSORRT, given), (CUDA, {"device_id": options.get("device_id", "0")})]


def _refuse_strays(session: Any, provider: str) -> None:
    """Refuse a session in which another provider runs a product: slower than what was approved, and in silence.

    Raises:
        RuntimeError: the nodes, by name.
    """
    strays = [
        f"{node.name} ({node.op_type} on {part.ep_name})"
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
        if part.ep_name != provider and node.domain in DOMAINS and any(word in node.op_type for word in PRODUCTS)
    ]
    if strays:
        raise RuntimeError(
            f"found products that {provider} does not run: {', '.join(strays[:5])}; expected all of them there, as approved; "
            "install the versions that the manifest names"
        )


# Written as in `trt_engine/files.py`: this file goes to consumers alone, and can import nothing of ours.
def _check_files(folder: Path, files: dict[str, str]) -> None:
    """Nothing, if the folder holds the files of the manifest, sha256 by name, and nothing else.

    Raises:
        RuntimeError: a file is missing, another one, or one that the manifest does not name; or a name leads elsewhere.
    """
    outside = [name for name in files if Path(name).name != name or name in ("", "..")]
    if outside:
        raise RuntimeError(f"found {outside[0]!r} in the manifest; expected names of files beside the model")
    found = {path.name: path for path in folder.iterdir()}
    strays = sorted(found.keys() - files.keys())
    if strays:
        raise RuntimeError(f"found {strays[0]!r}, which the manifest does not name; download the version again")
    for name, expected in files.items():
        if name not in found or found[name].is_symlink() or not found[name].is_file():
            raise RuntimeError(f"found no file {name}, which the manifest names; download the version again")
        with found[name].open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != expected:
            raise RuntimeError(f"found {name} with sha256 {digest}; expected {expected}; download the version again")


class Champion(mlflow.pyfunc.PythonModel):  # type: ignore[misc,name-defined,unused-ignore]  # mlflow exports it untyped
    """The promoted variant, under the session settings that it was approved with."""

    def load_context(self, context: Any) -> None:
        """Check the files against their manifest and open the session.

        Raises:
            RuntimeError: the files are not those that were approved, another provider would run them, or a library of custom
                operators is missing.
        """
        import onnxruntime as ort

        manifest = json.loads(Path(context.artifacts["manifest"]).read_text(encoding="utf-8"))
        folder = Path(context.artifacts["variant"])
        _check_files(folder, manifest["files"])
        if ort.__version__ != manifest["runtime_version"]:
            warnings.warn(
                f"found onnxruntime {ort.__version__}; the variant was approved on {manifest['runtime_version']}: "
                "accuracy and speed may differ; install that version",
                stacklevel=2,
            )
        settings = manifest["session"]
        on_gpu = settings["provider"] in GPU_PROVIDERS
        options = ort.SessionOptions()
        options.intra_op_num_threads = settings["threads"]
        options.graph_optimization_level = getattr(
            ort.GraphOptimizationLevel, f"ORT_ENABLE_{settings['optimization'].upper()}"
        )
        for key, value in settings["entries"].items():
            options.add_session_config_entry(key, value)
        for library in manifest["libraries"]:
            options.register_custom_ops_library(_find_library(library, folder, manifest["files"]))
        providers: Any = [settings["provider"]]
        if on_gpu:
            options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
            providers = _gpu_providers(settings["provider"], settings["provider_options"])
        if manifest["plugin"]:
            options.add_provider_for_devices(
                [_plugin_device(settings["provider"], manifest["plugin"])], manifest["plugin"]["options"]
            )
            providers = None  # a list of names would put the device aside
        self.session = ort.InferenceSession(
            folder / "model.onnx", options, providers=providers, enable_fallback=not on_gpu
        )
        if self.session.get_providers()[0] != settings["provider"]:
            raise RuntimeError(f"found providers {self.session.get_providers()}; expected {settings['provider']} first")
        if on_gpu:
            _refuse_strays(self.session, settings["provider"])
        self.dtypes = manifest["inputs"]

    # mlflow warns each consumer of any hint but this one, and of none; most callers pass a dict of arrays.
    def predict(self, context: Any, model_input: np.ndarray, params: Any = None) -> dict[str, np.ndarray]:
        """Outputs by name, for inputs by name (a dict of arrays, samples along axis 0) or one array for one input."""
        given: Any = model_input if hasattr(model_input, "keys") else {next(iter(self.dtypes)): model_input}
        feed = {name: np.asarray(given[name], dtype=dtype) for name, dtype in self.dtypes.items()}
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, feed), strict=True))


def _find_library(library: dict[str, str], folder: Path, files: dict[str, str]) -> str:
    """A library of custom operators: a file beside the model, its digest checked with the others, or an installed package's."""
    if "file" in library:
        if library["file"] not in files:
            raise RuntimeError(
                f"found library {library['file']!r}, which has no digest; expected one of {sorted(files)}"
            )
        return str(folder / library["file"])
    package, wanted = library["package"], f"{library['distribution']}=={library['version']}"
    try:
        path = str(import_module(package).get_library_path())
    except ImportError as error:
        raise RuntimeError(f"found no package {package}; expected {wanted}, which has custom operators") from error
    found = metadata.version(library["distribution"])
    if found != library["version"]:
        warnings.warn(
            f"found {library['distribution']} {found}; the variant was approved with {wanted}: accuracy and speed may "
            "differ; install that version",
            stacklevel=2,
        )
    return path


mlflow.models.set_model(Champion())
