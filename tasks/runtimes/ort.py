"""ONNX Runtime sessions: opened as asked for, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tasks.runtimes.assignment import RECORD, assignment, refuse_strays
from tasks.runtimes.ort_gpu import gpu_providers, load_libraries, why_missing
from tasks.runtimes.providers import provider_of
from validators.deadline import check_deadline
from validators.errors import CandidateRefused, InfrastructureError
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays, TensorSpec

if TYPE_CHECKING:
    import onnxruntime as ort

DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu")
# Where the weights of a model lie that is given as bytes.
EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int16)": "int16",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(uint16)": "uint16",
    "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64",
    "tensor(bool)": "bool",
    "tensor(string)": "str",
}


def installed_runtime() -> tuple[str, str]:
    """Name and version of the one installed ONNX Runtime distribution.

    Raises:
        InfrastructureError: none is installed, or both are: they overwrite each other's files, and pip does not notice.
    """
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if len(found) == 1:
        return next(iter(found.items()))
    raise InfrastructureError(
        found="both onnxruntime and onnxruntime-gpu" if found else "no ONNX Runtime",
        expected="exactly one of the distributions onnxruntime and onnxruntime-gpu",
        fix="make a fresh environment with one of the extras `cpu` and `gpu`",
    )


@contextmanager
def open_session(
    model: Path,
    settings: SessionSettings,
    *,
    profile_prefix: Path | None = None,
    optimized_model: Path | None = None,
    without: tuple[str, ...] = (),
    content: bytes | None = None,
    as_written: bool = False,
) -> Iterator[ort.InferenceSession]:
    """A session of `model` with exactly these settings, released at the end of the block.

    `without` names optimizers of the runtime that it must not apply. `content` is a serialized model to load in place of the
    one in the file, whose external weights it may use. `as_written` keeps the runtime from optimizing, whatever the level of
    the settings, and from hoarding memory: its arena grows by doubling and keeps what it has.

    One at a time: the thread pools of sessions that share a process spin against each other.

    Raises:
        CandidateRefused: the runtime does not load the file (`invalid`), or another provider would run it, or on a GPU one of
            its products (`unsupported`).
    """
    import onnxruntime as ort

    said = _prepare_gpu(settings.provider, ort.get_available_providers()) if settings.on_gpu else ""
    options = _options(settings, as_written=as_written)
    if content is not None:
        options.add_session_config_entry(EXTERNAL_FOLDER, str(model.parent.resolve()))
    if profile_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile_prefix)
    if optimized_model is not None:
        options.optimized_model_filepath = str(optimized_model)
    providers: Any = [settings.provider]
    if settings.on_gpu:
        providers = gpu_providers(settings, model, content)
    elif plugin := provider_of(settings.provider).plugin:
        # A plugin's device comes with the options, and a list of names would put it aside.
        options.add_provider_for_devices([plugin.find_device()], plugin.provider_options(settings.threads))
        providers = None
    try:
        for library in settings.libraries:
            options.register_custom_ops_library(str(library.path))
        session = ort.InferenceSession(
            model if content is None else content,
            options,
            providers=providers,
            disabled_optimizers=without,
            # To the CPU provider, behind a message on standard output in place of the reason.
            enable_fallback=not settings.on_gpu,
        )
    except Exception as error:  # the bindings raise a dozen unrelated classes, all of them for "cannot load this"
        # Statuses of the runtime, such as that of a model which it cannot build, are classes of their own.
        if settings.on_gpu and type(error) is RuntimeError:
            raise _fallback(_first_line(error), settings.provider, said) from error
        raise CandidateRefused(
            kind="invalid",
            found=f"ONNX Runtime {ort.__version__} does not load {model.name}: {_first_line(error)}",
            expected="a model that the runtime loads",
            fix="another precision or granularity, or a newer runtime",
        ) from error
    if session.get_providers()[0] != settings.provider:
        raise _fallback(f"providers {session.get_providers()}", settings.provider, said)
    if settings.on_gpu:
        refuse_strays(assignment(session), settings.provider)
    yield session


def _options(settings: SessionSettings, *, as_written: bool) -> ort.SessionOptions:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = {
        "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    }[settings.optimization]
    if as_written:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_cpu_mem_arena = False
    for key, value in (settings.entries | (RECORD if settings.on_gpu else {})).items():
        options.add_session_config_entry(key, value)
    return options


def _prepare_gpu(provider: str, available: list[str]) -> str:
    """Load what the provider needs; what is said of libraries that are missing.

    Raises:
        CandidateRefused: `unsupported`: the installed runtime was built without it.
    """
    missing = why_missing(provider, available)
    if missing:
        raise CandidateRefused(
            kind="unsupported", found=missing.found, expected=f"{missing.expected} ({provider} first)", fix=missing.fix
        )
    return load_libraries(provider)


def _fallback(found: str, provider: str, said: str) -> CandidateRefused:
    return CandidateRefused(
        kind="unsupported",
        found=f"{found}; {said}" if said else found,
        expected=f"{provider} first",
        fix="install the provider's libraries; `quantgate doctor` shows what is missing",
    )


def describe_inputs(session: ort.InferenceSession) -> tuple[TensorSpec, ...]:
    """The inputs of a session with numpy dtypes."""
    return tuple(_spec(value) for value in session.get_inputs())


def describe_outputs(session: ort.InferenceSession) -> tuple[TensorSpec, ...]:
    """The outputs of a session with numpy dtypes."""
    return tuple(_spec(value) for value in session.get_outputs())


def run_batches(session: ort.InferenceSession, batches: Iterable[Arrays], output: str) -> NDArray[Any]:
    """The concatenation along axis 0 of one output over all batches.

    Raises:
        CandidateRefused: `invalid`: the runtime fails while it runs, or batches give outputs of different shapes.
    """
    with failures_refused():
        return np.concatenate([session.run([output], batch)[0] for batch in batches])


def run_outputs(session: ort.InferenceSession, batch: Arrays, outputs: list[str]) -> list[NDArray[Any]]:
    """Some outputs for one batch, in the order of their names.

    Raises:
        CandidateRefused: `invalid`: the runtime fails while it runs; `infrastructure`: the deadline has passed.
    """
    check_deadline()
    with failures_refused():
        return list(session.run(outputs, batch))


@contextmanager
def failures_refused() -> Iterator[None]:
    """What a runtime raises while it runs becomes a refusal.

    Raises:
        CandidateRefused: `invalid`.
    """
    try:
        yield
    except CandidateRefused:
        raise
    except Exception as error:  # see open_session
        raise CandidateRefused(
            kind="invalid",
            found=f"the runtime fails on the model: {_first_line(error)}",
            expected="a model that runs on every batch",
            fix="look at the named node; check its shapes against the data's",
        ) from error


def _spec(value: Any) -> TensorSpec:
    return TensorSpec(value.name, DTYPES.get(value.type, value.type), tuple(value.shape))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
