"""llama.cpp with one GGUF file, by the server of `xllamacpp` on this machine's loopback address."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A token that is one ASCII letter: llama.cpp tells no probabilities after a part of a character.
LETTER = "!"


class LlamaCpp:
    """A loaded file. The attention cache is float32, and attention is the plain one, as in the judged engine."""

    def __init__(self, path: Path, *, context: int, threads: int = 1) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel, params.warmup, params.fit_params = context, 1, False, False
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.verbosity = -1
        self.server = xllamacpp.Server(params)
        (self.letter,) = self.tokens(LETTER)

    def ask(self, path: str, **body: Any) -> Any:
        """The answer of the server to a request."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.server.listening_address}{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def tokens(self, text: str, *, special: bool = False) -> list[int]:
        """The tokens of a text; `special` adds those of the start."""
        return list(self.ask("/tokenize", content=text, add_special=special)["tokens"])

    def generate(self, prompt: Sequence[int], count: int) -> list[int]:
        """The tokens that follow, greedily, also past the end of the text."""
        body = {"n_predict": count, "temperature": 0, "return_tokens": True, "ignore_eos": True}
        return list(self.ask("/completion", prompt=[int(token) for token in prompt], **body)["tokens"])

    def log_probabilities(self, tokens: Sequence[int], vocabulary: int) -> NDArray[np.float64]:
        """The log-probabilities of the token after each token, `(length, vocabulary)`, of the model itself.

        The bias makes the server choose one token, whose text it can show; the probabilities are those before it.
        """
        rows = []
        for end in range(1, len(tokens) + 1):
            body = {"n_predict": 1, "n_probs": vocabulary, "temperature": 0, "logit_bias": [[self.letter, 1e6]]}
            told = self.ask("/completion", prompt=[int(token) for token in tokens[:end]], cache_prompt=True, **body)
            row = np.full(vocabulary, np.nan)
            for one in told["completion_probabilities"][0]["top_logprobs"]:
                row[one["id"]] = one["logprob"]
            rows.append(row)
        return np.array(rows)
