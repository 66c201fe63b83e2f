"""Process that builds one engine, with its orders as JSON on standard input; `build_process` runs it with `python -m`.

A builder that crashes or is killed ends only this process. Its messages until then are already in the log.
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

from tasks.engines.tensorrt.shipped.build import Plan, Shapes, build_plan, merge_timing_caches

ENGINE, LOG, TIMING_CACHE, LAYERS, ANSWER = "engine.plan", "build.log", "timing.cache", "layers.json", "answer.json"


def main(orders: dict[str, Any]) -> None:
    """Build an engine as ordered and write the results to `orders["folder"]`.

    `orders["shared_cache"]` is the path of the shared timing cache, or None.
    """
    folder = Path(orders["folder"])
    shared = Path(orders["shared_cache"]) if orders["shared_cache"] else None
    known = shared.read_bytes() if shared and shared.exists() else None
    with (folder / LOG).open("w", encoding="utf-8", buffering=1) as log:
        plan = build_plan(
            orders["onnx"],
            profile={name: _shapes(*shapes) for name, shapes in orders["profile"].items()},
            values={name: _shapes(*values) for name, values in orders["values"].items()},
            workspace_mb=orders["workspace_mb"],
            tf32=orders["tf32"],
            compute_capabilities=tuple(orders["compute_capabilities"]),
            timing_cache=known,
            on_message=lambda severity, text: print(f"[{severity}] {text}", file=log),
            parse_only=orders.get("parse_only", False),
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
    # Written last: without this file the process did not finish.
    (folder / ANSWER).write_text(json.dumps(answer), encoding="utf-8")


def _share(timed: bytes, known: bytes | None, shared: Path) -> None:
    """Merge this build's timing cache into the shared one, which other builds may have changed meanwhile."""
    with _locked(shared):
        now = shared.read_bytes() if shared.exists() else None
        if now is not None and now != known:
            # If they cannot be merged, the other builds' entries are lost and timed again.
            with suppress(RuntimeError):
                timed = merge_timing_caches(now, timed)
        fresh = shared.with_suffix(".new")
        fresh.write_bytes(timed)
        # Readers take no lock; an atomic rename shows them the old file or the new one.
        fresh.replace(shared)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock among all processes of this machine; the kernel releases it when its process ends."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    main(json.load(sys.stdin))
