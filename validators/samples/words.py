"""Phrases for texts about samples."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 5  # rows, statistics or labels named in a text; the page lists all


def name_rows(rows: Sequence[int]) -> str:
    """Name rows, counted from 0, at most `SHOWN` of them.

    >>> name_rows([3, 17]), name_rows(range(100))
    ('samples 3, 17', '100 samples (0, 1, 2, 3, 4 and 95 more)')
    """
    if len(rows) <= SHOWN:
        return f"{'sample' if len(rows) == 1 else 'samples'} {', '.join(map(str, rows))}"
    return f"{len(rows)} samples ({first_few(rows)})"


def first_few(items: Sequence[object], mark: str = ", ") -> str:
    """Return the first `SHOWN` items, and the number of omitted ones if there are any.

    >>> first_few("abcdefg"), first_few(["a", "b"], "; ")
    ('a, b, c, d, e and 2 more', 'a; b')
    """
    rest = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return mark.join(map(str, items[:SHOWN])) + rest


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1.

    >>> count(1, "sample"), count(2, "sample")
    ('1 sample', '2 samples')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """Format a share, 0 to 1, as a percentage with two significant digits: shares of tensors are small.

    >>> percent(0.000061), percent(0.25), percent(1)
    ('0.0061%', '25%', '100%')
    """
    return f"{float(f'{share * 100:.2g}'):.12g}%"
