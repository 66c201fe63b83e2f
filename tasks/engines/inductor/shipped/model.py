"""AOTInductor package (`.pt2`): a shared library with a model's weights, run by torch alone.

It imports only numpy and torch, and measuring processes and consumers load this file without the rest of quantgate.

Loading a package runs native code, so only packages of quantgate's own making are opened.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

PROVIDER = "TorchInductor"
# Key of the package's metadata with its inputs, outputs and products as JSON; see `tasks.engines.inductor.compile_process`.
METADATA = "quantgate"
# Requests before a capture: libraries reserve their memory in the first ones.
_BEFORE_CAPTURE = 3


class InductorModel:
    """A loaded package; `about` is the metadata that the compiler wrote.

    `providers` and `most_bound` are for the measuring process (`tasks.measure.latency.worker.Model`).
    """

    providers = (PROVIDER,)
    most_bound = sys.maxsize

    def __init__(self, package: Path, threads: int) -> None:
        """Load a package; one for a GPU onto the current device.

        Raises:
            RuntimeError: torch does not load it.
        """
        self._threads = threads
        self._thread = threading.local()
        loader: Any = torch._C._aoti.AOTIModelPackageLoader
        self.about: dict[str, Any] = json.loads(loader.load_metadata_from_package(str(package), "model")[METADATA])
        self._on_gpu = self.about.get("device", "cpu") != "cpu"
        # `torch._inductor.aoti_load_package` calls it too, after it has compiled a test of the processor's instructions.
        # The arguments: model, whether one thread alone calls, runners, device. Where one thread alone calls, a request
        # records no event on its stream, which a CUDA graph could not hold.
        self._loader = loader(str(package), "model", self._on_gpu, 1, -1)
        self._turn = threading.Lock()

    def run(self, batch: Mapping[str, NDArray[Any]], outputs: Sequence[int] | None = None) -> list[NDArray[Any]]:
        """Run one request on arrays by input name, and return copies of the outputs with these indices, or of all."""
        found = self._call(self._tensors(batch))
        return [
            np.array(one.cpu().numpy()) for one in (found if outputs is None else [found[index] for index in outputs])
        ]

    def bound(self, batch: Mapping[str, NDArray[Any]]) -> Callable[[], None]:
        """Return a request on the memory of these arrays; each call blocks until it is done. Threads may call it at once.

        On a GPU the arrays are copied there once, and the kernels are launched as one CUDA graph.

        Raises:
            RuntimeError: the arrays do not fit the package, or the kernels cannot be captured.
        """
        tensors = self._tensors(batch)
        if self._on_gpu:
            return self._captured(tensors)

        def call() -> None:
            self._call(tensors)

        return call

    def _captured(self, tensors: list[Any]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with self._turn:
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no types for it
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(_BEFORE_CAPTURE):
                    self._loader.run(tensors)
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(graph):
                kept = self._loader.run(tensors)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # likewise

        def call() -> None:
            graph.replay()
            done.record()
            done.synchronize()

        # The graph reads and writes their memory.
        call.memory = (tensors, kept)  # type: ignore[attr-defined]  # functions take attributes
        return call

    def _call(self, tensors: list[Any]) -> list[Any]:
        if self._on_gpu:
            with self._turn:
                return list(self._loader.run(tensors))
        if not getattr(self._thread, "is_ready", False):
            # OpenMP keeps the number of threads for each calling thread.
            torch.set_num_threads(self._threads)
            self._thread.is_ready = True
        return list(self._loader.run(tensors))

    def _tensors(self, batch: Mapping[str, NDArray[Any]]) -> list[Any]:
        """Return tensors on the memory of the arrays, in the order of the inputs.

        Raises:
            RuntimeError: an array is missing, or has another type or shape than the package takes: its code checks neither.
        """
        tensors = []
        sizes: dict[str, int] = {}
        for name, dtype, shape in self.about["inputs"]:
            if name not in batch:
                raise RuntimeError(f"no array for the input {name}")
            # torch shares no memory that is read-only.
            array = np.require(batch[name], requirements=["C", "W"])
            # Dynamic axes of one symbol have one size.
            fits = len(shape) == array.ndim and all(
                axis == size if isinstance(axis, int) else sizes.setdefault(axis, size) == size
                for axis, size in zip(shape, array.shape, strict=True)
            )
            if str(array.dtype) != dtype or not fits:
                raise RuntimeError(
                    f"found {name} with {array.dtype} {list(array.shape)}; expected {dtype} {shape}; correct the array"
                )
            tensors.append(
                torch.from_numpy(array).to(self.about["device"]) if self._on_gpu else torch.from_numpy(array)
            )
        return tensors


def version() -> str:
    """Return the version of the runtime, without its build, as versions name it."""
    return torch.__version__.partition("+")[0]


def load(model: Path, session: Mapping[str, Any], _mismatch: object = None) -> InductorModel:
    """Load a package; `session` has the fields of `validators.records.run.SessionSettings`."""
    return InductorModel(model, session["threads"])
