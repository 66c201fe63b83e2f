"""What all parts of a check share: its options, the file of results, the time that is left, and how a figure is told."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu.apart import apart
from gpu.ceilings import measure_ceilings
from gpu.inventory import driver_version, gpu_state, versions
from gpu.record import REFUSED, Results
from validators.errors import DataError, QuantgateError
from validators.records.latencies import Latency
from validators.records.measurements import Coverage, Estimate

if TYPE_CHECKING:
    from gpu.bundle import Bundle
    from gpu.make import Reference

CEILINGS, PYTORCH = "ceilings", "pytorch"
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Options:
    """What of a check is run now; empty `forms` of torch-cuda for all, empty `batches` for those of each model."""

    work: Path
    bundle: Path = Path()
    parts: tuple[str, ...] = (CEILINGS, "ort-cuda", "tensorrt", PYTORCH)
    models: tuple[str, ...] = ("text", "image", "language")
    forms: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    seconds: float = 540.0
    launches: int = 3
    block_seconds: float = 0.12
    again: bool = False
    rehearsal: bool = False

    @property
    def device(self) -> str:
        """Torch's name of what is measured."""
        return "cpu" if self.rehearsal else "cuda"


@dataclass
class Check:
    """The options, the file that figures go to, and the time that is left."""

    options: Options
    results: Results
    say: Callable[[str], None]
    started: float = field(default_factory=time.monotonic)
    # When the present part began, by which a figure finds its driver and versions.
    part: str = ""
    longest: float = 0.0
    left: int = 0

    @property
    def seconds_left(self) -> float:
        return self.options.seconds - (time.monotonic() - self.started)

    def figure(self, section: str, key: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """The figure, measured unless it is there; a refusal in its place; None where the time does not reach for it.

        A figure is begun if the longest so far would still fit. An error of any kind is a refusal, told in full on standard
        error: what else can be measured on a machine that is lent for minutes shall be.
        """
        if self.results.has(section, key) and not self.options.again:
            return dict(self.results.figures[section][key])
        if self.seconds_left < max(self.longest, 1.0):
            self.left += 1
            return None
        begun = time.monotonic()
        try:
            found = measure()
        except QuantgateError as error:
            found = refusal(error)
        except Exception as error:
            traceback.print_exc()
            found = refusal(error)
        self.longest = max(self.longest, time.monotonic() - begun)
        self.add(section, key, found)
        return found

    def add(self, section: str, key: str, found: dict[str, Any]) -> None:
        """Put a figure into the file, with the part that it is of, and tell it."""
        self.results.put(section, key, found | ({"part": self.part} if self.part else {}))
        self.say(f"{time.monotonic() - self.started:5.0f} s  {section} {key}: {told(found)}")


def begin(check: Check, parts: Sequence[str]) -> dict[str, Any]:
    """Note in the file what is measured now, and on what."""
    options = check.options
    part = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "parts": list(parts),
        "models": list(options.models),
        "launches": options.launches,
        "versions": versions(),
        "driver": driver_version(),
        "gpu": gpu_state(),
    }
    check.results.figures["parts"].append(part)
    check.part = part["started"]
    return part


def end(check: Check, part: dict[str, Any]) -> int:
    """Note how long it took, and return how many figures the time did not reach for."""
    part |= {"seconds": round(time.monotonic() - check.started, 1), "left": check.left}
    check.results.write()
    return check.left


def packed(check: Check) -> list[str]:
    """The models asked for that the bundle has, in order; the others are told and left out.

    Raises:
        DataError: it has none of them.
    """
    options = check.options
    there = [name for name in options.models if (options.bundle / f"{name}.zip").exists()]
    for name in options.models:
        if name not in there:
            check.say(f"{name}: left out, since {options.bundle} has no {name}.zip")
    if not there:
        raise DataError(
            found=f"none of {', '.join(options.models)} in {options.bundle}",
            expected="the bundle of a model",
            fix="write it with `python -m benchmarks.gpu bundle`, or put its parts together with `... join`",
        )
    return there


def measure_limits(check: Check) -> None:
    """Measure the ceilings of the device, unless they are there."""
    if check.options.again or not check.results.figures[CEILINGS]:
        try:
            found = apart(measure_ceilings, check.options.device, seconds=max(check.seconds_left, 1.0))
        except (QuantgateError, ImportError) as error:  # without PyTorch there are none
            found = {name: refusal(error) for name in ("copy", "float16")}
        for name, figure in found.items():
            check.results.put(CEILINGS, name, figure)
            check.say(f"ceiling {name}: {told(figure)}")


def accuracy(bundle: Bundle, reference: Reference, rows: Any, value: float) -> dict[str, Any]:
    """The metric's value, and its drop with bounds of 95 % one-sided confidence; for perplexity in nats a token."""
    # The part that needs PyTorch alone has no scipy.
    from gpu.answers import METRICS
    from tasks.measure.metrics.drops import estimate_drop

    drop, method = estimate_drop(METRICS[bundle.notes.metric], np.load(reference.rows), rows, CONFIDENCE, seed=0)
    return {"metric": bundle.notes.metric, "value": value, "drop": interval(drop), "drop_method": method}


def achieved(macs: int, weight_bytes: int, p50_ms: float) -> dict[str, float]:
    """Operations (two a multiply-accumulate of the request) and bytes of weights a second, at the median."""
    seconds = p50_ms / 1e3
    return {"tflop_per_s": 2 * macs / seconds / 1e12, "weights_gb_per_s": weight_bytes / seconds / 1e9}


def described_latency(latency: Latency, against: str, macs: int, weight_bytes: int) -> dict[str, Any]:
    """The cell of a comparison with the form `against`."""
    cell = asdict(latency)
    del cell["samples_path"]
    cell |= {"against": against, "speedup": interval(latency.speedup)}
    return cell | achieved(macs, weight_bytes, latency.p50_ms)


def described_coverage(coverage: Coverage) -> dict[str, Any]:
    """Shares of multiply-accumulates, 0 to 1, and who ran them."""
    return {
        "low": coverage.share,
        "half_or_lower": coverage.half_share,
        "unknown": coverage.unknown,
        "macs_by_kernel": coverage.macs_by_kernel,
        "us_by_kernel": coverage.us_by_kernel,
        "providers": list(coverage.providers),
    }


def interval(estimate: Estimate) -> dict[str, float | None]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def refusal(error: Exception) -> dict[str, Any]:
    """What stands in the place of a figure that could not be had."""
    reason = repr(error)
    if isinstance(error, QuantgateError):
        reason = f"{error.found}; expected {error.expected}; {error.fix}"
    return {REFUSED: {"kind": getattr(error, "kind", "infrastructure"), "reason": reason}}


def told(figure: dict[str, Any]) -> str:
    """A figure in a few words, for the line of progress."""
    if REFUSED in figure:
        return f"refused: {figure[REFUSED]['reason'][:160]}"
    units = {"p50_ms": "ms", "value": "", "gb_per_s": "GB/s", "tflop_per_s": "TFLOP/s", "cpu_value": "on the CPU"}
    name = next((name for name in units if name in figure), None)
    return f"{figure[name]:.4g} {units[name]}" if name else "done"
