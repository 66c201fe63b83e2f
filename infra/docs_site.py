"""What MkDocs calls while it builds the site (`hooks` in mkdocs.yml).

It adds the reference pages that the code writes (`flows/docs/reference.py`), and the pages beside docs/: on disk a page links
them by their place in the repository, `../benchmarks/README.md`, in the site by their place there.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from flows.docs.reference import PAGES

ROOT = Path(__file__).parents[1]
# In the site under the same path as in the repository, where docs/ is the root.
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md", "benchmarks/results/*.png")
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)\s#]+)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for name, page in PAGES.items():
        files.append(File.generated(config, name, content=page()))
    for pattern in BESIDE:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Turn links between docs/ and what lies beside it into those of the site."""
    here: str = page.file.src_uri
    beside = (ROOT / here).is_file() and not (ROOT / "docs" / here).is_file()
    return _LINK.sub(lambda link: in_site(link[1], here if beside else f"docs/{here}"), markdown)


def in_site(link: str, page: str) -> str:
    """A relative link on a page of the repository, as one of the site.

    >>> in_site("../benchmarks/README.md", "docs/verdicts.md"), in_site("../docs/gpu.md", "benchmarks/README.md")
    ('benchmarks/README.md', '../gpu.md')
    >>> in_site("gates.md", "docs/reference/job.md")
    'gates.md'
    """
    place = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    here = posixpath.dirname(page.removeprefix("docs/"))
    return posixpath.relpath(place.removeprefix("docs/"), here or ".")
