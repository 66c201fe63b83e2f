"""The figures of first contact as Markdown, each beside the least time that the device's ceilings allow."""

from __future__ import annotations

from typing import Any

from gpu.record import REFUSED
from gpu.table import bounds, ceilings, machine, number, refusals
from validators.plain_text import markdown_table

# For comparison: what others publish of the same precisions.
ANCHORS = (
    ("FP8 over FP16, Llama3-8B, H100", "batch 2 / 32 / 64", "1.39 / 1.66 / 1.43x", "NVIDIA Model Optimizer"),
    ("FP8 over BF16, Llama-3.1-8B, H200", "batch 1 / 8 / 64", "1.41 / 1.31 / 1.30x", "NVIDIA Model Optimizer"),
    ("INT4-AWQ over BF16, Llama-3.1-8B, H200", "batch 1 / 8 / 64", "1.33 / 0.75 / 0.83x", "NVIDIA Model Optimizer"),
    ("INT8 over FP16, BERT, A100", "", "1.16 to 1.97x", "NVIDIA"),
)
# Of a precision: the ceiling of its products, that of the products it leaves, and bytes of a weight. INT4 weights are
# multiplied in bfloat16; a group of 128 has a scale and a zero point of two bytes each.
LIMITS = {
    "fp32": ("float32", "float32", 4.0),
    "fp16": ("float16", "float16", 2.0),
    "bf16": ("bfloat16", "bfloat16", 2.0),
    "int8": ("int8", "bfloat16", 1.0),
    "fp8": ("fp8", "bfloat16", 1.0),
    "int4": ("bfloat16", "bfloat16", 0.5 + 4 / 128),
}
HEAD = (
    "batch",
    "form",
    "p50 ms",
    "times as fast as bf16",
    "at most, by the ceilings",
    "least ms (share reached)",
    "limited by",
    "low precision",
    "relative error",
)


def floor_ms(figures: dict[str, Any], model: str, label: str, batch: int) -> tuple[float, str] | None:
    """Return the least milliseconds of a request by the ceilings, and what limits it; None if a ceiling is missing.

    It is the longer of two times: the products' operations, two for each multiply-accumulate, at the rate of large matrix
    products of their types; and the weights' bytes, each read once, at the rate of a large copy. Activations are not counted.
    """
    artifact = figures["artifacts"].get(f"torch-cuda/{model}/{label}", {REFUSED: ""})
    low, rest, weight_bytes = LIMITS[label.split("-")[0]]
    needed = [figures["ceilings"].get(name, {REFUSED: ""}) for name in (low, rest, "copy")]
    if "coverage" not in artifact or any(REFUSED in one for one in needed):
        return None
    share = artifact["coverage"]["low"]
    tera = 2 * artifact["macs_a_sample"] * batch / 1e12
    seconds = tera * share / needed[0]["tflop_per_s"] + tera * (1 - share) / needed[1]["tflop_per_s"]
    read = figures["models"][model]["product_weights"] * weight_bytes / 1e9 / needed[2]["gb_per_s"]
    return max((seconds * 1e3, "products"), (read * 1e3, "weights"))


def render_first(figures: dict[str, Any]) -> str:
    """Return the Markdown of a file of first contact."""
    parts = [machine(figures), ceilings(figures)]
    for model, about in figures["models"].items():
        rows = [_row(figures, key, cell) for key, cell in figures["cells"].items() if key.split("/")[1] == model]
        rows.sort(key=lambda row: int(row[0]))
        parts += [f"### {model}: {about['about']}", markdown_table(HEAD, rows)]
    anchors = [f"- {what}: {value}{f' ({where})' if where else ''}; {source}" for what, where, value, source in ANCHORS]
    return "\n\n".join([*parts, refusals(figures), "\n".join(["Published elsewhere:", "", *anchors])])


def _row(figures: dict[str, Any], key: str, cell: dict[str, Any]) -> list[str]:
    _, model, batch, label = key.split("/")
    size = int(batch.removeprefix("b"))
    artifact = figures["artifacts"].get(f"torch-cuda/{model}/{label}", {})
    if REFUSED in cell:
        return [str(size), f"`{label}`", "refused", *["" for _ in HEAD[3:]]]
    least, reference = (floor_ms(figures, model, one, size) for one in (label, cell["against"]))
    coverage = artifact.get("coverage")
    return [
        str(size),
        f"`{label}`",
        number(cell["p50_ms"]),
        bounds(cell["speedup"], ".2f") if label != cell["against"] else f"1 (twice: {bounds(cell['speedup'], '.3f')})",
        f"{reference[0] / least[0]:.2f}" if least and reference else "not told",
        f"{number(least[0])} ({least[0] / cell['p50_ms']:.0%})" if least else "not told",
        least[1] if least else "not told",
        f"{coverage['low']:.0%}" if coverage else "not told",
        f"{artifact['relative_error']:.1e}" if "relative_error" in artifact else "not told",
    ]
