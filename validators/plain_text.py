"""Text of others that is shown: names of models, data and files may hold what a terminal or a page would obey."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

# Control characters but the line break and the tab, and those that change the direction in which text is read.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~$&])")


def plain(text: str) -> str:
    """The text with each character that is obeyed rather than shown as its escape.

    >>> plain("\\x1b[2Jmodel")
    '\\\\x1b[2Jmodel'
    """
    return _OBEYED.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def as_markdown(text: str) -> str:
    """Text that markdown shows as it is, on one line: a line break would end a table's row.

    >>> as_markdown("[a](b)")
    '\\\\[a\\\\](b)'
    """
    return _MARKDOWN.sub(r"\\\1", " ".join(plain(text).split()))


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return the lines of a GitHub-style table. Cells are Markdown; columns with an index in `right` are aligned right.

    >>> markdown_table(("a", "b"), [("x", "1")], right={1})
    ['| a | b |', '| --- | ---: |', '| x | 1 |']
    """
    lines = [titles, ["---:" if index in right else "---" for index in range(len(titles))], *rows]
    return [f"| {' | '.join(line)} |" for line in lines]
