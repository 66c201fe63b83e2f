"""The figures of `decoders.py` as Markdown, for `README.md`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from figures import earlier

HEAD = (
    "engine and weights",
    "nats a token beside float32",
    "first token, ms",
    "tokens a second",
    "memory, MB",
    "file, MB",
)


def table(told: dict[str, Any]) -> Iterator[str]:
    """Yield the table of one length of the prompt: the baseline, the choice, and its rivals."""
    baseline, choice = told["baseline"], told["choice"]
    yield f"| {' | '.join(HEAD)} | {'choice' if choice else 'baseline'} beside it |"
    yield f"|{'---|' * (len(HEAD) + 1)}"
    chosen = next((row for row in told["rows"] if row["name"] == choice), None)
    ratio = _ratio(chosen["speedup"]) if chosen else ""
    loss = math.log(baseline["metric"])
    yield f"| onnxruntime-genai, float32, the baseline | {loss:.3f} in all | {_cells(baseline)} | {ratio} |"
    if chosen:
        yield f"| **`{choice}`**, the choice | {_drop(chosen)} | {_cells(chosen | told['own'])} | |"
    for row in told["rivals"]:
        if "refused" in row:
            yield f"| {row['name']} | {row['refused']} | | | | | |"
        else:
            yield f"| {row['name']} | {_drop(row)} | {_cells(row)} | {_ratio(row.get('leader_beside_it'))} |"


def candidates(told: dict[str, Any]) -> str:
    """Return the loss and the speed beside the baseline of each candidate."""
    parts = []
    for row in told["rows"]:
        if "refused" in row:
            parts.append(f"`{row['name']}` {row['refused']}")
        else:
            speed = f", {row['speedup']['value']:.2f}x" if row["speedup"] else ""
            parts.append(f"`{row['name']}` {_drop(row)}{speed}, {row['size_mb']:.0f} MB")
    return "; ".join(parts)


def _drop(row: dict[str, Any]) -> str:
    mark = "" if row["outcome"] == "passed" else " ✗"
    drop = row["drop"]
    bounds = "" if drop["low"] is None else f" ({drop['low']:+.3f} to {drop['high']:+.3f})"
    return f"{drop['value']:+.3f}{bounds}{mark}"


def _cells(row: dict[str, Any]) -> str:
    numbers = (row.get("first_token_ms"), row.get("tokens_per_s"), row.get("peak_memory_mb"), row["size_mb"])
    return " | ".join("" if number is None else f"{number:,.0f}" for number in numbers)


def _ratio(ratio: dict[str, Any] | None) -> str:
    if ratio is None:
        return ""
    bounds = "(disturbed)" if ratio["low"] is None else f"({ratio['low']:.2f} to {ratio['high']:.2f})"
    return f"{ratio['value']:.2f}x {bounds}"


def main() -> None:
    for title, told in earlier("decoders").items():
        if title.startswith("prompt"):
            print(f"{title} tokens:\n", *table(told), "", f"Candidates: {candidates(told)}.", sep="\n", end="\n\n")


if __name__ == "__main__":
    main()
