"""Model of a measuring process on a GPU, opened as everywhere else, timed on the device and with copies."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tasks.runtimes.runner import Runner, open_runner
from validators.records.libraries import Library
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays
from validators.targets import facts_of_provider

# A bound request keeps its inputs and outputs on the GPU. With TensorRT it also has its own execution context.
MOST_BOUND = 8
MOST_BOUND_ENGINE = 1


class RunnerModel:
    """Adapter of a `Runner` to the worker's `Model` protocol."""

    def __init__(self, runner: Runner, provider: str) -> None:
        self._runner = runner
        self._outputs = [spec.name for spec in runner.outputs]
        self.providers = [provider]
        self.most_bound = MOST_BOUND_ENGINE if facts_of_provider(provider).builds_engines else MOST_BOUND

    def run(self, batch: Arrays) -> list[Any]:
        """Return all outputs for arrays in host memory, with copies to the device and back."""
        return list(self._runner.run(batch, self._outputs))

    def bound(self, batch: Arrays) -> Callable[[], None]:
        """Return a request whose inputs and outputs lie on the device."""
        return self._runner.bound(batch)


def load(config: dict[str, Any], stack: ExitStack) -> tuple[RunnerModel, float]:
    """Return the model, released with the stack, and its load time in milliseconds; `config` is the worker's configuration.

    Raises:
        CandidateRefused: the runtime does not load the model, or another provider would run it.
    """
    settings = SessionSettings(
        config["provider"],
        config["threads"],
        config["optimization"],
        config["entries"],
        # The parent process has checked their digests.
        tuple(Library(Path(path), digest="") for path in config["libraries"]),
        config["provider_options"],
    )
    started = time.perf_counter_ns()
    runner = stack.enter_context(open_runner(Path(config["model"]), settings))
    load_ms = (time.perf_counter_ns() - started) / 1e6
    return RunnerModel(runner, settings.provider), load_ms
