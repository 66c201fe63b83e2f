"""Inventory of a machine as labelled text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.reporting import formats

_WORDS = {
    "target": "target",
    "cpu": "processor",
    "isa": "instruction sets",
    "cores": "cores used",
    "memory_bytes": "memory",
    "platform": "platform",
    "python": "Python",
    "runtimes": "runtimes",
    "providers": "providers",
    "load_average": "load at the start",
    "gpu": "GPU",
    "cpu_quota": "CPU quota in cores",
}


def inventory_facts(inventory: Mapping[str, Any]) -> dict[str, str]:
    """Return the inventory as label and text; an unknown key is its own label."""
    return {_WORDS.get(key, key.replace("_", " ")): _fact(key, value) for key, value in inventory.items()}


def _fact(key: str, value: Any) -> str:
    if key == "memory_bytes":
        return f"{value / 1e9:.1f} GB"
    if key == "cpu_quota" and value is None:
        return "none"
    if key == "gpu":
        return _gpu(value) if value else "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {entry}" for name, entry in sorted(value.items())) or formats.NO_VALUE
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or formats.NO_VALUE
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _gpu(gpu: Mapping[str, Any]) -> str:
    memory = f"{gpu['memory_bytes'] / 1e9:.1f} GB"
    return f"{gpu['name']}, compute capability {gpu['compute_capability']}, {memory}, driver {gpu['driver']}, {gpu['uuid']}"
