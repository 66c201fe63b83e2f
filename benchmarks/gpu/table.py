"""The figures of a check as Markdown: the machine, its ceilings, a table a model, and every refusal with its reason."""

from __future__ import annotations

from typing import Any

from gpu.record import REFUSED
from validators.errors import DataError
from validators.plain_text import markdown_table

# The ceiling that a candidate's operations are held against; weights of four bits are multiplied in float16.
CEILING_OF = {"fp32": "tf32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8", "fp8": "fp8", "int4": "float16"}
_UNITS = {"gb_per_s": "GB/s", "tflop_per_s": "TFLOP/s", "us": "microseconds"}
HEAD = (
    "runtime",
    "candidate",
    "p50 ms",
    "times as fast as fp16",
    "with copies ms",
    "metric",
    "drop",
    "low precision",
    "MB",
    "GPU MB",
    "mJ",
    "TFLOP/s",
    "weights GB/s",
    "trtexec ms",
)


def refuse_rehearsal(figures: dict[str, Any], *, allowed: bool) -> None:
    """Refuse the file of a rehearsal where none was asked for.

    Raises:
        DataError: it is one, and is not allowed.
    """
    if figures["rehearsal"] and not allowed:
        raise DataError(
            found="the file of a rehearsal, whose figures are those of a processor",
            expected="figures of a GPU",
            fix="run the check on a machine with a GPU; --rehearsal shows the file as what it is",
        )


def render(figures: dict[str, Any]) -> str:
    parts = [machine(figures), ceilings(figures)]
    for model in dict.fromkeys([*figures["models"], *(key.split("/")[1] for key in figures["cells"])]):
        about = figures["models"].get(model, {})
        if REFUSED not in about:
            parts += [_model(figures, model, about)]
    return "\n\n".join([*parts, refusals(figures)])


def machine(figures: dict[str, Any]) -> str:
    """The device, its processor, versions and days in a sentence, after a warning if it is a processor that rehearsed."""
    inventory = figures["inventory"]
    versions = ", ".join(f"{name} {version}" for name, version in inventory["versions"].items())
    days = ", ".join(sorted({part["started"][:10] for part in figures["parts"]}))
    drivers = ", ".join(sorted({part["driver"] for part in figures["parts"] if part.get("driver")})) or "unknown"
    warning = "**A rehearsal on a processor: no figure here is one of a GPU.**\n\n" if figures["rehearsal"] else ""
    machine = (
        f"{warning}{inventory['device']}, driver {drivers}; {inventory['cpu']}, {inventory['cores']} cores; {versions}"
    )
    return f"{machine}. Measured on {days}."


def ceilings(figures: dict[str, Any]) -> str:
    """The ceilings of the device in a sentence."""
    told = []
    for name, figure in sorted(figures["ceilings"].items()):
        if REFUSED not in figure:
            unit, value = next((unit, figure[key]) for key, unit in _UNITS.items() if key in figure)
            told.append(f"{name} {number(value)} {unit}")
    return f"Ceilings, by PyTorch: {'; '.join(told) or 'none'}."


def _model(figures: dict[str, Any], model: str, about: dict[str, Any]) -> str:
    lines = [f"### {model}"]
    if about:
        lines.append(_about(about))
    cells = {key: cell for key, cell in figures["cells"].items() if key.split("/")[1] == model}
    for batch in sorted({_batch(key) for key in cells}):
        rows = [_row(figures, key, cell) for key, cell in cells.items() if _batch(key) == batch and REFUSED not in cell]
        if rows:
            lines.append(f"Batch {batch}:")
            lines.append(markdown_table(HEAD, sorted(rows)))
    return "\n\n".join(lines)


def _about(about: dict[str, Any]) -> str:
    rounding = about["rounding"]
    return (
        f"{about['source'].capitalize()}: {about['metric']} {rounding['before']:.4f} before and {rounding['after']:.4f} "
        f"after, on {about['evaluation_samples']} samples. {number(about['macs_a_sample'] / 1e9)} billion "
        "multiply-accumulates a sample."
    )


def _row(figures: dict[str, Any], key: str, cell: dict[str, Any]) -> list[str]:
    target, model, _, label = key.split("/")
    artifact = figures["artifacts"].get(f"{target}/{model}/{label}", {})
    coverage, size = artifact.get("coverage"), artifact.get("engine_bytes") or artifact.get("size_bytes")
    end_to_end = cell.get("end_to_end")
    return [
        target,
        f"`{label}`",
        number(cell["p50_ms"]) + (" (disturbed)" if cell.get("disturbance") else ""),
        _ratio(cell, label),
        number(end_to_end["p50_ms"]) if end_to_end else "not told",
        f"{artifact['value']:.4f}" if "value" in artifact else "not told",
        bounds(artifact["drop"], "+.4f") if "drop" in artifact else "not told",
        f"{coverage['low']:.0%}" if coverage else "not told",
        number(size and size / 1e6),
        number(cell.get("peak_gpu_memory_mb") or cell.get("allocated_gpu_memory_mb")),
        number(cell.get("energy_mj")),
        _share(cell["tflop_per_s"], figures["ceilings"].get(CEILING_OF[label.split("-")[0]])),
        _share(cell["weights_gb_per_s"], figures["ceilings"].get("copy")),
        _trtexec(cell.get("trtexec")),
    ]


def _ratio(cell: dict[str, Any], label: str) -> str:
    """How many times as fast as float16; of float16 itself, that it is so by definition, and what it is to float32."""
    told = bounds(cell["speedup"], ".2f")
    if label == "fp16":
        return f"1 ({told} of {cell['against']})"
    return told if cell["against"] == "fp16" else f"not told ({told} of {cell['against']})"


def _trtexec(found: dict[str, Any] | None) -> str:
    if found is None:
        return "not of an engine"
    return "refused" if REFUSED in found else number(found["gpu_compute_ms"])


def bounds(estimate: dict[str, float | None], form: str) -> str:
    """An estimate with its interval."""
    low, value, high = (estimate[name] for name in ("low", "value", "high"))
    told = format(value, form)
    return told if low is None or high is None else f"{told} [{low:{form}}, {high:{form}}]"


def _share(value: float, ceiling: dict[str, Any] | None) -> str:
    if ceiling is None or REFUSED in ceiling:
        return f"{number(value)} (no ceiling)"
    rate = float(ceiling.get("gb_per_s") or ceiling["tflop_per_s"])
    return f"{number(value)} ({value / rate:.1%})"


def refusals(figures: dict[str, Any]) -> str:
    """Every figure that could not be had, those with one reason on one line."""
    by_reason: dict[str, list[str]] = {}
    for section in ("ceilings", "models", "artifacts", "cells"):
        for key, figure in figures[section].items():
            for name, found in ((key, figure), (f"{key} trtexec", figure.get("trtexec", {}))):
                if REFUSED in found:
                    reason = f"{found[REFUSED]['kind']}: {found[REFUSED]['reason']}"
                    by_reason.setdefault(reason, []).append(name)
    lines = [f"- {', '.join(f'`{key}`' for key in keys)}: {reason}" for reason, keys in by_reason.items()]
    return "\n".join(["Refused:", "", *lines]) if lines else "Nothing was refused."


def _batch(key: str) -> int:
    return int(key.split("/")[2].removeprefix("b"))


def number(value: float | None) -> str:
    """Three digits.

    >>> number(0.012345), number(1234.5), number(None)
    ('0.0123', '1234', 'not told')
    """
    if value is None:
        return "not told"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
