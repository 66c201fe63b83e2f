"""Process that runs a package with oneDNN's verbose mode, which prints; `coverage` runs it with `python -m`.

Its arguments are a JSON object; standard output gets oneDNN's lines, with a line `REQUEST` before each request, and a last line
`DONE <microseconds>` with the median time of a request outside the mode.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tasks.runtimes.inductor.package import InductorModel

REQUEST, DONE, ABOUT = "quantgate request", "quantgate done ", "quantgate about "


def main(config: dict[str, Any]) -> None:
    """Run the package's requests and print as described above."""
    import torch

    model = InductorModel(Path(config["package"]), config["threads"])
    with np.load(config["batch"], allow_pickle=False) as archive:
        request = model.bound({name: archive[name] for name in archive.files})
    for _ in range(config["warm_up"]):
        request()
    times = []
    for _ in range(config["requests"]):
        started = time.perf_counter_ns()
        request()
        times.append((time.perf_counter_ns() - started) / 1e3)
    _say(ABOUT + json.dumps(model.about))
    verbose: Any = torch.backends.mkldnn.verbose
    with verbose(torch.backends.mkldnn.VERBOSE_ON):
        for _ in range(config["requests"]):
            _say(REQUEST)
            request()
    _say(f"{DONE}{statistics.median(times)}")


def _say(line: str) -> None:
    # oneDNN writes through C's buffer of the same descriptor: each side flushes its own.
    import ctypes

    ctypes.CDLL(None).fflush(None)
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
