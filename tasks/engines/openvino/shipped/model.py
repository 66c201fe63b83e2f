"""OpenVINO model, compiled for the processor with exactly the requested settings.

It imports only numpy and openvino, and measuring processes and consumers load this file without the rest of quantgate.

OpenVINO computes in bfloat16 without being asked where the processor has it (`INFERENCE_PRECISION_HINT`), and casts inputs of
another type in silence. Both are prevented here: settings name the precision, and arrays are bound with the model's type.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

PROVIDER = "OpenVINO"
DEVICE = "CPU"
PRECISION = "INFERENCE_PRECISION_HINT"
# Told about a difference from the approval: what was found, what was approved, and the remedy. It raises if that is refused.
Mismatch = Callable[[str, str, str], None]
# Lines of OpenVINO's messages that name places in its source code.
_PLACES = re.compile(r"^(Exception from |Check '|FrontEnd API failed|Summary:|Model wasn't fully converted)")

# The bindings fill their tables of types when first used. Two threads that do so at once wait for each other for ever, one for
# the table and one for the interpreter (seen with 2026.4.1), so it is done here, while the module is imported.
_FILLED = (ov.Tensor(np.zeros(1, np.float32)).data.dtype, ov.Type.f32.to_dtype())


@cache
def core() -> Any:
    """Return the one `Core` of the process, which is never released.

    The first use of one gives the main thread a stack for signal handlers, and its release restores what was there before
    (seen with 2026.4.1). Of two that are released in the order of their making, the last restores memory that is gone, and the
    next signal, such as the SIGTERM that ends a service, is a segmentation fault.
    """
    return ov.Core()


class OpenVinoModel:
    """A compiled model; `inputs` and `outputs` are its ports, in the order of the ONNX file.

    `providers` and `most_bound` are for the measuring process (`tasks.measure.latency.worker.Model`).
    """

    providers = (PROVIDER,)
    most_bound = sys.maxsize

    def __init__(self, model: Path, threads: int, options: Mapping[str, str], mismatch: Mismatch | None = None) -> None:
        """Compile an ONNX file. With the option `CACHE_DIR` OpenVINO keeps what it compiled there.

        Raises:
            RuntimeError: OpenVINO does not read or compile the file, or does not apply an option; see `message_of`. With
                `mismatch`, another precision is told there instead.
        """
        wanted = {**options, "INFERENCE_NUM_THREADS": str(threads)}
        # A path, so that a file whose compiled form is kept is not read.
        read = model if "CACHE_DIR" in options else core().read_model(model)
        if not isinstance(read, Path):
            _refuse_strings([*read.inputs, *read.outputs])
        self.compiled = core().compile_model(read, DEVICE, wanted)
        self.inputs: list[Any] = list(self.compiled.inputs)
        self.outputs: list[Any] = list(self.compiled.outputs)
        precision = self.compiled.get_property(PRECISION).to_string()
        approved = options.get(PRECISION, precision)
        if precision != approved and mismatch is None:
            raise RuntimeError(f"it computes in {precision} where {approved} was asked for")
        if precision != approved and mismatch:
            mismatch(
                f"a processor on which OpenVINO computes in {precision}",
                approved,
                "load it where the processor has it",
            )
        # Requests that no thread runs at the moment; one request cannot be run by two threads.
        self._idle: list[Any] = []

    def run(self, batch: Mapping[str, NDArray[Any]], outputs: Sequence[int] | None = None) -> list[NDArray[Any]]:
        """Run one request on arrays by input name, and return copies of the outputs with these indices, or of all."""
        chosen = range(len(self.outputs)) if outputs is None else outputs
        with self._request(self._tensors(batch)) as request:
            return [np.array(request.get_output_tensor(index).data) for index in chosen]

    def bound(self, batch: Mapping[str, NDArray[Any]]) -> Callable[[], None]:
        """Return a request on the memory of these arrays; each call blocks until it is done. Threads may call it at once."""
        tensors = self._tensors(batch)

        def call() -> None:
            with self._request(tensors):
                pass

        return call

    @contextmanager
    def _request(self, tensors: Mapping[int, Any]) -> Iterator[Any]:
        """Run an idle request, or a new one, and keep it from other threads until the end of the block."""
        try:
            request = self._idle.pop()
        except IndexError:
            request = self.compiled.create_infer_request()
        for index, tensor in tensors.items():
            request.set_input_tensor(index, tensor)
        request.infer()
        yield request
        self._idle.append(request)

    def _tensors(self, batch: Mapping[str, NDArray[Any]]) -> dict[int, Any]:
        """Return tensors on the memory of the arrays, by the index of the input.

        Raises:
            RuntimeError: an array is missing, or has another type than the model takes.
        """
        tensors = {}
        for index, port in enumerate(self.inputs):
            name = next((name for name in batch if name in port.names), None)
            if name is None:
                raise RuntimeError(f"no array for the input {port.any_name}")
            # The bindings share no memory that is read-only.
            array = np.require(batch[name], requirements=["C", "W"])
            if port.element_type.to_dtype() != array.dtype:
                raise RuntimeError(f"{name} is {array.dtype}, and the model takes {port.element_type.to_dtype()}")
            tensors[index] = ov.Tensor(array, shared_memory=True)
        return tensors


def message_of(error: Exception) -> str:
    r"""Return what went wrong, from a message of OpenVINO, without the places in its source code.

    >>> message_of(RuntimeError("Exception from src/core.cpp:84:\nSummary:\n-- No conversion rule found for acme.Foo"))
    'No conversion rule found for acme.Foo'
    """
    lines = [line.strip().removeprefix("-- ") for line in str(error).splitlines()]
    told = [line for line in lines if line and not _PLACES.match(line)]
    return "; ".join(told or [line for line in lines if line] or [type(error).__name__])[:300]


def _refuse_strings(ports: Sequence[Any]) -> None:
    strings = [port.any_name for port in ports if port.element_type.to_string() == "string"]
    if strings:
        raise RuntimeError(f"{strings[0]} holds strings, which its {DEVICE} device does not compute")


def version() -> str:
    """Return the version of the runtime, as versions name it."""
    return metadata.version("openvino")


def load(model: Path, session: Mapping[str, Any], mismatch: Mismatch | None = None) -> OpenVinoModel:
    """Compile a file; `session` has the fields of `validators.records.run.SessionSettings`, and maybe a folder `cache`."""
    cache = {"CACHE_DIR": session["cache"]} if session.get("cache") else {}
    return OpenVinoModel(model, session["threads"], {**session["provider_options"], **cache}, mismatch)
