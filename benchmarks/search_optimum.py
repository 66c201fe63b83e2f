"""Search against all assignments: a network of twelve layers in INT8 or float, of which each of the 4,096 assignments is run.

    python benchmarks/search_optimum.py

The search knows the noise of each layer quantized alone, and adds. The truth is the noise of the whole assignment. Over 50
bounds: how often what the search predicts to meet the bound costs at most 1 % more than the cheapest that truly meets it, and
how far its true noise is from the bound.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Any

import numpy as np
import typer
from figures import save
from numpy.typing import NDArray

from tasks.ptq.search import Form, Part, assign
from tasks.ptq.sensitivity import SensitivePart

LAYERS, WIDTH, SAMPLES, BOUNDS = 12, 48, 64, 50
Array = NDArray[np.float64]


def rounded(values: Array, limit: int) -> Array:
    """Values rounded to nearest on a symmetric grid of their range."""
    step = np.abs(values).max() / limit
    return np.asarray(np.rint(values / step) * step)


class Network:
    """Residual layers of different widths of values, so that some are sensitive."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.weights = random.normal(size=(LAYERS, WIDTH, WIDTH)) / np.sqrt(WIDTH)
        # Some channels are loud, which spoils the scales of a layer.
        self.weights *= np.exp(
            random.normal(scale=random.uniform(0, 1.2, size=(LAYERS, 1, 1)), size=(LAYERS, WIDTH, 1))
        )
        self.costs = random.integers(1, 100, LAYERS).astype(float)
        self.x = random.normal(size=(SAMPLES, WIDTH))
        self.output = self.run(np.ones(LAYERS, bool))

    def run(self, in_float: NDArray[np.bool_]) -> Array:
        """The output with some layers in float and the others with weights and activations in INT8."""
        hidden = self.x
        for weight, is_float in zip(self.weights, in_float, strict=True):
            product = hidden @ weight if is_float else rounded(hidden, 127) @ rounded(weight, 127)
            hidden = hidden + 0.5 * np.tanh(product)
        return hidden

    def noise(self, in_float: NDArray[np.bool_]) -> float:
        """The power of the output's error over that of the output."""
        return float(np.square(self.run(in_float) - self.output).mean() / np.square(self.output).mean())


def compare(seed: int) -> dict[str, Any]:
    """Compare the search with all assignments of one network."""
    network = Network(seed)
    alone = [network.noise(np.arange(LAYERS) != layer) for layer in range(LAYERS)]
    parts = [
        Part(SensitivePart(str(layer), (str(layer),)), (Form("int8", alone[layer], 0.0), Form("float", 0.0, cost)))
        for layer, cost in enumerate(network.costs)
    ]
    everything = np.array(list(itertools.product([False, True], repeat=LAYERS)))
    noises = np.array([network.noise(one) for one in everything])
    costs = everything @ network.costs
    worst = noises[~everything.any(axis=1)][0]
    optimal, excess, over = 0, [], []
    for bound in np.geomspace(min(alone), worst, BOUNDS + 2)[1:-1]:
        found = assign(parts, bound)
        assert found is not None
        chosen = np.array(found, bool)
        best = costs[noises <= bound].min()
        cost, true = chosen @ network.costs, network.noise(chosen)
        excess.append(cost / best - 1 if best else float(cost > 0))
        over.append(10 * np.log10(max(true, 1e-300) / bound))
        optimal += int(cost <= best * 1.01)
    return {
        "seed": seed,
        "share_within_1_percent": optimal / BOUNDS,
        "median_excess": float(np.median(excess)),
        "largest_excess": float(np.max(excess)),
        "share_of_bounds_truly_met": float(np.mean(np.array(over) <= 0)),
        "most_over_the_bound_db": float(np.max(over)),
    }


def main(seeds: Annotated[int, typer.Option(help="networks")] = 5) -> None:
    """Compare and save the figures."""
    found = [compare(seed) for seed in range(seeds)]
    save("search_optimum", {"layers": LAYERS, "assignments": 2**LAYERS, "bounds": BOUNDS, "networks": found})


if __name__ == "__main__":
    typer.run(main)
