"""The figures of `variants_cpu.py` and `decoders.py` as Markdown, for `README.md`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from figures import RESULTS, earlier
from rivals import RIVALS

MODELS = {"text": "MiniLM-L6", "image": "EfficientNet-Lite0"}
HEAD = "engine and weights | nats a token beside float32 | first token, ms | tokens a second | memory, MB | file, MB"


def cells(figures: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the title and the figures of each model and shape."""
    for kind, model in MODELS.items():
        for label, told in figures.get(kind, {}).items():
            yield f"{model}: {label}", told


def choices(figures: dict[str, Any]) -> Iterator[str]:
    """Yield the table of the choices: beside fp32, and beside the best rival."""
    yield "| model, request | choice | beside fp32 | best rival that passes | choice beside it |"
    yield "|---|---|---|---|---|"
    for title, told in cells(figures):
        best = told["against_best_rival"]
        ratio = f"**{best['value']:.2f}x** {_bounds(best)}" if best else "none passes"
        fp32 = f"{told['against']['fp32']['value']:.2f}x" if best else ""
        yield f"| {title} | `{told['choice']}` | {fp32} | {told['best_rival']} | {ratio} |"


def rivals(figures: dict[str, Any]) -> Iterator[str]:
    """Yield the table of all rivals: metric, speed beside fp32 in few launches, size."""
    titles, shapes = zip(*cells(figures), strict=True)
    yield f"| | {' | '.join(titles)} |"
    yield f"|---|{'---|' * len(titles)}"
    for name in RIVALS:
        told = [{row["name"]: _cell(row) for row in shape["rows"]}.get(name, "") for shape in shapes]
        yield f"| {name} | {' | '.join(told)} |"


def candidates(figures: dict[str, Any]) -> Iterator[str]:
    """Yield what became of each candidate: its speed beside fp32, in short measurements if the race stopped it."""
    for title, told in cells(figures):
        rows = [row for row in told["rows"] if row["name"] not in RIVALS]
        yield f"{title}: " + "; ".join(f"`{row['name']}` {_cell(row)}" for row in rows)
        if told["choice_before"]:
            before = told["choice_before"]
            yield f"  beside `{before['choice']}`: {before['ratio']['value']:.2f}x {_bounds(before['ratio'])}"


def _cell(row: dict[str, Any]) -> str:
    short = row.get("short_speedup")
    if "refused" in row:
        return f"{short:.2f}x, stopped" if short else "fails"
    speed = f"{row['speedup']['value']:.2f}x" if row["speedup"] else "not timed"
    return f"{row['metric']:.3f}, {speed}{_mark(row)}, {row['size_mb']:.0f} MB"


def decoder_table(told: dict[str, Any]) -> Iterator[str]:
    """Yield the table of one length of the prompt: the baseline, the choice, and its rivals."""
    baseline, choice = told["baseline"], told["choice"]
    yield f"| {HEAD} | {'choice' if choice else 'baseline'} beside it |"
    yield "|---|---|---|---|---|---|---|"
    chosen = next((row for row in told["rows"] if row["name"] == choice), None)
    ratio = _ratio(chosen["speedup"]) if chosen else ""
    loss = math.log(baseline["metric"])
    yield f"| onnxruntime-genai, float32, the baseline | {loss:.3f} in all | {_numbers(baseline)} | {ratio} |"
    if chosen:
        yield f"| **`{choice}`**, the choice | {_drop(chosen)} | {_numbers(chosen | told['own'])} | |"
    for row in told["rivals"]:
        if "refused" in row:
            yield f"| {row['name']} | {row['refused']} | | | | | |"
        else:
            yield f"| {row['name']} | {_drop(row)} | {_numbers(row)} | {_ratio(row.get('leader_beside_it'))} |"


def decoder_candidates(told: dict[str, Any]) -> str:
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
    drop = row["drop"]
    bounds = "" if drop["low"] is None else f" ({drop['low']:+.3f} to {drop['high']:+.3f})"
    return f"{drop['value']:+.3f}{bounds}{_mark(row)}"


def _numbers(row: dict[str, Any]) -> str:
    numbers = (row.get("first_token_ms"), row.get("tokens_per_s"), row.get("peak_memory_mb"), row["size_mb"])
    return " | ".join("" if number is None else f"{number:,.0f}" for number in numbers)


def _mark(row: dict[str, Any]) -> str:
    return "" if row["outcome"] == "passed" else " ✗"


def _ratio(ratio: dict[str, Any] | None) -> str:
    return "" if ratio is None else f"{ratio['value']:.2f}x {_bounds(ratio)}"


def _bounds(ratio: dict[str, Any]) -> str:
    return "(disturbed)" if ratio["low"] is None else f"({ratio['low']:.2f} to {ratio['high']:.2f})"


def main() -> None:
    """Print the tables of each file of figures that there is."""
    for file in sorted(RESULTS.glob("variants_cpu*.json")):
        print(file.name, end="\n\n")
        for table in (choices, rivals, candidates):
            print("\n".join(table(earlier(file.stem))), end="\n\n")
    for title, told in earlier("decoders").items():
        if title.startswith("prompt"):
            words = f"Candidates: {decoder_candidates(told)}."
            print(f"{title} tokens:\n", *decoder_table(told), "", words, sep="\n", end="\n\n")


if __name__ == "__main__":
    main()
