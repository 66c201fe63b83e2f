"""The model of a measuring process on a GPU: opened as everything else opens it, timed on the device and with the copies."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tasks.runtimes.runner import Runner, open_runner
from validators.providers import TENSORRT
from validators.records.libraries import Library
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays

# A bound request keeps its inputs and outputs on the GPU, and one of an engine has an execution context of its own.
MOST_BOUND = 8
MOST_BOUND_ENGINE = 1


class OnGpu:
    """A model of a `Runner`, as the worker asks for it."""

    def __init__(self, runner: Runner, provider: str) -> None:
        self._runner = runner
        self._outputs = [spec.name for spec in runner.outputs]
        self.providers = [provider]
        self.most_bound = MOST_BOUND_ENGINE if provider == TENSORRT else MOST_BOUND

    def run(self, batch: Arrays) -> list[Any]:
        """All outputs, with the copies."""
        return list(self._runner.run(batch, self._outputs))

    def bound(self, batch: Arrays) -> Callable[[], None]:
        """A client's requests, on the device."""
        return self._runner.bound(batch)


def load(config: dict[str, Any], stack: ExitStack) -> tuple[OnGpu, float]:
    """The model, released with the stack, and how long it took to load, in milliseconds; `config` is the worker's.

    Raises:
        CandidateRefused: the runtime does not load it, or something else would run it.
    """
    settings = SessionSettings(
        config["provider"],
        config["threads"],
        config["optimization"],
        config["entries"],
        # Their digests are checked where they come from.
        tuple(Library(Path(path), digest="") for path in config["libraries"]),
        config["provider_options"],
    )
    started = time.perf_counter_ns()
    runner = stack.enter_context(open_runner(Path(config["model"]), settings))
    load_ms = (time.perf_counter_ns() - started) / 1e6
    return OnGpu(runner, settings.provider), load_ms
