"""Sensitivity of the parts of a model to quantization, from which a search chooses their forms (`search.py`).

Each part is quantized alone, with all others in float, and the outputs are compared with the float model's. Small noise adds
up over the parts (Y. Zhou et al., "Adaptive Quantization for Deep Neural Network", AAAI 2018, section 3), so the parts with
the most noise are the ones to keep. The reverse experiment, one float part in a quantized model, says less: if two parts each
destroy the output, keeping either one changes nothing.

Some parts are quantized only between integer kernels, such as the residual additions of a convolutional network. For them
the reverse experiment is the only one: their noise is what is gone when all parts are quantized but this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from tasks.ptq.calibrate.outliers import Outliers, find_outliers, has_weight
from tasks.ptq.graph.edits import initializers, operator_of, scratch
from tasks.runtimes.ort import open_session, run_batches
from validators.errors import CandidateRefused
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays, Samples

# Samples that are run for each part. With 16 instead of 64, the seven noisiest parts of the text demo are the same.
SAMPLES = 16
BATCH_SIZE = 8
# Most numbers of the output that are held at once: about the logits of a window of 512 tokens.
OUTPUT_NUMBERS = 2**25

# Returns a noise of nodes, by a call of the function unless it is known.
RememberNoise = Callable[[Collection[str], Callable[[], float]], float]
# From a float model, writes a variant in which the nodes with these names are left in float.
Quantize = Callable[[Path, Collection[str], Path], object]


@dataclass(frozen=True)
class SensitivePart:
    """Nodes that are kept in float together: one with weights, or all without weights that have the same role."""

    name: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Sensitivity:
    """Cost of quantizing one part alone: `noise` is the power of the output's error over the power of the output.

    The outlier ratios (`outliers.py`) are the largest of its weights and of the activations that meet them; None for a part
    without weights, or without a ratio.
    """

    part: SensitivePart
    noise: float
    weight_outlier_ratio: float | None = None
    activation_outlier_ratio: float | None = None


def find_parts(
    graph: onnx.GraphProto, quantized: Collection[str], *, by_input: bool = False
) -> tuple[SensitivePart, ...]:
    """Group the nodes that a candidate quantizes into parts; all nodes of the float graph have names.

    Each node with a constant matrix or kernel as its weight is one part; with `by_input`, nodes that read the same activation
    form one part. The other nodes, which are many and cheap, form one part per role: the same operator between the same
    operators, as it recurs in each layer of a network.
    """
    constants = initializers(graph)
    # An input or output that is left out has an empty name.
    makers = {name: operator_of(node) for node in graph.node for name in node.output if name}
    readers: dict[str, set[str]] = {}
    for node in graph.node:
        for name in filter(None, node.input):
            readers.setdefault(name, set()).add(operator_of(node))
    parts: dict[tuple[str, str], list[str]] = {}
    for node in graph.node:
        if node.name not in quantized:
            continue
        if has_weight(node, constants):
            key = ("weights", node.input[0] if by_input else node.name)
        else:
            before = sorted({makers[name] for name in node.input if name in makers})
            after = sorted(set().union(*(readers.get(name, set()) for name in node.output)))
            key = ("role", f"{operator_of(node)} ({', '.join(before) or 'input'} to {', '.join(after) or 'output'})")
        parts.setdefault(key, []).append(node.name)
    return tuple(
        SensitivePart(key if kind == "role" else ", ".join(nodes), tuple(nodes)) for (kind, key), nodes in parts.items()
    )


def rank_parts(
    model: Path,
    parts: Sequence[SensitivePart],
    quantize: Quantize,
    samples: Samples,
    output: str,
    settings: SessionSettings,
    *,
    fixed_batch: int | None = None,
    remember: RememberNoise = lambda _nodes, measure: measure(),
) -> tuple[Sensitivity, ...]:
    """Rank the parts by the noise of quantizing each alone, worst first, with their outlier ratios.

    A part that `quantize` refuses alone counts with the noise that is gone if all others are quantized. `remember` keeps each
    noise, so that a ranking that was cut off goes on where it was.

    `model` is the float graph, `output` the judged output. NaN or Inf where the float output is finite count as infinite noise.

    Raises:
        CandidateRefused: no part can be quantized alone, or a file cannot be made or run.
    """
    nodes = {node for part in parts for node in part.nodes}
    # One sample at a time, as all activations of the graph are held at once.
    size = fixed_batch or 1
    seen = islice(samples.batches(size), max(1, SAMPLES // size))
    outliers = find_outliers(model, nodes, seen, settings.libraries)
    with noise_meter(model, nodes, quantize, samples, output, settings, fixed_batch=fixed_batch) as noise_of:
        noises = _noises(parts, lambda nodes: remember(nodes, lambda: noise_of(nodes)))
    found = []
    for part in parts:
        ratios = _largest_ratios([outliers[node] for node in part.nodes if node in outliers])
        found.append(Sensitivity(part, noises[part], *ratios))
    return tuple(sorted(found, key=lambda sensitivity: -sensitivity.noise))


@contextmanager
def noise_meter(
    model: Path,
    nodes: Collection[str],
    quantize: Quantize,
    samples: Samples,
    output: str,
    settings: SessionSettings,
    *,
    fixed_batch: int | None = None,
) -> Iterator[Callable[[Collection[str]], float]]:
    """Yield a function that returns the noise in the output with some of the `nodes` quantized, over the output's power.

    Values that are not finite in the float model, such as masked logits, have no noise; NaN or Inf where the float output is
    finite count as infinite noise. Both raise CandidateRefused if a file cannot be made or run.
    """
    batches = _first_batches(model, samples, output, settings, fixed_batch)
    reference = _run(model, batches, output, settings)
    finite = np.isfinite(reference)
    power = (float(np.square(reference[finite]).mean()) if finite.any() else 0.0) or 1.0
    with scratch() as folder:
        # With the weights in a separate file, a variant beside it stores only those that change.
        float_model = folder / "float.onnx"
        onnx.save_model(onnx.load(model), float_model, save_as_external_data=True, location="float.onnx.data")

        def noise_of(quantized: Collection[str]) -> float:
            path = folder / "quantized.onnx"
            quantize(float_model, set(nodes).difference(quantized), path)
            error = _run(path, batches, output, settings)[finite] - reference[finite]
            path.unlink()
            path.with_name(f"{path.name}.data").unlink(missing_ok=True)
            noise = (float(np.square(error).mean()) if error.size else 0.0) / power
            return noise if math.isfinite(noise) else math.inf

        yield noise_of


def _noises(parts: Sequence[SensitivePart], noise_of: Callable[[Collection[str]], float]) -> dict[SensitivePart, float]:
    """Return the noise of each part, given the noise of quantizing nodes.

    Raises:
        CandidateRefused: no part can be quantized alone.
    """
    noises: dict[SensitivePart, float] = {}
    refused: dict[SensitivePart, CandidateRefused] = {}
    for part in parts:
        try:
            noises[part] = noise_of(part.nodes)
        except CandidateRefused as error:
            refused[part] = error
    if refused and not noises:
        raise next(iter(refused.values()))
    if refused:
        nodes = {node for part in parts for node in part.nodes}
        everything = noise_of(nodes)
        for part in refused:
            without = noise_of(nodes.difference(part.nodes))
            # Noise without bounds that stays comes from others.
            noises[part] = max(0.0, everything - without) if math.isfinite(without) else 0.0
    return noises


def _largest_ratios(outliers: Sequence[Outliers]) -> tuple[float | None, float | None]:
    """Return the largest outlier ratio of the weights, and of the activations."""
    return (
        max((node.weight for node in outliers if node.weight is not None), default=None),
        max((node.activation for node in outliers if node.activation is not None), default=None),
    )


def _first_batches(
    model: Path, samples: Samples, output: str, settings: SessionSettings, fixed_batch: int | None
) -> list[Arrays]:
    """Return the batches that are run for each part; fewer samples if one sample has a long output."""
    size = fixed_batch or 1
    with open_session(model, settings) as session:
        numbers = run_batches(session, islice(samples.batches(size), 1), output).size
    count = min(SAMPLES, max(size, OUTPUT_NUMBERS * size // numbers))
    size = fixed_batch or min(BATCH_SIZE, count)
    return list(islice(samples.batches(size), -(-count // size)))


def _run(model: Path, batches: Sequence[Arrays], output: str, settings: SessionSettings) -> NDArray[np.float64]:
    with open_session(model, settings) as session:
        return run_batches(session, batches, output).astype(np.float64)
