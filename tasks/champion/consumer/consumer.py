"""Code behind `mlflow.pyfunc.load_model("models:/<name>@champion-<target>").predict({...})` for a consumer.

MLflow copies this file beside the variant and runs it where the model is loaded, with the package of the engine that opened
the variant when it was judged. It may therefore import mlflow, numpy and that package, but nothing else of quantgate.

A file that differs from the approved one, or a provider that would not run it, is an error. For a version or device other than
the approved one, `QUANTGATE_MISMATCH` decides: `warn` (default), `refuse`, or `allow`, which also opens a version whose sums
saturate on this processor. With fewer usable cores than at the approval, the
session gets at most that many threads, or the number in `QUANTGATE_THREADS`. OpenVINO keeps the compiled model in the folder
`QUANTGATE_CACHE`, if it is set, and loads it from there the next time.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module, metadata
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import mlflow
import mlflow.pyfunc
import numpy as np

# Environment variable for a version or device other than the approved one; `tasks/engines/tensorrt/shipped` has it too.
POLICY = "QUANTGATE_MISMATCH"
# Environment variable with the session's threads, which overrides the approved number and its cap.
THREADS = "QUANTGATE_THREADS"
# Environment variable with a folder for models that OpenVINO compiled. Its files are not checked: nobody else may write to it.
CACHE = "QUANTGATE_CACHE"
# Environment variable that demands signed evidence; see the package `signed_evidence` beside this file.
EVIDENCE = "QUANTGATE_REQUIRE_EVIDENCE"


def _policy() -> str:
    """Return the reaction to a mismatch."""
    answer = os.environ.get(POLICY, "warn")
    if answer not in ("warn", "refuse", "allow"):
        raise RuntimeError(f"found {POLICY}={answer}; expected warn, refuse or allow; set one of them")
    return answer


def _mismatch(found: str, approved: str, fix: str) -> None:
    """Warn about a difference from the approval, or refuse it."""
    if _policy() == "refuse":
        raise RuntimeError(
            f"found {found}; expected {approved}, on which the variant was approved; {fix}, or set {POLICY}=warn"
        )
    warnings.warn(
        f"found {found}; the variant was approved on {approved}: accuracy and speed may differ; {fix}", stacklevel=4
    )


# Must agree with `tasks/measure/inventory.py`, which records the device of an approval.
def _processor_here() -> tuple[str, set[str], int]:
    """Return the name and instruction sets of the processor, and the number of cores that this process may use."""
    path = Path("/proc/cpuinfo")
    first = path.read_text(encoding="utf-8").split("\n\n", 1)[0] if path.exists() else ""
    pairs = (line.partition(":") for line in first.splitlines())
    cpu = {key.strip(): value.strip() for key, _, value in pairs}
    flags = set((cpu.get("flags") or cpu.get("Features") or "").split())
    return cpu.get("model name") or platform.processor() or platform.machine(), flags, _usable_cores()


def _usable_cores() -> int:
    """Return the number of cores that this process may use: the affinity mask, or the whole cores of a smaller CPU quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota_cores()
    return allowed if quota is None else max(1, min(allowed, int(quota)))


# Must agree with `tasks/measure/latency/cgroup.py`.
def _quota_cores(root: Path = Path("/")) -> float | None:
    """Return the smallest CPU quota of this process's control groups (cgroup v2 and v1), in cores; None without one."""
    groups = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    quotas = []
    for line in _read(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, _, options) = left.split(), right.split(" ", 2)
        if kind != "cgroup2" and not (kind == "cgroup" and "cpu" in options.split(",")):
            continue
        top = root / fields[4].lstrip("/")
        group = groups.get("" if kind == "cgroup2" else "cpu", "/")
        inside = f"{group.rstrip('/')}/".removeprefix(f"{fields[3].rstrip('/')}/").strip("/")
        visible = ".." not in Path(inside).parts and (top / inside).is_dir()
        folder = top / inside if visible else top
        for above in (folder, *folder.parents):
            quota, period, *_ = [*_read(above / "cpu.max").split(), "", ""]
            if not quota:
                quota, period = _read(above / "cpu.cfs_quota_us").strip(), _read(above / "cpu.cfs_period_us").strip()
            if quota.isdigit() and period.isdigit() and int(quota) and int(period):
                quotas.append(int(quota) / int(period))
            if above == top:
                break
    return min(quotas, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _threads(approved: int, hardware: dict[str, Any]) -> int:
    """Return the threads of the session: `QUANTGATE_THREADS`, or the approved number, capped if fewer cores are usable.

    Versions of earlier releases may have 0, which means all cores.
    """
    if told := os.environ.get(THREADS):
        if not (told.isascii() and told.isdigit() and int(told)):
            raise RuntimeError(f"found {THREADS}={told}; expected an integer above 0; set one, or unset it")
        return int(told)
    cores = _usable_cores()
    return min(approved, cores) if approved and cores < hardware["cores"] else approved or cores


def _gpus_here() -> tuple[set[str], str]:
    """Return the kinds of GPU that the driver reports, each as `name, compute capability 9.0`, and the driver's version."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return {"an unknown GPU (nvidia-ml-py is not installed)"}, "unknown"
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        kinds = set()
        for handle in handles:
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
            kinds.add(f"{nvml.nvmlDeviceGetName(handle)}, compute capability {major}.{minor}")
        return kinds, str(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError as error:
        return {f"an unknown GPU ({error})"}, "unknown"


def _check_device(hardware: dict[str, Any]) -> None:
    """Compare this machine with the one of the approval: its GPU if the variant runs on one, else its processor.

    More cores are no mismatch, since the session keeps the approved number of threads. With fewer, `_threads` caps them.
    """
    fix = "load it on such a machine, or have quantgate approve it on this one"
    if gpu := hardware["gpu"]:
        approved = f"{gpu['name']}, compute capability {gpu['compute_capability']}"
        kinds, driver = _gpus_here()
        if kinds != {approved}:
            _mismatch(" and ".join(sorted(kinds)) or "no GPU", approved, fix)
        if driver != gpu["driver"]:
            _mismatch(f"NVIDIA driver {driver}", gpu["driver"], fix)
        return
    name, flags, cores = _processor_here()
    if name != hardware["processor"]:
        _mismatch(f"processor {name}", hardware["processor"], fix)
    for had, here, there in ((True, "without", "with"), (False, "with", "without")):
        others = [flag for flag, one in hardware["isa"].items() if one == had != (flag in flags)]
        if others:
            _mismatch(f"a processor {here} {', '.join(others)}", f"one {there} {'them' if others[1:] else 'it'}", fix)
    if cores < hardware["cores"]:
        capped = f"threads are capped at the usable cores, or set by {THREADS}"
        _mismatch(f"{cores} cores to compute on", str(hardware["cores"]), f"{capped}; {fix}")


def _check_sums(manifest: dict[str, Any]) -> None:
    """Refuse a version whose sums of INT8 products saturate on this processor: it gives other answers than were approved."""
    needed = manifest.get("saturates_without") or ()
    flags = _processor_here()[1]
    if not needed or "avx2" not in flags or flags.intersection(needed):
        return
    *others, last = needed
    found = f"a processor without {', '.join(others)} and {last}, on which sums of the version's INT8 products saturate"
    if _policy() != "allow":
        raise RuntimeError(
            f"found {found}: it gives other answers than were approved; expected a processor with one of them; load it there, "
            "have quantgate approve the model on this one, or with `portable: true` in the job for both, or set "
            f"{POLICY}=allow to open it all the same"
        )
    warnings.warn(f"found {found}: it gives other answers than were approved ({POLICY}=allow)", stacklevel=3)


# Must agree with `tasks/engines/tensorrt/shipped/files.py`; this file is shipped alone and cannot import it.
def _check_files(folder: Path, files: dict[str, str]) -> None:
    """Raise unless the folder holds exactly the files of the manifest; `files` maps names to sha256 digests."""
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


def _cache_folder() -> str:
    """Return the folder `QUANTGATE_CACHE`; "" if it is not set or, with a warning, not writable."""
    place = os.environ.get(CACHE, "")
    if not place:
        return ""
    try:
        Path(place).mkdir(parents=True, exist_ok=True)
        writable = os.access(place, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        warnings.warn(f"found {CACHE}={place}; expected a folder to write to: the model is compiled anew", stacklevel=4)
        return ""
    return place


def _check_instructions(hardware: dict[str, Any]) -> None:
    """Refuse code that was compiled for instructions which this processor lacks."""
    flags = _processor_here()[1]
    lacking = sorted(flag for flag, had in hardware["isa"].items() if had and flag not in flags)
    if lacking:
        raise RuntimeError(
            f"found a processor without {', '.join(lacking)}; expected one with them: the code was compiled for them; "
            "have quantgate approve the model on this one"
        )


def _shipped(name: str) -> Any:
    """Return a module of a package that comes with this version.

    It is loaded from the version's own folder: a process may open versions of several releases of quantgate, and Python keeps
    one module of a name.
    """
    package, _, module = name.partition(".")
    folder = Path(__file__).resolve().parent / "code" / package
    if not folder.is_dir():
        return import_module(name)
    own = f"{package}_{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"
    if own not in sys.modules:
        spec: Any = spec_from_file_location(own, folder / "__init__.py", submodule_search_locations=[str(folder)])
        sys.modules[own] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[own])
    return import_module(f"{own}.{module}")


def _open(folder: Path, manifest: dict[str, Any]) -> Any:
    """Open the model by the module that comes with the version, as the run that judged it did."""
    settings = manifest["session"]
    runtime, approved = manifest["runtime"].replace("_", "-"), manifest["runtime_version"]
    try:
        engine = _shipped(manifest["loader"])
    except ImportError as error:
        raise RuntimeError(
            f"found no package {(error.name or '').replace('_', '-')}; expected {runtime}=={approved}, which runs the variant; "
            "install the version's requirements"
        ) from error
    if manifest["engine"]:  # it may be rebuilt here, by rules of its own
        return engine.open_version(folder, manifest)
    if (version := engine.version()) != approved:
        _mismatch(f"{runtime} {version}", approved, "install that version")
    _check_device(manifest["hardware"])
    if manifest["compiled"]:
        _check_instructions(manifest["hardware"])
    session = settings | {
        "threads": _threads(settings["threads"], manifest["hardware"]),
        "libraries": [_find_library(library, folder, manifest["files"]) for library in manifest["libraries"]],
        "cache": _cache_folder(),
    }
    return engine.load(folder / manifest["artifact"], session, _mismatch)


class GenerativeModel:
    """A decoder that answers prompts; an answer has `new_tokens` tokens unless a call says otherwise."""

    def __init__(self, decoder: Any, new_tokens: int) -> None:
        self._decoder, self._new_tokens = decoder, new_tokens

    def stream(self, prompt: str, new_tokens: int | None = None) -> Iterator[str]:
        """Yield the text after a prompt, token by token, until the text ends or has `new_tokens` tokens.

        Raises:
            ValueError: the prompt is empty or longer than the model's context, or no token may follow.
        """
        # A tokenizer may make a start of text even of nothing.
        if not prompt:
            raise ValueError("found an empty prompt; expected a text; correct the prompt")
        if new_tokens is not None and new_tokens < 1:
            raise ValueError(f"found new_tokens {new_tokens}; expected at least 1; correct new_tokens, or leave it out")
        tokens, context = self._decoder.encode(prompt), self._decoder.context
        if not len(tokens) or len(tokens) >= context:
            raise ValueError(f"found a prompt of {len(tokens)} tokens; expected 1 to {context - 1}; correct the prompt")
        yield from self._decoder.stream(tokens, min(new_tokens or self._new_tokens, context - len(tokens)))

    def run(self, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the logits of windows of tokens `(rows, length)`, float32 `(rows, length, vocabulary)`."""
        return [self._decoder.scores(feed["input_ids"])]


def _asked(model_input: Any) -> tuple[list[str], int | None]:
    """Return the prompts in an input, none if it has other values, and how many tokens an answer may have, if it says so."""
    if isinstance(model_input, str):
        return [model_input], None
    new_tokens = None
    if hasattr(model_input, "columns"):  # a table, as a server makes it of JSON
        model_input = model_input.iloc[:, 0]
    elif hasattr(model_input, "keys") and not hasattr(model_input, "iloc"):
        new_tokens = int(model_input["new_tokens"]) if "new_tokens" in model_input else None
        if "prompt" not in model_input:
            return [], new_tokens
        model_input = model_input["prompt"]
    values = np.asarray(model_input, dtype=object).ravel().tolist()
    if not values:
        raise ValueError("found no prompt; expected at least one text; correct the input")
    return (values if all(isinstance(value, str) for value in values) else []), new_tokens


class OnnxChampion(mlflow.pyfunc.PythonModel):  # type: ignore[misc,name-defined,unused-ignore]  # mlflow exports it untyped
    """The promoted variant, run with its approved session settings."""

    def load_context(self, context: Any) -> None:
        """Check the files against their manifest and open the model.

        Raises:
            RuntimeError: a file differs from the approved one, another provider would run the model, a library of custom
                operators is missing, sums saturate on this processor and QUANTGATE_MISMATCH is not `allow`, or version or
                device differ from the approval and QUANTGATE_MISMATCH=refuse.
        """
        if os.environ.get(EVIDENCE):
            _shipped("signed_evidence.check").require_evidence(context.artifacts)
        manifest = json.loads(Path(context.artifacts["manifest"]).read_text(encoding="utf-8"))
        folder = Path(context.artifacts["variant"])
        _check_files(folder, manifest["files"])
        _policy()  # report a misspelt policy even if there is no mismatch
        _check_sums(manifest)
        opened = _open(folder, manifest)
        self.session = getattr(opened, "session", opened)  # the runtime's own, for callers who want more of it
        self.names = [output.name for output in opened.outputs] if manifest["engine"] else manifest["outputs"]
        self.model = opened
        if hasattr(opened, "scores"):
            self.model = GenerativeModel(opened, int(manifest["session"]["provider_options"]["new_tokens"]))
        self.dtypes = manifest["inputs"]

    # mlflow warns consumers about any other type hint, and about none; most callers pass a dict of arrays.
    def predict(self, context: Any, model_input: np.ndarray, params: Any = None) -> dict[str, np.ndarray]:
        """Return the outputs by name, for a dict of arrays by input name (samples along axis 0), or one array for one input.

        A decoder answers prompts with a list of texts: one text, a list of them, or `{"prompt": [...], "new_tokens": 200}`.
        """
        if isinstance(self.model, GenerativeModel) and (asked := _asked(model_input))[0]:
            texts: Any = ["".join(self.model.stream(prompt, asked[1])) for prompt in asked[0]]
            return texts  # type: ignore[no-any-return]  # mlflow reads the annotation, which most callers rely on
        given: Any = model_input if hasattr(model_input, "keys") else {next(iter(self.dtypes)): model_input}
        feed = {name: np.asarray(given[name], dtype=dtype) for name, dtype in self.dtypes.items()}
        return dict(zip(self.names, self.model.run(feed), strict=True))

    def predict_stream(self, context: Any, model_input: Any, params: Any = None) -> Iterator[str]:
        """Yield the answer of a decoder to one prompt, token by token; `model_input` is as for `predict`.

        Raises:
            ValueError: the version is no decoder, or there is not exactly one prompt.
        """
        prompts, new_tokens = _asked(model_input)
        if not isinstance(self.model, GenerativeModel) or len(prompts) != 1:
            raise ValueError(
                "found no prompt, several, or a model that does not generate; expected one prompt; use predict"
            )
        yield from self.model.stream(prompts[0], new_tokens)


def _find_library(library: dict[str, str], folder: Path, files: dict[str, str]) -> str:
    """Return the path of a library of custom operators: a checked file beside the model, or an installed package's."""
    if "file" in library:
        if library["file"] not in files:
            raise RuntimeError(f"found library {library['file']!r} without a digest; expected one of {sorted(files)}")
        return str(folder / library["file"])
    package, wanted = library["package"], f"{library['distribution']}=={library['version']}"
    try:
        path = str(import_module(package).get_library_path())
    except ImportError as error:
        raise RuntimeError(f"found no package {package}; expected {wanted}, which has custom operators") from error
    found = metadata.version(library["distribution"])
    if found != library["version"]:
        _mismatch(f"{library['distribution']} {found}", wanted, "install that version")
    return path


mlflow.models.set_model(OnnxChampion())
