"""The pages that people read, and the fenced blocks of code in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(?P<kind>\S*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: the page it is on, its line there, the word behind the fence, and what is in it."""

    page: str
    line: int
    kind: str
    text: str


@cache
def pages() -> dict[str, str]:
    """The markdown of every page by its path in the repository, those that the code writes under `docs/reference/`."""
    from flows.docs.reference import PAGES

    files = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")]
    files += sorted((ROOT / "docs").rglob("*.md"))
    written = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}
    return written | {f"docs/{name}": page() for name, page in PAGES.items()}


def blocks() -> list[Block]:
    """Every fenced block of every page."""
    found = []
    for page, text in pages().items():
        matches = list(_FENCE.finditer(text))
        assert text.count("```") == 2 * len(matches), f"{page}: a fence that is not closed, or indented"
        for match in matches:
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(page, line, match["kind"], match["text"]))
    return found
