"""Staged execution of a graph over all samples: a later stage can depend on the outputs of an earlier one.

Each node runs about once per batch, whatever the number of stages. Between two stages the live tensors (those that later
nodes read) lie in files, so that memory holds one batch of one stage at a time.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tasks.ptq.calibrate.watched import open_watched
from tasks.ptq.graph.edits import dependent_tensors, initializers, names_read
from tasks.runtimes.decoder_session import fill_windows
from validators.graph.interfaces import spec_of
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays


class StagedRun:
    """One run of `model` over the batches, up to the last of `tensors`.

    External weights of the model lie beside `path`. Live tensors are stored in `folder`. The constants of the model may
    change between stages.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        path: Path,
        tensors: Iterable[str],
        batches: Iterable[Arrays],
        folder: Path,
        settings: SessionSettings,
    ) -> None:
        self._model, self._path, self._folder, self._settings = model, path, folder, settings
        self._nodes = list(model.graph.node)
        self._maker = {name: index for index, node in enumerate(self._nodes) for name in node.output if name}
        self._depends = dependent_tensors(model.graph)
        self._needed = self._behind(tensors, ())
        # Per batch, each live tensor: the array itself, or the file that holds it.
        inputs = [spec_of(value) for value in model.graph.input]
        self._live: list[dict[str, NDArray[Any] | Path]] = [dict(fill_windows(batch, inputs)) for batch in batches]

    def position(self, tensor: str) -> int:
        """Return the index of the node that computes a tensor; -1 for an input."""
        return self._maker.get(tensor, -1)

    def values(self, tensor: str, restart: int) -> Iterator[NDArray[Any]]:
        """Compute a tensor batch by batch, as `all_values`."""
        return (found[tensor] for found in self.all_values([tensor], restart))

    def all_values(self, tensors: Sequence[str], restart: int) -> Iterator[dict[str, NDArray[Any]]]:
        """Compute tensors batch by batch. The next stage starts at node `restart`, which must not decrease.

        Raises:
            CandidateRefused: `invalid`: the runtime does not run the graph.
        """
        if not self._live:
            return
        read = {name for index in self._needed if index >= restart for name in names_read(self._nodes[index])}
        later = [name for name in read if name in self._depends and self._maker.get(name, -1) < restart]
        made = sorted(name for name in later if name not in self._live[0])
        wanted = [*dict.fromkeys([*tensors, *made])]
        # The runtime opens no session of a graph without nodes.
        if all(name in self._live[0] for name in wanted):
            for live in self._live:
                yield {name: _read(live[name]) for name in tensors}
            return
        with open_watched(self._path, wanted, self._settings, proto=self._stage(wanted)) as watched:
            # A sequence cannot be stored, so the stage is computed again.
            storable = all(watched.types[name].startswith("tensor(") for name in made)
            for index, live in enumerate(self._live):
                values = watched.run({name: _read(value) for name, value in live.items() if name in watched.inputs})
                yield {name: values[name] for name in tensors}
                if storable:
                    kept = {name: value for name, value in live.items() if name in later}
                    for name in live.keys() - kept:
                        _drop(live[name])
                    self._live[index] = kept | {name: self._store(values[name], index, name) for name in made}

    def _behind(self, tensors: Iterable[str], given: Container[str]) -> list[int]:
        """Return the nodes, in graph order, that compute `tensors` from the tensors in `given`."""
        found: set[int] = set()
        todo = list(tensors)
        while todo:
            name = todo.pop()
            index = self._maker.get(name)
            if index is not None and index not in found and name not in given:
                found.add(index)
                todo.extend(names_read(self._nodes[index]))
        return sorted(found)

    def _stage(self, wanted: Sequence[str]) -> onnx.ModelProto:
        """Return the model that computes the tensors in `wanted` from the live tensors."""
        live = self._live[0]
        nodes = [self._nodes[index] for index in self._behind(wanted, live)]
        read = {name for node in nodes for name in names_read(node)} | set(wanted)
        constants = initializers(self._model.graph)
        stage = onnx.ModelProto(
            ir_version=self._model.ir_version,
            opset_import=self._model.opset_import,
            functions=self._model.functions,
            graph=onnx.GraphProto(name="stage", node=nodes, sparse_initializer=self._model.graph.sparse_initializer),
        )
        stage.graph.initializer.extend(constants[name] for name in sorted(read & constants.keys()))
        for name in sorted(read & live.keys()):
            kind = helper.np_dtype_to_tensor_dtype(_read(live[name]).dtype)
            stage.graph.input.append(helper.make_tensor_value_info(name, kind, None))
        return stage

    def _store(self, array: NDArray[Any], batch: int, name: str) -> NDArray[Any] | Path:
        if array.dtype == object:  # text, which a file would hold as a pickle
            return array
        path = (
            self._folder / f"{batch}-{self._maker[name]}-{list(self._nodes[self._maker[name]].output).index(name)}.npy"
        )
        np.save(path, array, allow_pickle=False)
        return path


def _read(value: NDArray[Any] | Path) -> NDArray[Any]:
    return np.asarray(np.load(value, allow_pickle=False)) if isinstance(value, Path) else value


def _drop(value: NDArray[Any] | Path) -> None:
    if isinstance(value, Path):
        value.unlink()
