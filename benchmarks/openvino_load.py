"""Time to load the demo's text model with OpenVINO, with and without the folder `QUANTGATE_CACHE` of a consumer.

    python benchmarks/openvino_load.py     # a minute; makes the demo's model first if it is not there

Processes of one load each, in turn. Processor time is given beside time: on a busy machine it is what loading takes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from statistics import median

from figures import save
from jobs import state_of
from processes import answer_of

from tasks.engines.variants import session_settings
from validators.job.candidate_name import decode

ROUNDS = 7
LOAD = """
import json, sys, time
import openvino as ov
core = ov.Core()
core.available_devices
started, computed = time.perf_counter(), time.process_time()
model = core.compile_model(sys.argv[1], "CPU", json.loads(sys.argv[2]))
print(json.dumps([time.perf_counter() - started, time.process_time() - computed, model.get_property("LOADED_FROM_CACHE")]))
"""


def load(model: Path, options: dict[str, str]) -> tuple[float, float, bool]:
    """Return seconds, seconds of processor time and whether the cache was used, of one load in a new process."""
    command = [sys.executable, "-c", LOAD, str(model), json.dumps(options)]
    seconds, computed, cached = answer_of(command)
    return seconds, computed, cached


def main() -> None:
    state = state_of("benchmarks")
    from flows.cli.demo import prepare_demo

    model = prepare_demo(state).with_name("text") / "model.onnx"
    settings = session_settings(decode("fp32-fused@openvino"), 2)
    options = settings.provider_options | {"INFERENCE_NUM_THREADS": str(settings.threads)}
    figures: dict[str, list[tuple[float, float, bool]]] = {"compiled": [], "from the cache": []}
    with tempfile.TemporaryDirectory() as folder:
        load(model, options | {"CACHE_DIR": folder})
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        for _ in range(ROUNDS):
            figures["compiled"].append(load(model, options))
            figures["from the cache"].append(load(model, options | {"CACHE_DIR": folder}))
    assert [one[2] for found in figures.values() for one in found] == [False] * ROUNDS + [True] * ROUNDS
    told = {
        name: {"median_s": median(one[0] for one in found), "median_processor_s": median(one[1] for one in found)}
        for name, found in figures.items()
    }
    about = {"openvino": metadata.version("openvino"), "threads": 2, "rounds": ROUNDS}
    sizes = {"model_bytes": model.stat().st_size, "cache_bytes": size}
    save("openvino_load", about | sizes | {"loads": told})


if __name__ == "__main__":
    main()
