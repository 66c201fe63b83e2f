"""A decoder in onnxruntime-genai: a folder with `model.onnx`, `genai_config.json` and the tokenizer.

It imports only numpy and the library, and measuring processes and consumers load this file without the rest of quantgate.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PROVIDER = "OnnxRuntimeGenAI"
CONFIG = "genai_config.json"
TOKENS, LOGITS = "input_ids", "logits"
NEW_TOKENS = "new_tokens"
# Tokens that scores take at a time: each part but the first reads the cache that the parts before it filled.
PART = 64


class GenaiModel:
    """A loaded decoder; `config` is its `genai_config.json`.

    A request is a prompt with the tokens that follow, chosen greedily: as many as the option `new_tokens` says, also past
    the end of the text, so that each request is the same work. `providers` and `most_bound` are for the measuring process
    (`tasks.measure.latency.worker.Model`).
    """

    providers = (PROVIDER,)
    # Each request owns a cache while it runs.
    most_bound = 64

    def __init__(self, model: Path, threads: int, options: Mapping[str, str]) -> None:
        """Load the folder of a model file.

        Raises:
            RuntimeError: the library does not load it.
        """
        # An extra, which few environments have.
        import onnxruntime_genai as og

        og.disable_telemetry_events()
        self._og = og
        self.config: dict[str, Any] = json.loads(model.with_name(CONFIG).read_text(encoding="utf-8"))
        self._new_tokens = int(options[NEW_TOKENS])
        loading = og.Config(str(model.parent))
        session = {"session_options": {"intra_op_num_threads": threads}}
        loading.overlay(json.dumps({"model": {"decoder": session}}))
        self._model = og.Model(loading)

    @property
    def context(self) -> int:
        """The most tokens of a prompt with its answer."""
        return int(self.config["model"]["context_length"])

    def scores(self, tokens: NDArray[Any]) -> NDArray[np.float32]:
        """Return the logits of windows, float32 `(rows, length, vocabulary)`, computed part by part through the cache.

        `tokens` is `(rows, length)`.

        Raises:
            RuntimeError: the library fails, or the window is longer than the model's context.
        """
        self._check_length(tokens.shape[1])
        found = []
        # The library adds tokens to a single sequence only.
        for row in tokens.astype(np.int32):
            generator = self._generator(1, len(row))
            parts = []
            for start in range(0, len(row), PART):
                generator.append_tokens(row[None, start : start + PART])
                parts.append(np.array(generator.get_output(LOGITS)))
            found.append(np.concatenate(parts, axis=1))
        return np.concatenate(found).astype(np.float32, copy=False)

    def generate(
        self, tokens: NDArray[Any], new_tokens: int | None = None, *, past_end: bool = True
    ) -> NDArray[np.int32]:
        """Return the tokens after each prompt, int32 `(rows, new_tokens)`; `tokens` is `(rows, length)`.

        With `past_end` no token ends the text: the library never chooses one that would. Without it there may be fewer tokens,
        and those of a row that ended are followed by padding.

        Raises:
            RuntimeError: the library fails, or prompt and answer are longer than the model's context.
        """
        count = self._new_tokens if new_tokens is None else new_tokens
        prompts = tokens.astype(np.int32)
        rows, length = prompts.shape
        self._check_length(length + count)
        generator = self._generator(rows, length + count, past_end=past_end)
        generator.append_tokens(prompts)
        while not generator.is_done():
            generator.generate_next_token()
        return np.array([generator.get_sequence(row)[length:] for row in range(rows)], np.int32)

    def encode(self, prompt: str) -> NDArray[np.int32]:
        """Return the tokens of a prompt, int32 `(length,)`."""
        return np.array(self._tokenizer.encode(prompt), np.int32)

    def stream(self, tokens: NDArray[Any], count: int) -> Iterator[str]:
        """Yield the text after the tokens of a prompt, until it ends or has `count` tokens."""
        generator = self._generator(1, len(tokens) + count, past_end=False)
        generator.append_tokens(tokens[None])
        stream = self._tokenizer.create_stream()
        while not generator.is_done():
            generator.generate_next_token()
            yield str(stream.decode(generator.get_next_tokens()[0]))

    @cached_property
    def _tokenizer(self) -> Any:
        return self._og.Tokenizer(self._model)

    def run(self, batch: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Answer one request."""
        return [self.generate(batch[TOKENS])]

    def bound(self, batch: Mapping[str, NDArray[Any]]) -> Callable[[], Any]:
        """Return a request that answers this batch of prompts; each call blocks until it is done."""
        tokens = np.ascontiguousarray(batch[TOKENS])
        return lambda: self.generate(tokens)

    def _generator(self, rows: int, length: int, *, past_end: bool = True) -> Any:
        params = self._og.GeneratorParams(self._model)
        least = length if past_end else 0
        # The cache is allocated for `max_length` tokens.
        params.set_search_options(do_sample=False, batch_size=rows, min_length=least, max_length=length)
        return self._og.Generator(self._model, params)

    def _check_length(self, length: int) -> None:
        if length > self.context:
            raise RuntimeError(f"{length} tokens, and the model's context has {self.context}")


def version() -> str:
    """Return the version of the runtime, as versions name it."""
    return metadata.version("onnxruntime-genai")


def load(model: Path, session: Mapping[str, Any], _mismatch: object = None) -> GenaiModel:
    """Load a decoder; `session` has the fields of `validators.records.run.SessionSettings`."""
    return GenaiModel(model, session["threads"], session["provider_options"])
