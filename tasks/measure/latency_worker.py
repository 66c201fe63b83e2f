"""The measuring process: one session, blocks of requests on command, raw times back. Run as a script by `latency.py`.

It imports numpy and onnxruntime alone, since whatever else lives in the process could compute while it measures. Commands
are lines of JSON on standard input (`{"seconds": s, "count": n}`), answers lines of JSON on standard output.
"""

from __future__ import annotations

import ctypes
import gc
import json
import signal
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    # Between its blocks the process is stopped, and would outlive a run that is killed: the kernel ends it with its parent.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    config = json.loads(sys.argv[1])
    with np.load(config["inputs"], allow_pickle=False) as archive:
        batch = {name: archive[name] for name in archive.files}
    options = ort.SessionOptions()
    options.intra_op_num_threads = config["threads"]
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(
        ort.GraphOptimizationLevel, f"ORT_ENABLE_{config['optimization'].upper()}"
    )
    for key, value in config["entries"].items():
        options.add_session_config_entry(key, value)
    for library in config["libraries"]:
        options.register_custom_ops_library(library)
    started = time.perf_counter_ns()
    if "plugin" in config:
        _add_plugin(options, config["provider"], **config["plugin"])
        session = ort.InferenceSession(config["model"], options)
    else:
        session = ort.InferenceSession(config["model"], options, providers=[config["provider"]])
    load_ms = (time.perf_counter_ns() - started) / 1e6
    _answer({"load_ms": load_ms, "providers": session.get_providers()})
    gc.disable()
    for line in sys.stdin:
        command = json.loads(line)
        _answer(
            {"ns": _block(session, batch, command["seconds"], command["count"]), "peak_memory_kb": _peak_memory_kb()}
        )


def _add_plugin(so: ort.SessionOptions, provider: str, library: str, options: dict[str, str]) -> None:
    """Let the session run on the processor as a provider knows it that comes in a library of its own."""
    ort.register_execution_provider_library(provider, library)
    cpu = ort.OrtHardwareDeviceType.CPU
    devices = [one for one in ort.get_ep_devices() if one.ep_name == provider and one.device.type == cpu]
    so.add_provider_for_devices(devices[:1], options)


def _block(session: ort.InferenceSession, batch: dict[str, np.ndarray], seconds: float, count: int) -> list[int]:
    """Requests one after the other until both the duration and the count are reached; nanoseconds each."""
    clock, run = time.perf_counter_ns, session.run
    samples: list[int] = []
    end = clock() + int(seconds * 1e9)
    before = clock()
    while before < end or len(samples) < count:
        run(None, batch)
        after = clock()
        samples.append(after - before)
        before = clock()
    return samples


def _peak_memory_kb() -> int:
    with Path("/proc/self/status").open(encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def _answer(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
