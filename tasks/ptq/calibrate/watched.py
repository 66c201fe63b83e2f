"""Sessions that expose inner tensors of a graph, and the plan for the memory that these take.

The runtime loads the modified graph from memory and the external weights from beside the file. Nothing is written, whatever
the size of the model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from numpy.typing import NDArray
from onnx import helper

from tasks.ptq.graph.edits import Names
from tasks.runtimes.ort import open_session, run_outputs, with_mapped_weights
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays

if TYPE_CHECKING:
    import onnxruntime as ort

# Without fusions: a watched tensor cannot vanish into a kernel, and quantized nodes compute with dequantized values.
WATCHING = SessionSettings.reference(2, "basic")
# Opset that defines Shape as used here, for a graph that imports no standard operators.
SHAPE_OPSET = 13


class WatchedSession:
    """Session of a graph that exposes the watched tensors."""

    def __init__(self, session: ort.InferenceSession, outputs: Mapping[str, str], given: tuple[str, ...]) -> None:
        self._session, self._outputs, self._given = session, dict(outputs), given
        self.inputs = {value.name for value in session.get_inputs()}
        values = [*session.get_inputs(), *session.get_outputs()]
        self.types: dict[str, str] = {value.name: value.type for value in values}
        """Runtime type of each input and output, such as `tensor(float)`."""

    def run(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the values, or the shapes (int64 `(rank,)`), of the watched tensors for a batch, by name.

        Arrays of the batch that the graph does not read are ignored.

        Raises:
            CandidateRefused: `invalid`: the runtime fails on the batch.
        """
        feeds = {name: array for name, array in batch.items() if name in self.inputs}
        outputs = list(self._outputs.values())
        values = run_outputs(self._session, feeds, outputs) if outputs else []
        return dict(zip(self._outputs, values, strict=True)) | {name: feeds[name] for name in self._given}


@contextmanager
def open_watched(
    model: Path,
    tensors: Iterable[str],
    settings: SessionSettings,
    *,
    proto: onnx.ModelProto | None = None,
    shapes: bool = False,
    as_written: bool = False,
) -> Iterator[WatchedSession]:
    """Open a session whose only outputs are these tensors, or with `shapes` their shapes (int64).

    `proto` replaces the graph of the file; its external weights may lie beside the file. It is unchanged after the call.
    `as_written` turns off the runtime's graph optimizations and memory arena. Values then do not depend on the choice of
    watched tensors (an output keeps its node from being fused), and each tensor takes only its own bytes.

    Raises:
        CandidateRefused: `invalid`: the runtime does not load the graph.
    """
    proto = onnx.load(model, load_external_data=False) if proto is None else proto
    given = {value.name for value in proto.graph.input}
    names = dict.fromkeys(tensors)
    allocator = Names(proto.graph)
    outputs = {
        name: allocator.new(f"{name}/shape") if shapes else name for name in names if shapes or name not in given
    }
    content = _with_outputs(proto, outputs, shapes)
    # Nothing is timed here, and spinning threads would take the cores from other work.
    settings = with_mapped_weights(settings.without_spinning(), model)
    with open_session(model, settings, content=content, as_written=as_written) as session:
        yield WatchedSession(session, outputs, tuple(name for name in names if name not in outputs))


def watch(
    model: Path, tensors: Collection[str], batches: Iterable[Arrays], libraries: Libraries = ()
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the values of `tensors` by name, batch by batch; nothing if there are none.

    A batch maps input names to arrays with samples along axis 0.
    """
    if tensors:
        with open_watched(model, tensors, replace(WATCHING, libraries=libraries)) as watched:
            for batch in batches:
                yield watched.run(batch)


def _with_outputs(proto: onnx.ModelProto, outputs: Mapping[str, str], shapes: bool) -> bytes:
    """Return the serialized model with other outputs: each tensor, or the Shape that reads it."""
    graph, nodes = proto.graph, len(proto.graph.node)
    before = onnx.GraphProto(output=graph.output).output
    declared = {value.name: value for value in before}
    opsets = len(proto.opset_import)
    if shapes:
        graph.node.extend(helper.make_node("Shape", [name], [output]) for name, output in outputs.items())
        if not any(opset.domain in ("", "ai.onnx") for opset in proto.opset_import):
            proto.opset_import.append(helper.make_opsetid("", SHAPE_OPSET))
    if outputs:
        # Without a type where the graph declares none: the runtime infers it.
        made = [declared.get(name) or onnx.ValueInfoProto(name=name) for name in outputs.values()]
        graph.ClearField("output")
        graph.output.extend(made)
    content = proto.SerializeToString()
    graph.ClearField("output")
    graph.output.extend(before)
    del graph.node[nodes:], proto.opset_import[opsets:]
    return content


def split_by_memory(held: Mapping[str, float], at_work: Mapping[str, float], budget: float) -> list[list[str]]:
    """Split tensors, in order, into groups of one pass each, within the budget (all numbers in bytes).

    In a pass every tensor takes its `held` bytes until the end, and one tensor at a time takes its `at_work` bytes. A tensor
    that exceeds the budget has a group of its own.

    >>> split_by_memory({"a": 4, "b": 4, "c": 1}, {"a": 1, "b": 3, "c": 1}, 10)
    [['a'], ['b', 'c']]
    """
    groups: list[list[str]] = []
    total = working = 0.0
    for name, own in held.items():
        if not groups or total + own + max(working, at_work[name]) > budget:
            groups.append([])
            total = working = 0.0
        groups[-1].append(name)
        total, working = total + own, max(working, at_work[name])
    return groups
