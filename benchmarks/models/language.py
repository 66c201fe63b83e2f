"""SmolLM2-135M as an ONNX program without a cache, windows of Wikipedia articles, and their losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from models.llama import exported, fold_gains, load_model
from models.pools import STATE
from numpy.typing import NDArray

from tasks.demo.articles import Windows, fetch_articles, split_articles, whole_windows
from tasks.demo.language import read_gguf, tokenizer_of
from tasks.measure.metrics.perplexity import score_windows
from validators.records.run import SessionSettings

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Floats = NDArray[np.float32]
WINDOW_TOKENS = 512


def window_losses(score: Callable[[Windows], Floats], windows: Windows) -> NDArray[np.float64]:
    """Return the mean negative log-likelihood of each window's tokens after its first, in nats per token: float64 [n].

    `windows` is int64 [n, sequence]. `score` takes int64 [1, sequence] and returns logits, float32 [1, sequence, vocabulary].
    Windows are scored one at a time: the logits of 512 tokens take 100 MB.

    >>> window_losses(lambda ids: np.zeros((1, ids.shape[1], 4), np.float32), np.array([[0, 1, 3]])).round(4)
    array([1.3863])
    """
    return np.concatenate([score_windows(score(ids[None]), ids[None]) for ids in windows])


@contextmanager
def open_scorer(model: Path, threads: int) -> Iterator[Callable[[Windows], Floats]]:
    """Yield the `score` function of an ONNX program from `input_ids` to `logits`, on ONNX Runtime's CPU provider.

    Raises:
        CandidateRefused: `invalid`: the runtime does not load the file.
    """
    from tasks.runtimes.ort import open_session

    with open_session(model, SessionSettings("CPUExecutionProvider", threads)) as session:
        yield lambda ids: np.asarray(session.run(["logits"], {"input_ids": ids})[0])


@dataclass(frozen=True)
class LanguagePool:
    """The model, and windows of tokens to draw from, int64 [n, 512]; calibration and evaluation share no article."""

    model: Path
    calibration: Windows
    evaluation: Windows


def windows_of(articles: Sequence[str], tokenizer: Tokenizer, seed: int) -> Windows:
    """Return every whole window of every article, int64 [n, 512], in random order, so that the first are a fair sample."""
    return np.random.default_rng(seed).permutation(np.concatenate(whole_windows(articles, tokenizer, WINDOW_TOKENS)))


def language_pool(folder: Path, state: Path = STATE, seed: int = 0) -> LanguagePool:
    """Write SmolLM2-135M with folded gains to `folder/language.onnx` (540 MB); return it with windows of 100 articles."""
    import onnx

    metadata, tensors = read_gguf(state)
    model, tokenizer = load_model(metadata, tensors), tokenizer_of(metadata)
    del tensors
    fold_gains(model)
    onnx.save_model(exported(model), folder / "language.onnx")
    calibration, evaluation = split_articles(fetch_articles(state), seed)
    return LanguagePool(
        folder / "language.onnx",
        calibration=windows_of(calibration, tokenizer, seed),
        evaluation=windows_of(evaluation, tokenizer, seed),
    )
