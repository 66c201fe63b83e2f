"""One way to look at tensors inside of a graph, and to plan for the memory that they take.

The graph is given to the runtime from memory, with the tensors as its outputs; weights beside the file stay where they are, so
that nothing is written, whatever the size of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from numpy.typing import NDArray
from onnx import helper

from tasks.ptq.graph.edits import Names
from tasks.runtimes.ort import open_session, run_outputs
from validators.errors import CandidateRefused
from validators.records.run import SessionSettings

if TYPE_CHECKING:
    import onnxruntime as ort

# Of the version in which Shape is what it is today, for a graph that has no standard operator.
SHAPE_OPSET = 13


class WatchedSession:
    """A session of a graph, and the tensors that it tells of."""

    def __init__(self, session: ort.InferenceSession, outputs: Mapping[str, str], given: tuple[str, ...]) -> None:
        self._session, self._outputs, self._given = session, dict(outputs), given
        self.inputs = {value.name for value in session.get_inputs()}
        values = [*session.get_inputs(), *session.get_outputs()]
        self.types: dict[str, str] = {value.name: value.type for value in values}
        """The runtime's type of each input and output, as `tensor(float)`."""

    def run(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The values (or shapes) of the tensors for a batch, by name; arrays that the graph does not read are left out.

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
    """A session that gives these tensors, or their `shapes` alone (int64), and no other output.

    `proto` is the graph to watch where it is not as it is in the file: its weights may lie beside the file, as in one loaded
    without external data. It is given back as it was. `as_written` keeps the runtime from optimizing and from hoarding memory:
    values then do not depend, to the last bit, on what is watched (a tensor that is an output keeps its node from being
    fused), and the tensors take what they take.

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
    # Nothing is timed here, and threads that spin would take the cores from whatever else runs.
    with open_session(model, settings.without_spinning(), content=content, as_written=as_written) as session:
        yield WatchedSession(session, outputs, tuple(name for name in names if name not in outputs))


def _with_outputs(proto: onnx.ModelProto, outputs: Mapping[str, str], shapes: bool) -> bytes:
    """The serialized model with other outputs: each of the tensors, or of a Shape that reads it."""
    graph, nodes = proto.graph, len(proto.graph.node)
    before = onnx.GraphProto(output=graph.output).output
    declared = {value.name: value for value in before}
    opsets = len(proto.opset_import)
    if shapes:
        graph.node.extend(helper.make_node("Shape", [name], [output]) for name, output in outputs.items())
        if not any(opset.domain in ("", "ai.onnx") for opset in proto.opset_import):
            proto.opset_import.append(helper.make_opsetid("", SHAPE_OPSET))
    if outputs:
        # Without a type, where the graph gives none: the runtime infers it, and it is the one that knows.
        made = [declared.get(name) or onnx.ValueInfoProto(name=name) for name in outputs.values()]
        graph.ClearField("output")
        graph.output.extend(made)
    content = proto.SerializeToString()
    graph.ClearField("output")
    graph.output.extend(before)
    del graph.node[nodes:], proto.opset_import[opsets:]
    return content


def split_by_memory(
    held: Mapping[str, float],
    at_work: Mapping[str, float],
    budget: float,
    refuse: Callable[[str, float], CandidateRefused],
) -> list[list[str]]:
    """Tensors in groups, in order, one a pass, each within the budget (bytes, as all numbers here).

    In a pass all tensors take what they hold until its end, and one at a time what it needs while it is at work.

    >>> split_by_memory({"a": 4, "b": 4, "c": 1}, {"a": 1, "b": 3, "c": 1}, 10, refuse=None)
    [['a'], ['b', 'c']]

    Raises:
        CandidateRefused: what `refuse` makes of a tensor that takes too much alone, given its name and what it takes.
    """
    groups: list[list[str]] = []
    total = working = 0.0
    for name, own in held.items():
        if own + at_work[name] > budget:
            raise refuse(name, own + at_work[name])
        if not groups or total + own + max(working, at_work[name]) > budget:
            groups.append([])
            total = working = 0.0
        groups[-1].append(name)
        total, working = total + own, max(working, at_work[name])
    return groups
