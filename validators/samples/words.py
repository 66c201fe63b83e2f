"""Small words for texts about samples."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 5  # rows, statistics or labels named in a text; the page has them all


def name_rows(rows: Sequence[int]) -> str:
    """Rows, counted from 0, for a person to find.

    >>> name_rows([3, 17]), name_rows(range(100))
    ('samples 3, 17', '100 samples (0, 1, 2, 3, 4 and 95 more)')
    """
    if len(rows) <= SHOWN:
        return f"{'sample' if len(rows) == 1 else 'samples'} {', '.join(map(str, rows))}"
    return f"{len(rows)} samples ({', '.join(map(str, rows[:SHOWN]))}{and_more(rows)})"


def and_more(items: Sequence[object]) -> str:
    """The end of a list of which `SHOWN` items are written out."""
    return f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""


def count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "sample"), count(2, "sample")
    ('1 sample', '2 samples')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """A share, 0 to 1, with two digits that count: those of tensors are small.

    >>> percent(0.000061), percent(0.25), percent(1)
    ('0.0061%', '25%', '100%')
    """
    return f"{float(f'{share * 100:.2g}'):.12g}%"
