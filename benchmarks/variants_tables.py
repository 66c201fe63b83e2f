"""The figures of `variants_cpu.py` as Markdown, for `README.md`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from figures import RESULTS, earlier
from rivals import RIVALS

MODELS = {"text": "MiniLM-L6", "image": "EfficientNet-Lite0"}


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
    mark = "" if row["outcome"] == "passed" else " ✗"
    return f"{row['metric']:.3f}, {speed}{mark}, {row['size_mb']:.0f} MB"


def _bounds(ratio: dict[str, Any]) -> str:
    return "(disturbed)" if ratio["low"] is None else f"({ratio['low']:.2f} to {ratio['high']:.2f})"


def main() -> None:
    for file in sorted(RESULTS.glob("variants_cpu*.json")):
        figures = earlier(file.stem)
        print(file.name, end="\n\n")
        for table in (choices, rivals, candidates):
            print("\n".join(table(figures)), end="\n\n")


if __name__ == "__main__":
    main()
