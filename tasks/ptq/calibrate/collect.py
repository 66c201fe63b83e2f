"""Statistics of a float graph's tensors over the calibration samples, within a memory limit.

A graph output lives until the end of its batch, so exposing all tensors takes many times the memory of a plain run. The
memory is predicted from the tensor sizes of one sample. Tensors that do not fit together are split over several passes;
each pass exposes one group and runs all samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from tasks.ptq.calibrate.statistics import BLOCK_VALUES, DEFAULT_BINS, TensorStatistics, add, empty
from tasks.ptq.calibrate.watched import WatchedSession, open_watched, split_by_memory
from tasks.ptq.graph.edits import dependent_tensors, names_read
from validators.errors import CandidateRefused
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays, part_of, rows_of

# Called with a batch size, yields all samples in batches of at most that many.
Batches = Callable[[int], Iterator[Arrays]]

MAX_BATCH_SIZE = 8

FLOAT_BYTES = {"tensor(float16)": 2, "tensor(float)": 4, "tensor(double)": 8}
# By ONNX element type.
FLOAT_TYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT16: "tensor(float16)",
    onnx.TensorProto.FLOAT: "tensor(float)",
    onnx.TensorProto.DOUBLE: "tensor(double)",
}

# Memory that `add` takes beside its values: a block's scaled values, their bins, and a mask of the negative ones.
_BLOCK_BYTES = 13 * BLOCK_VALUES


@dataclass(frozen=True)
class Collected:
    """The statistics of each watched tensor, in graph order, over `samples` samples.

    `predicted_mb` (1e6 bytes) is the predicted peak memory of a pass, beyond its loaded session.
    """

    statistics: Mapping[str, TensorStatistics]
    predicted_mb: float
    passes: int
    samples: int


def collect_statistics(
    model: Path,
    batches: Batches,
    *,
    threads: int,
    max_memory_mb: float,
    fixed_batch: int | None,
    bins: int = DEFAULT_BINS,
    libraries: Libraries = (),
) -> Collected:
    """Run all samples through the unoptimized graph and collect the statistics of its tensors.

    Watched are the float tensors that depend on the graph's inputs and lie outside the bodies of If and Loop.
    `fixed_batch` is the model's batch size if it is fixed, else None. `batches` is called once to find the largest sample,
    and once per pass.

    Raises:
        CandidateRefused: `invalid`: there is no sample, or the runtime fails on the model; `unsupported`: not even one
            tensor of one sample fits into `max_memory_mb`.
    """
    settings = SessionSettings.reference(threads, libraries=libraries)
    graph = onnx.load(model, load_external_data=False).graph
    largest, samples = _largest_unit(batches, fixed_batch)
    sizes = _measure(model, graph, largest, settings)
    found = {name: empty(bins) for name in sizes}
    overhead = _BLOCK_BYTES + len(found) * bins * 8
    budget = max_memory_mb * 1e6 - overhead
    groups = _split(list(found), sizes, _bytes_in_passing(graph, sizes), budget)
    predicted = float(overhead)
    for group in groups:
        others = {name: size for name, size in sizes.items() if name not in set(group)}
        plan = _CalibrationPass(
            group, sum(sizes[name] for name in group), _bytes_in_passing(graph, others), budget, fixed_batch
        )
        predicted = max(predicted, overhead + plan.bytes_at_once)
        _run_pass(model, plan, batches, found, settings)
    return Collected(found, predicted / 1e6, len(groups), samples)


@dataclass(frozen=True)
class _CalibrationPass:
    """Tensors to expose in one pass, with the bytes that one unit of input takes.

    A unit is one sample, or one batch if the batch size is fixed. `held` counts the exposed tensors of a unit, `passing`
    the other live tensors at the peak of a run.
    """

    tensors: list[str]
    held: float
    passing: float
    budget: float
    fixed_batch: int | None

    @property
    def units(self) -> int:
        """Number of units to run at once."""
        most = 1 if self.fixed_batch else MAX_BATCH_SIZE
        return int(min(max(self.budget // max(self.held + self.passing, 1), 1), most))

    @property
    def bytes_at_once(self) -> float:
        """Memory of one batch, in bytes."""
        return self.units * (self.held + self.passing)


def _run_pass(
    model: Path, plan: _CalibrationPass, batches: Batches, found: dict[str, TensorStatistics], settings: SessionSettings
) -> None:
    """Add the values of the plan's tensors, over all samples, to the statistics in `found`."""
    with open_watched(model, plan.tensors, settings, as_written=True) as watched:
        for batch in batches(plan.fixed_batch or plan.units):
            start = 0
            while start < rows_of(batch):
                stop = start + (plan.fixed_batch or plan.units)
                piece = part_of(batch, start, stop)
                held = _add_batch(watched, piece, found)
                # Sizes may depend on the data: a unit larger than predicted makes later batches smaller.
                unit = held if plan.fixed_batch else held / rows_of(piece)
                plan = replace(plan, held=max(plan.held, unit))
                start = stop


def _add_batch(watched: WatchedSession, batch: Arrays, found: dict[str, TensorStatistics]) -> int:
    """Add the values of one batch and return the bytes of the tensors. No tensor outlives the call."""
    values = watched.run(batch)
    for name, array in values.items():
        found[name] = add(found[name], array)
    return sum(array.nbytes for array in values.values())


def _measure(model: Path, graph: onnx.GraphProto, batch: Arrays, settings: SessionSettings) -> dict[str, int]:
    """Return the bytes of each float tensor for one batch.

    The run outputs shapes only, so that it takes no more memory than a plain run.
    """
    kinds = _types(model, graph, settings)
    # Integer tensors and sequences have other types.
    floats = [name for name in dependent_tensors(graph) if kinds[name] in FLOAT_BYTES]
    with open_watched(model, floats, settings, shapes=True, as_written=True) as watched:
        shapes = watched.run(batch)
    return {name: math.prod(shapes[name].tolist()) * FLOAT_BYTES[kinds[name]] for name in floats}


def _types(model: Path, graph: onnx.GraphProto, settings: SessionSettings) -> dict[str, str]:
    """Return the type of each tensor that depends on the inputs: the declared type, else the type that the runtime infers."""
    declared = [*graph.input, *graph.output, *graph.value_info]
    kinds = {
        value.name: FLOAT_TYPES.get(value.type.tensor_type.elem_type, "") for value in declared if _is_typed(value)
    }
    unknown = [name for name in dependent_tensors(graph) if name not in kinds]
    if unknown:
        with open_watched(model, unknown, settings, as_written=True) as watched:
            kinds |= watched.types
    return kinds


def _is_typed(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.WhichOneof("value")) and (
        value.type.WhichOneof("value") != "tensor_type" or value.type.tensor_type.elem_type != 0
    )


def _split(tensors: list[str], sizes: Mapping[str, int], passing: float, budget: float) -> list[list[str]]:
    """Return the tensors in order, in groups that each fit into the budget together with `passing` bytes.

    Raises:
        CandidateRefused: `unsupported`: a tensor alone does not fit.
    """
    for name in tensors:
        if sizes[name] + passing > budget:
            raise CandidateRefused(
                kind="unsupported",
                found=f"{max(budget, 0) / 1e6:.1f} MB for the activations of calibration",
                expected=f"{(sizes[name] + passing) / 1e6:.1f} MB, which one sample takes with {name!r} exposed",
                fix="raise calibration.max_memory_mb (and budgets.memory_mb, if set)",
            )
    return split_by_memory({name: sizes[name] for name in tensors}, dict.fromkeys(tensors, passing), budget)


def _bytes_in_passing(graph: onnx.GraphProto, sizes: Mapping[str, int]) -> int:
    """Return the peak bytes of tensors of these sizes in a run that frees each after the last node that reads it."""
    reads = [set(names_read(node)) for node in graph.node]
    last = {name: place for place, names in enumerate(reads) for name in names}
    made = {name for node in graph.node for name in node.output}
    fullest = live = sum(size for name, size in sizes.items() if name not in made)
    for place, node in enumerate(graph.node):
        live += sum(sizes.get(name, 0) for name in node.output)
        fullest = max(fullest, live)
        live -= sum(sizes.get(name, 0) for name in reads[place] | set(node.output) if last.get(name, place) == place)
    return fullest


def _largest_unit(batches: Batches, fixed_batch: int | None) -> tuple[Arrays, int]:
    """Return the sample (or fixed-size batch) whose inputs have the most bytes, and the number of samples.

    Raises:
        CandidateRefused: `invalid`: there is no sample.
    """
    largest: Arrays = {}
    samples, most = 0, -1
    for batch in batches(fixed_batch or 1):
        samples += rows_of(batch)
        taken = sum(array.nbytes for array in batch.values())
        if taken > most:
            largest, most = batch, taken
    if not samples:
        raise CandidateRefused(
            kind="invalid", found="no calibration samples", expected="at least one", fix="fill the calibration data"
        )
    return largest, samples
