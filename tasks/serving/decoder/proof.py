"""The proof that a file has the weights that were judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.serving.decoder.graph_nodes import refusal
from tasks.serving.decoder.matrices import Matrix, chunks

# Rounding to float16: relative, and absolute below its smallest normal number.
RELATIVE, ABSOLUTE = 2.0**-11, 2.0**-25
# Sums in float32 come on top.
SLACK = 1.01


@dataclass(frozen=True)
class Stored:
    """A weight of a file: its name, the type that it is stored in, the judged weight, and a function that returns rows of the
    stored one, float64, dequantized.
    """

    name: str
    kind: str
    judged: Matrix
    read: Callable[[slice], NDArray[np.float64]]


@dataclass(frozen=True)
class Proof:
    """The largest difference of a stored weight from the judged one, its tensor, and that tensor's largest weight; and how
    many tensors have each type.
    """

    difference: float
    tensor: str
    largest: float
    kinds: Mapping[str, int]


def prove_weights(weights: Iterable[Stored], allowed: Callable[[Matrix, str], NDArray[np.float64]]) -> Proof:
    """Compare the weights of a file with the judged ones.

    `allowed` returns how far each value of a weight may be from the judged one in a type.

    Raises:
        JobError: a weight has another shape, or differs by more.
    """
    worst, kinds = (0.0, "", 0.0), Counter[str]()
    for weight in weights:
        kinds[weight.kind] += 1
        for rows in chunks(weight.judged):
            judged = weight.judged.take(rows)
            values = judged.values()
            difference = _checked(weight, weight.read(rows), values, allowed(judged, weight.kind))
            if difference > worst[0]:
                worst = difference, weight.name, float(np.abs(values).max())
    return Proof(*worst, dict(kinds))


def float16_rounding(size: NDArray[np.float64], steps: int = 1) -> NDArray[np.float64]:
    """Return how far a value of this size may be from the exact one: it is a float16 number, or `steps` times one."""
    return SLACK * (RELATIVE * size + steps * ABSOLUTE)


def _checked(
    weight: Stored, found: NDArray[np.float64], judged: NDArray[np.float64], allowed: NDArray[np.float64]
) -> float:
    """Return the largest difference; refuse one that is not allowed, or not a number."""
    if found.shape != judged.shape:
        raise refusal(f"{weight.name} of the shape {found.shape}", f"{judged.shape}", "report it with the variant")
    difference = np.abs(found - judged)
    if not (wrong := ~(difference <= allowed)).any():
        return float(difference.max(initial=0.0))
    at = np.unravel_index(int(wrong.argmax()), wrong.shape)
    raise refusal(
        f"{weight.name} as {weight.kind} has {found[at]:.6g} where {judged[at]:.6g} was judged",
        f"a difference of at most {allowed[at]:.3g}, the rounding of a float16 number",
        "export with --genai FOLDER: the weights of this variant are too large or too small for the format",
    )
