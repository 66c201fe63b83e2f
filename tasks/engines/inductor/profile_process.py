"""Process that runs a package under a profile; `coverage` runs it with `python -m`.

Its arguments are a JSON object; standard output gets lines of the profile, with a line `REQUEST` before each request, and a
last line `DONE <microseconds>` with the median time of a request outside it. The lines are those of oneDNN's verbose mode; of a
package that records its kernels, those of `recorded.records_of`.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tasks.engines.inductor.recorded import records_of
from tasks.engines.inductor.shipped.model import InductorModel

REQUEST, DONE, ABOUT = "quantgate request", "quantgate done ", "quantgate about "


def main(config: dict[str, Any]) -> None:
    """Run the package's requests and print as described above."""
    import torch

    model = InductorModel(Path(config["package"]), config["threads"])
    with np.load(config["batch"], allow_pickle=False) as archive:
        feed = {name: archive[name] for name in archive.files}
    request = model.bound(feed)
    for _ in range(config["warm_up"]):
        request()
    times = []
    for _ in range(config["requests"]):
        started = time.perf_counter_ns()
        request()
        times.append((time.perf_counter_ns() - started) / 1e3)
    _say(ABOUT + json.dumps(model.about))
    if model.about["records_kernels"]:
        for _ in range(config["requests"]):
            records = records_of(partial(model.run, feed))
            _say("\n".join([REQUEST, *(json.dumps(record) for record in records)]))
    else:
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
