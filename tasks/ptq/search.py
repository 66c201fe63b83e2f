"""Search for a form of each part of a model: the least cost under a bound on the noise in the judged output.

Small noise adds up over the parts (Y. Zhou et al., "Adaptive Quantization for Deep Neural Network", AAAI 2018, section 3), so
the predicted noise of an assignment is the sum over its parts. To choose one form a part at the least cost under that bound is
the multiple-choice knapsack problem, which dynamic programming solves (Kellerer, Pferschy, Pisinger, "Knapsack Problems", 2004,
chapter 11).

A bound is a ratio of signal to noise in whole decibels. A candidate's name holds it, as in `int8-static-mse-pc-40db@ort-cpu`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.ptq.sensitivity import SensitivePart

FLOAT = "float"
# Bounds in decibels that names can hold.
LEVELS = range(1, 100)
# Resolution of a bound on the noise.
STEPS = 2**14
# Forms of an assignment, by part; indices into `Part.forms`.
Assignment = tuple[int, ...]


@dataclass(frozen=True)
class Form:
    """A form of one part: `noise` is what it adds to the output, over the output's power; `cost` is at least 0.

    `name` is `int8` or `float` for a part of an INT8 candidate, and like `int4-g32` for a weight in blocks.
    """

    name: str
    noise: float
    cost: float


@dataclass(frozen=True)
class Part:
    """Nodes that have one form together, and the forms to choose from; the first is that of the candidate itself."""

    nodes: SensitivePart
    forms: tuple[Form, ...]


@dataclass(frozen=True)
class Assigned:
    """A point of the frontier: the cheapest assignment whose predicted ratio of signal to noise is at least `level_db`."""

    level_db: int
    assignment: Assignment
    noise: float
    cost: float


def assign(parts: Sequence[Part], most_noise: float) -> Assignment | None:
    """Return the forms with the least total cost whose noises sum to `most_noise` or less; None if there are none.

    Dynamic programming over the parts: `least[n]` is the least cost of those so far with a noise of at most `n` of `STEPS`
    equal steps. Noises are rounded up, so that the bound holds; it costs at most one step a part.
    """
    # SciPy's `milp` prints lines of its solver to stdout (SciPy 1.17.1), where commands write their results.
    least = np.zeros(STEPS + 1)
    taken = np.zeros((len(parts), STEPS + 1), np.uint8)
    widths: list[dict[int, int]] = []
    for index, part in enumerate(parts):
        widths.append(
            {
                form: math.ceil(part.forms[form].noise / most_noise * STEPS)
                for form in _undominated(part.forms)
                if part.forms[form].noise <= most_noise
            }
        )
        before, least = least, np.full(STEPS + 1, np.inf)
        for form, width in widths[-1].items():
            cost = np.full(STEPS + 1, np.inf)
            cost[width:] = before[: STEPS + 1 - width] + part.forms[form].cost
            taken[index, cost < least] = form
            least = np.minimum(least, cost)
    if not math.isfinite(least[-1]):
        return None
    left, assignment = STEPS, list[int]()
    for index in reversed(range(len(parts))):
        assignment.append(int(taken[index, left]))
        left -= widths[index][assignment[-1]]
    return tuple(reversed(assignment))


def _undominated(forms: Sequence[Form]) -> list[int]:
    """Return the forms that are cheaper than all with as little noise, cheapest first.

    >>> _undominated([Form("int8", 0.1, 0.0), Form("slow", 0.1, 2.0), Form("float", 0.0, 1.0)])
    [0, 2]
    """
    kept: list[int] = []
    for form in sorted(range(len(forms)), key=lambda form: (forms[form].cost, forms[form].noise)):
        if not kept or forms[form].noise < forms[kept[-1]].noise:
            kept.append(form)
    return kept


def find_point(parts: Sequence[Part], level_db: int) -> Assigned | None:
    """Return the point of a level; None if no assignment has so little noise."""
    assignment = assign(parts, 10 ** (-level_db / 10))
    return None if assignment is None else point_of(parts, assignment, level_db)


def point_of(parts: Sequence[Part], assignment: Assignment, level_db: int) -> Assigned:
    """Return an assignment with its predicted noise and its cost."""
    forms = [part.forms[form] for part, form in zip(parts, assignment, strict=True)]
    return Assigned(level_db, assignment, sum(form.noise for form in forms), sum(form.cost for form in forms))


def find_frontier(parts: Sequence[Part]) -> tuple[Assigned, ...]:
    """Return the points of all levels from the cheapest forms on, cheapest first, one for each assignment but the candidate's.

    The last point still has a part in another form than float.
    """
    most = sum(part.forms[_undominated(part.forms)[0]].noise for part in parts)
    lowest = max(LEVELS[0], math.floor(signal_to_noise(most))) if 0 < most < math.inf else LEVELS[0]
    points: list[Assigned] = []
    for level in range(lowest, LEVELS[-1] + 1):
        point = find_point(parts, level)
        if point is None or all(parts[part].forms[form].name == FLOAT for part, form in enumerate(point.assignment)):
            break
        points.append(point)
    distinct = [
        point for index, point in enumerate(points) if not index or points[index - 1].assignment != point.assignment
    ]
    return tuple(point for point in distinct if any(point.assignment))


def signal_to_noise(noise: float) -> float:
    """Return the ratio of signal to noise in decibels of a noise over the power of the output.

    >>> signal_to_noise(0.01), signal_to_noise(0)
    (20.0, inf)
    """
    return -10 * math.log10(noise) if noise else math.inf
