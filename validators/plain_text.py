"""Escaping of untrusted text: names of models, data and files may hold characters that control a terminal or a page."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

# Control characters except line break and tab, characters that change the text direction, and lone surrogates, which stand
# for bytes of a file's name that are not UTF-8 and cannot be written out.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
CUT = " [...] "
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~$&])")


def plain(text: str) -> str:
    """Return the text with each control character replaced by its escape sequence.

    >>> plain("\\x1b[2Jmodel")
    '\\\\x1b[2Jmodel'
    """
    return _OBEYED.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Return the text without control characters and line breaks, after which it could add a key to a job, or a line.

    >>> one_line("model\\nsource: other")
    'model\\\\nsource: other'
    """
    return plain(text).replace("\n", "\\n")


def shortened(text: str, most: int) -> str:
    """Return the text with at most `most` characters, at least 12, cut before its last quarter.

    >>> shortened("a" * 30 + "b" * 30, 19)
    'aaaaaaaaa [...] bbb'
    """
    if len(text) <= most:
        return text
    kept = most - len(CUT)
    return text[: kept - kept // 4] + CUT + text[len(text) - kept // 4 :]


def figure(value: float, sign: Literal["", "+"] = "") -> str:
    """Format a number with four significant digits, `sign` "+" with the sign of a number above zero too.

    >>> figure(0.0123456), figure(2.345e-08), figure(0.02, "+"), figure(-123456.7)
    ('0.01235', '2.345e-08', '+0.02', '-123,457')
    """
    return f"{value:{sign}.4g}" if abs(value) < 1e4 else f"{value:{sign},.0f}"


def signed_figure(value: float) -> str:
    """Format a difference as `figure` does, with its sign."""
    return figure(value, "+")


def as_markdown(text: str) -> str:
    """Escape text for Markdown and put it on one line: a line break would end a table's row.

    >>> as_markdown("[a](b)")
    '\\\\[a\\\\](b)'
    """
    return _MARKDOWN.sub(r"\\\1", " ".join(plain(text).split()))


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> str:
    """Return a GitHub-style table. Cells are Markdown; columns with an index in `right` are aligned right.

    >>> markdown_table(("a", "b"), [("x", "1")], right={1})
    '| a | b |\\n| --- | ---: |\\n| x | 1 |'
    """
    lines = [titles, ["---:" if index in right else "---" for index in range(len(titles))], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
