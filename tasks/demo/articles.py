"""Wikipedia articles as prose, and windows of their tokens."""

from __future__ import annotations

import bz2
import html
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tasks.demo.assets import ARTICLES, fetch, read_tar

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ARTICLES_MEMBER = (
    "gensim-4.4.0/gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
)
CALIBRATION_SHARE = 0.4
SHORTEST_PARAGRAPH = 100

Windows = NDArray[np.int64]


def fetch_articles(state: Path) -> dict[str, str]:
    """Return the prose of about a hundred articles, by title.

    Raises:
        InfrastructureError: the archive could not be fetched.
    """
    return read_articles(bz2.decompress(read_tar(fetch(ARTICLES, state), ARTICLES_MEMBER)).decode("utf-8"))


def read_articles(xml: str) -> dict[str, str]:
    """Return the prose of each article of a MediaWiki export, by title; redirects and articles without prose are left out."""
    article = re.compile(r"<title>(.*?)</title>\s*<ns>0</ns>.*<text[^>]*>(.*)</text>", re.DOTALL)
    # Page by page, so that no match spans two pages.
    parts = map(article.search, xml.split("<page>"))
    articles = {html.unescape(part[1]): prose(html.unescape(part[2])) for part in parts if part}
    return {title: text for title, text in articles.items() if text}


def prose(markup: str) -> str:
    """Return the text paragraphs of an article in wiki markup, without templates, tables, notes, lists and headings."""
    text = re.sub(r"<!--.*?-->|<ref[^>]*/>|<ref.*?</ref>|<(math|gallery|pre)\b.*?</\1>", "", markup, flags=re.DOTALL)
    # Templates, tables and links nest, so each is replaced from the inside out.
    text = _until_stable(r"\{\{[^{}]*\}\}", "", text)
    text = _until_stable(r"\{\|(?:(?!\{\||\|\}).)*\|\}", "", text)
    text = _until_stable(r"\[\[([^\[\]]*)\]\]", _shown, text)
    text = re.sub(r"\[https?:\S*\s?([^\]]*)\]", r"\1", text)
    text = html.unescape(re.sub(r"<[^>]*>|'{2,}", "", text)).replace("\xa0", " ")
    lines = (line.strip() for line in text.splitlines())
    return "\n\n".join(line for line in lines if len(line) >= SHORTEST_PARAGRAPH and line[0] not in "*#:;|!=<{}[")


def _until_stable(pattern: str, kept: str | Callable[[re.Match[str]], str], text: str) -> str:
    replaced = 1
    while replaced:
        text, replaced = re.subn(pattern, kept, text, flags=re.DOTALL)
    return text


def _shown(link: re.Match[str]) -> str:
    target, _, label = link[1].rpartition("|")
    return "" if re.match(r"\s*(File|Image|Category):", target or label) else label


def spread_windows(
    articles: Sequence[str], tokenizer: Tokenizer, length: int, count: int, seed: int
) -> tuple[Windows, NDArray[np.int64]]:
    """Return `count` windows int64 [count, length] and the article of each, as many of each article as of any other.

    Articles are taken in turn, in random order; of each, its windows in random order. An article without a further window is
    passed over.
    """
    rng = np.random.default_rng(seed)
    windows = [rng.permutation(one) for one in whole_windows(articles, tokenizer, length)]
    order = rng.permutation(len(windows))
    rounds = max(len(one) for one in windows)
    turns = [(turn, article) for turn in range(rounds) for article in order if turn < len(windows[article])][:count]
    return np.stack([windows[article][turn] for turn, article in turns]), np.array([article for _, article in turns])


def whole_windows(articles: Sequence[str], tokenizer: Tokenizer, length: int) -> list[Windows]:
    """Return the whole windows of each article, int64 [n, length]."""
    texts = [np.array(encoding.ids, np.int64) for encoding in tokenizer.encode_batch(list(articles))]
    return [ids[: len(ids) // length * length].reshape(-1, length) for ids in texts]


def split_articles(articles: Mapping[str, str], seed: int) -> tuple[list[str], list[str]]:
    """Return the texts for calibration (two in five) and for evaluation, split by whole articles against leakage."""
    order = np.random.default_rng(seed).permutation(sorted(articles))
    count = round(CALIBRATION_SHARE * len(order))
    return [articles[title] for title in order[:count]], [articles[title] for title in order[count:]]
