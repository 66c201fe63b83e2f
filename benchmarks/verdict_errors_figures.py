"""The picture of the errors of verdicts."""

from __future__ import annotations

from typing import Any

from figures import RESULTS

# M. Okabe and K. Ito, "Color Universal Design", 2008, and told apart by shape as well; by true drop over tolerance.
LINES = {
    0.0: ("no drop", "#009E73", "o"),
    0.5: ("half the tolerance", "#0072B2", "s"),
    1.0: ("at the tolerance", "#D55E00", "^"),
    2.0: ("twice the tolerance", "#000000", "v"),
}


def draw(cells: list[dict[str, Any]], titles: dict[str, str], alpha: float) -> None:
    """The share of verdicts that pass by number of samples, one panel a kind, as `verdict_errors.png`."""
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(2, 3, figsize=(9.6, 5.8), sharey=True)
    figure.set_layout_engine("constrained")
    for axis, (kind, title) in zip(grid.flat, titles.items(), strict=True):
        _draw_panel(axis, title, [cell for cell in cells if cell["kind"] == kind], alpha)
    for row in grid:
        row[0].set_ylabel("share that pass")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(RESULTS / "verdict_errors.png", dpi=150)
    pyplot.close(figure)


def _draw_panel(axis: Any, title: str, cells: list[dict[str, Any]], alpha: float) -> None:
    for ratio, (label, color, marker) in LINES.items():
        line = [cell for cell in cells if cell["drop_over_tolerance"] == ratio]
        sizes, shares = [cell["n"] for cell in line], [cell["pass"]["share"] for cell in line]
        low = [cell["pass"]["share"] - cell["pass"]["interval"][0] for cell in line]
        high = [cell["pass"]["interval"][1] - cell["pass"]["share"] for cell in line]
        axis.errorbar(sizes, shares, [low, high], color=color, marker=marker, markersize=4, capsize=2, label=label)
        if ratio == 1.0:
            naive = [cell["naive_pass"]["share"] for cell in line]
            axis.plot(sizes, naive, color=color, linestyle="--", label="at the tolerance, averages compared")
    axis.axhline(alpha, color="#777777", linestyle=":", label=f"{alpha:.0%}: what the gate allows")
    axis.set_title(title, fontsize=9)
    axis.set_xscale("log")
    sizes = sorted({cell["n"] for cell in cells})
    axis.set_xticks(sizes, [f"{n:,}" for n in sizes])
    axis.minorticks_off()
    axis.set_xlabel("samples")
    axis.set_ylim(-0.03, 1.03)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.3)
