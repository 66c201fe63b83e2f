"""ONNX Runtime sessions, opened exactly with the requested settings or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tasks.runtimes.decoder_session import DecoderSession, has_caches
from tasks.runtimes.ort_gpu import load_libraries, why_missing
from validators.deadline import check_deadline
from validators.errors import CandidateRefused, InfrastructureError
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays, TensorSpec
from validators.samples.words import first_few
from validators.target_facts import CUDA_PROVIDER

if TYPE_CHECKING:
    import onnxruntime as ort

    from tasks.runtimes.shipped.model import AssignedNode

DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu")
# Session option with the folder of external weights, for a model loaded from bytes.
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
    """Return the name and version of the one installed ONNX Runtime distribution.

    Raises:
        InfrastructureError: none is installed, or both are. They overwrite each other's files, and pip does not notice.
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
        fix="create a new environment with one of the extras `cpu` and `gpu`",
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
    """Open a session of `model` with exactly these settings, released at the end of the block.

    `without` names optimizers of the runtime to skip. `content` is a serialized model to load instead of the file, whose
    external weights it may use. `as_written` turns off graph optimizations, whatever the level of the settings, and the memory
    arena, which grows by doubling and returns no memory.

    Open one session at a time: the thread pools of sessions in one process spin against each other.

    Raises:
        CandidateRefused: the runtime does not load the file (`invalid`), or another provider would run it or, on a GPU, one of
            its products (`unsupported`).
    """
    import onnxruntime as ort

    said = _prepare_gpu(ort.get_available_providers()) if settings.on_gpu else ""
    options = _options(settings, as_written=as_written)
    if content is not None:
        options.add_session_config_entry(EXTERNAL_FOLDER, str(model.parent.resolve()))
    if profile_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile_prefix)
    if optimized_model is not None:
        options.optimized_model_filepath = str(optimized_model)
    # ONNX Runtime adds the CPU provider itself.
    providers: Any = [(settings.provider, dict(settings.provider_options)) if settings.on_gpu else settings.provider]
    try:
        for library in settings.libraries:
            options.register_custom_ops_library(str(library.path))
        session = ort.InferenceSession(
            model if content is None else content,
            options,
            providers=providers,
            disabled_optimizers=without,
            # The fallback to the CPU provider would hide the reason behind a message on standard output.
            enable_fallback=not settings.on_gpu,
        )
    except Exception as error:  # the bindings raise a dozen unrelated classes, all meaning that the model does not load
        # A plain RuntimeError is no status of the runtime, such as one for a model that it cannot build.
        if settings.on_gpu and type(error) is RuntimeError:
            raise _fallback(_first_line(error), settings.provider, said) from error
        raise CandidateRefused(
            kind="invalid",
            found=f"ONNX Runtime {ort.__version__} does not load {model.name}: {_first_line(error)}",
            expected="a model that the runtime loads",
            fix="use another precision or granularity, or a newer runtime",
        ) from error
    if session.get_providers()[0] != settings.provider:
        raise _fallback(f"providers {session.get_providers()}", settings.provider, said)
    if settings.on_gpu:
        from tasks.runtimes.shipped.model import assignment

        refuse_strays(assignment(session), settings.provider)
    inputs = [_spec(value) for value in session.get_inputs()]
    yield DecoderSession(session, inputs) if has_caches(inputs) else session


def with_mapped_weights(settings: SessionSettings, model: Path) -> SessionSettings:
    """Return the settings for work on a float graph that is not timed: weights in a file of their own stay in it.

    By default each kernel copies its weights into an order of its own, so that the session takes as much memory as the file.
    Reading them as they lie took 0.4 s instead of 0.3 s for 64 tokens of a decoder with 1.8 GB.
    """
    if not model.with_name(f"{model.name}.data").exists():
        return settings
    return replace(settings, entries=settings.entries | {"session.disable_prepacking": "1"})


def refuse_strays(nodes: Iterable[AssignedNode], provider: str) -> None:
    """Refuse a session in which another provider runs a product: a measurement of it would carry the wrong label.

    Raises:
        CandidateRefused: `unsupported`: there are such products; the error names them.
    """
    from tasks.runtimes.shipped.model import strays

    if found := strays(nodes, provider):
        raise CandidateRefused(
            kind="unsupported",
            found=f"{provider} does not run the products {first_few(found)}",
            expected=f"all products on {provider}",
            fix="use a precision for which the provider has kernels, see docs/candidates.md",
        )


def _options(settings: SessionSettings, *, as_written: bool) -> ort.SessionOptions:
    import onnxruntime as ort

    from tasks.runtimes.shipped.model import RECORD, options_of

    options = options_of(asdict(settings))
    if as_written:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_cpu_mem_arena = False
    for key, value in (RECORD if settings.on_gpu else {}).items():
        options.add_session_config_entry(key, value)
    return options


def _prepare_gpu(available: list[str]) -> str:
    """Load the CUDA provider's libraries; return the runtime's message about missing ones, if any.

    Raises:
        CandidateRefused: `unsupported`: the installed runtime was built without the provider.
    """
    if missing := why_missing(available):
        raise replace(missing, expected=f"{missing.expected} ({CUDA_PROVIDER} first)").refused()
    return load_libraries()


def _fallback(found: str, provider: str, said: str) -> CandidateRefused:
    return CandidateRefused(
        kind="unsupported",
        found=f"{found}; {said}" if said else found,
        expected=f"{provider} first",
        fix="install the provider's libraries; `quantgate doctor` shows what is missing",
    )


def describe_inputs(session: ort.InferenceSession) -> tuple[TensorSpec, ...]:
    """Return the inputs of a session with numpy dtypes."""
    return tuple(_spec(value) for value in session.get_inputs())


def describe_outputs(session: ort.InferenceSession) -> tuple[TensorSpec, ...]:
    """Return the outputs of a session with numpy dtypes."""
    return tuple(_spec(value) for value in session.get_outputs())


def run_batches(session: ort.InferenceSession, batches: Iterable[Arrays], output: str) -> NDArray[Any]:
    """Return one output for all batches, concatenated along axis 0; each batch maps input names to arrays.

    Raises:
        CandidateRefused: `invalid`: the runtime fails on a batch, or batches have outputs of different shapes.
    """
    with failures_refused():
        return np.concatenate([session.run([output], batch)[0] for batch in batches])


def run_outputs(session: ort.InferenceSession, batch: Arrays, outputs: list[str]) -> list[NDArray[Any]]:
    """Return the named outputs for one batch, in the order of `outputs`.

    Raises:
        CandidateRefused: `invalid`: the runtime fails on the batch; `infrastructure`: the deadline has passed.
    """
    check_deadline()
    with failures_refused():
        return list(session.run(outputs, batch))


@contextmanager
def failures_refused(runtime: str = "the runtime", told: Callable[[Exception], str] | None = None) -> Iterator[None]:
    """Convert exceptions of a running runtime to refusals; `told` returns the message of one, by default its first line.

    Raises:
        CandidateRefused: `invalid`: the block raised.
    """
    try:
        yield
    except CandidateRefused:
        raise
    except Exception as error:  # see open_session
        raise CandidateRefused(
            kind="invalid",
            found=f"{runtime} fails on the model: {(told or _first_line)(error)}",
            expected="a model that runs on every batch",
            fix="check the shapes of the named node against the data",
        ) from error


def _spec(value: Any) -> TensorSpec:
    return TensorSpec(value.name, DTYPES.get(value.type, value.type), tuple(value.shape))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
