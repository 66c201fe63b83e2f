"""Process that builds one engine, with its orders as JSON on standard input; `build_process` runs it with `python -m`.

A builder that crashes or is killed ends this process alone. What it said until then is in the log already.
"""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tasks.runtimes.trt_engine.build import Plan, Shapes, build_plan, merge_timing_caches

ENGINE, LOG, TIMING_CACHE, LAYERS, ANSWER = "engine.plan", "build.log", "timing.cache", "layers.json", "answer.json"


def main(orders: dict[str, Any]) -> None:
    """Build as told, and leave what came of it in `orders["folder"]`; `shared_cache` of them is the file to share, or None."""
    folder = Path(orders["folder"])
    shared = Path(orders["shared_cache"]) if orders["shared_cache"] else None
    known = shared.read_bytes() if shared and shared.exists() else None
    with (folder / LOG).open("w", encoding="utf-8", buffering=1) as log:
        plan = build_plan(
            orders["onnx"],
            profile={name: _shapes(*shapes) for name, shapes in orders["profile"].items()},
            workspace_mb=orders["workspace_mb"],
            tf32=orders["tf32"],
            compute_capabilities=tuple(orders["compute_capabilities"]),
            timing_cache=known,
            on_message=lambda severity, text: print(f"[{severity}] {text}", file=log),
        )
    _keep(plan, folder)
    if plan.timing_cache and shared:
        _share(plan.timing_cache, known, shared)


def _shapes(minimum: list[int], optimum: list[int], maximum: list[int]) -> Shapes:
    return tuple(minimum), tuple(optimum), tuple(maximum)


def _keep(plan: Plan, folder: Path) -> None:
    for name, content in ((ENGINE, plan.engine), (TIMING_CACHE, plan.timing_cache)):
        if content is not None:
            (folder / name).write_bytes(content)
    if plan.layers is not None:
        (folder / LAYERS).write_text(plan.layers, encoding="utf-8")
    answer = {"version": plan.version, "errors": [asdict(error) for error in plan.errors]}
    # Last: where it is missing the process did not come to its end.
    (folder / ANSWER).write_text(json.dumps(answer), encoding="utf-8")


def _share(timed: bytes, known: bytes | None, shared: Path) -> None:
    """Put what was timed into the shared cache, with what other builds have put there meanwhile."""
    with _locked(shared):
        now = shared.read_bytes() if shared.exists() else None
        if now is not None and now != known:
            # What is lost where they cannot be merged is timed again.
            with suppress(RuntimeError):
                timed = merge_timing_caches(now, timed)
        fresh = shared.with_suffix(".new")
        fresh.write_bytes(timed)
        # Readers take no lock: they see the old file, or the new one.
        fresh.replace(shared)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone among all processes of this machine; the lock ends with its process."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    main(json.load(sys.stdin))
