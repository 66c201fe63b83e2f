"""Measuring process: one session that runs blocks of requests on command and returns raw times.

`process.py` runs it as a script. It imports only numpy and the runtime, the user's functions if the job names any, and on a GPU
the code that opens models there: anything else in the process could compute while it measures. Commands are lines of JSON on
standard input, answers are lines of JSON on standard output.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

PR_SET_PDEATHSIG = 1  # linux/prctl.h
HOOKS = ("preprocess", "postprocess")
HIGHEST_PRIORITY = -20  # setpriority(2)
RESET_PEAK = "5"  # proc_pid_clear_refs(5): the peak resident size becomes the present one
Batch = dict[str, np.ndarray]
Request = Callable[[], Any]
Function = Callable[[Any], Any]


class Model(Protocol):
    """A loaded model: the `providers` that run it, `run` for arrays in host memory, `bound` for a prepared request.

    `most_bound` is the number of requests that may be bound at a time.
    """

    @property
    def providers(self) -> Sequence[str]: ...

    @property
    def most_bound(self) -> int: ...

    def run(self, batch: Batch) -> list[Any]: ...

    def bound(self, batch: Batch) -> Request: ...


def main() -> None:
    nice = _raise_priority()
    # A stopped process would outlive a killed run, so let the kernel end it with its parent.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Redirect stdout to stderr: text that a library prints would mix with the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    config = json.loads(sys.argv[1])
    for thread in _threads() if config["cpus"] else ():
        os.sched_setaffinity(thread, config["cpus"])
    with np.load(config["inputs"], allow_pickle=False) as archive:
        stacked = {name: archive[name] for name in archive.files}
    count = len(next(iter(stacked.values())))
    pool = [{name: array[index, ...] for name, array in stacked.items()} for index in range(count)]
    _reset_peak()
    if not config["on_gpu"]:
        _measure(config, *_load(config), pool, nice, answers)
        return
    # On a GPU, quantgate's own loader is safe to import: the computation does not happen in this process.
    from tasks.measure.latency.gpu import load
    from validators.errors import CandidateRefused

    with ExitStack() as stack:
        try:
            _measure(config, *load(config, stack), pool, nice, answers)
        except CandidateRefused as error:
            refused = {"kind": error.kind, "found": error.found, "expected": error.expected, "fix": error.fix}
            _answer(answers, {"refused": refused})


def _raise_priority() -> int:
    """Raise the priority of all threads, which later ones inherit, as far as permitted; return the nice value.

    Other processes then get the processor only when this one leaves it idle. Root may take -20, others what RLIMIT_NICE allows.
    Where the kernel shares processors among sessions first (sched(7), autogroup), a nice value counts within a session only:
    this process starts a session of its own, and raises that as well.
    """
    with suppress(OSError):
        os.setsid()
        Path("/proc/self/autogroup").write_text(str(HIGHEST_PRIORITY), encoding="ascii")
    limit = resource.getrlimit(resource.RLIMIT_NICE)[0]
    before = os.getpriority(os.PRIO_PROCESS, 0)
    for nice in (HIGHEST_PRIORITY, min(max(HIGHEST_PRIORITY, 20 - limit), before)):
        with suppress(OSError):
            for thread in _threads():
                os.setpriority(os.PRIO_PROCESS, thread, nice)
            break
    return os.getpriority(os.PRIO_PROCESS, 0)


def _threads() -> list[int]:
    """Return the ids of this process's threads; libraries start some when they are imported."""
    return [int(folder.name) for folder in Path("/proc/self/task").iterdir()]


def _measure(
    config: dict[str, Any], model: Model, load_ms: float, pool: list[Batch], nice: int, answers: IO[str]
) -> None:
    """Answer commands until standard input ends."""
    bound = min(len(pool), model.most_bound)
    figures = {"load_ms": load_ms, "load_peak_memory_mb": _peak_memory_mb(_spare_kb(pool))}
    _answer(answers, {"providers": model.providers, "bound_requests": bound, "nice": nice, "figures": figures})
    before, after = (_named(config[key], config["code"], key) for key in HOOKS)
    ready = [(before or dict)(batch) for batch in pool]
    requests = _requests(model, pool, ready[:bound], before or dict, after or list)
    spare_kb = _spare_kb(pool) + (_spare_kb(ready) if before else 0)
    clients: list[list[Request]] = []
    _reset_peak()
    gc.disable()
    for line in sys.stdin:
        command = json.loads(line)
        mix = command["mix"] or len(pool)
        if command["kind"] == "throughput":
            clients = clients or _clients(model, ready[:mix], command["clients"])
            ns = _completions(clients, command["seconds"], mix)
        else:
            ns = _block(requests[command["kind"]][:mix], command["seconds"], command["count"])
        _answer(answers, {"ns": ns, "figures": {"peak_memory_mb": _peak_memory_mb(spare_kb)}})


def _load(config: dict[str, Any]) -> tuple[Model, float]:
    """Return a model on the processor and its load time in milliseconds, without the import of the runtime."""
    load = import_module(config["loader"]).load
    started = time.perf_counter_ns()
    model: Model = load(Path(config["model"]), config)
    return model, (time.perf_counter_ns() - started) / 1e6


def _block(requests: Sequence[Request], seconds: float, count: int) -> list[int]:
    """Make requests in whole rounds until the duration and the count are reached; return the nanoseconds of each."""
    clock = time.perf_counter_ns
    samples: list[int] = []
    end = clock() + int(seconds * 1e9)
    before = clock()
    while before < end or len(samples) < count:
        for request in requests:
            request()
            after = clock()
            samples.append(after - before)
            before = clock()
    return samples


def _clients(model: Model, ready: Sequence[Batch], count: int) -> list[list[Request]]:
    """Return the cycle of requests of each client; on a device, each client has one request."""
    if model.most_bound >= len(ready):
        cycle = [model.bound(batch) for batch in ready]
        return [cycle] * count
    return [[model.bound(ready[index % len(ready)])] for index in range(count)]


def _completions(clients: Sequence[Sequence[Request]], seconds: float, mix: int) -> list[int]:
    """Run all clients at once; return the completion time of each request, in nanoseconds since the start, in order.

    A free client takes the next request of the cycle. The clients end after a whole round of `mix` requests, and after at
    least one request per client.
    """
    clock = time.perf_counter_ns
    done: list[int] = []  # list.append is atomic
    failures: list[BaseException] = []
    barrier = threading.Barrier(len(clients) + 1)
    lock = threading.Lock()
    taken = 0

    def take() -> int | None:
        nonlocal taken
        with lock:
            if failures or (clock() >= end and taken >= len(clients) and taken % mix == 0):
                return None
            taken += 1
            return taken - 1

    def call(requests: Sequence[Request]) -> None:
        barrier.wait()
        try:
            while (index := take()) is not None:
                requests[index % mix % len(requests)]()
                done.append(clock() - start)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=(requests,)) for requests in clients]
    for thread in threads:
        thread.start()
    start = clock()
    end = start + int(seconds * 1e9)
    barrier.wait()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sorted(done)


def _requests(
    model: Model, pool: Sequence[Batch], ready: Sequence[Batch], before: Function, after: Function
) -> dict[str, list[Request]]:
    """Return the requests by kind of block: the model alone, or with the user's pre- and postprocessing and copies."""

    def end_to_end(batch: Batch) -> Any:
        return after(model.run(before(batch)))

    return {
        "latency": [model.bound(batch) for batch in ready],
        "end_to_end": [partial(end_to_end, batch) for batch in pool],
    }


def _named(reference: str | None, code: str, key: str) -> Function | None:
    """Return the user's function, wrapped so that its errors name it."""
    if reference is None:
        return None
    from tasks.measure.metrics.user_code import load_function

    function = load_function(reference, Path(code), key=f"measurement.{key}").function

    def call(argument: Any) -> Any:
        try:
            return function(argument)
        except Exception as error:
            raise RuntimeError(f"{reference} of the job fails: {error!r}") from error

    return call


def _spare_kb(batches: Sequence[Batch]) -> int:
    """Return the memory of all requests except one, which a deployment would not hold, in KiB."""
    return int(sum(getattr(array, "nbytes", 0) for batch in batches[1:] for array in batch.values()) // 1024)


def _reset_peak() -> None:
    # Without permission, the peak counts from the start of the process.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text(RESET_PEAK, encoding="ascii")


def _peak_memory_mb(spare_kb: int) -> float:
    """Return the peak of resident memory, less `spare_kb`, in megabytes."""
    with Path("/proc/self/status").open(encoding="ascii") as status:
        peak_kb = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    return (peak_kb - spare_kb) * 1024 / 1e6


def _answer(answers: IO[str], message: dict[str, object]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
