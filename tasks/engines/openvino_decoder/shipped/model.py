"""A decoder compiled by OpenVINO for the processor: scores of windows, and greedy generation.

It imports only numpy, openvino and, for texts, tokenizers: measuring processes and consumers load this file without the rest of
quantgate.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from .graph import BEAMS, FIRST, MASK, POSITIONS, TOKENS, with_states

PROVIDER = "OpenVINODecoder"
DEVICE = "CPU"
CONFIG = "genai_config.json"
NEW_TOKENS, PRECISION = "new_tokens", "INFERENCE_PRECISION_HINT"
# Told about a difference from the approval: what was found, what was approved, and the remedy. It raises if that is refused.
Mismatch = Callable[[str, str, str], None]
# Tokens that scores take at a time: each part but the first reads the cache that the parts before it filled.
PART = 64

# See `tasks.engines.openvino.shipped.model`: the tables of types are filled while the module is imported.
_FILLED = (ov.Tensor(np.zeros(1, np.float32)).data.dtype, ov.Type.f32.to_dtype())


@cache
def core() -> Any:
    """Return the one `Core` of the process, which is never released: see the same function for other OpenVINO models."""
    return ov.Core()


class OpenVinoDecoder:
    """A compiled decoder; `config` is its `genai_config.json`.

    A request is a prompt with the tokens that follow, chosen greedily: as many as the option `new_tokens` says, also past
    the end of the text, so that each request is the same work. `providers` and `most_bound` are for the measuring process
    (`tasks.measure.latency.worker.Model`).
    """

    providers = (PROVIDER,)
    # Each request owns a cache while it runs.
    most_bound = 64

    def __init__(self, model: Path, threads: int, options: Mapping[str, str]) -> None:
        """Compile a decoder, ONNX or `.xml`, with a `genai_config.json` beside it; options but `new_tokens` are OpenVINO's.

        Raises:
            RuntimeError: OpenVINO does not read or compile the file, or does not apply an option.
        """
        self._folder = model.parent
        self.config: dict[str, Any] = json.loads(model.with_name(CONFIG).read_text(encoding="utf-8"))["model"]
        properties = {name: value for name, value in options.items() if name != NEW_TOKENS}
        self.new_tokens = int(options[NEW_TOKENS])
        graph = with_states(core().read_model(model), self.config)
        self.compiled = core().compile_model(graph, DEVICE, {**properties, "INFERENCE_NUM_THREADS": str(threads)})
        precision = self.compiled.get_property(PRECISION).to_string()
        if precision != properties.get(PRECISION, precision):
            raise RuntimeError(f"it computes in {precision} where {properties[PRECISION]} was asked for")
        # Requests that no thread runs at the moment; each has states of its own.
        self._idle: list[Any] = []

    @property
    def context(self) -> int:
        """The most tokens of a prompt with its answer."""
        return int(self.config["context_length"])

    def scores(self, tokens: NDArray[Any]) -> NDArray[np.float32]:
        """Return the logits of windows, float32 `(rows, length, vocabulary)`, computed part by part through the cache.

        `tokens` is `(rows, length)`.

        Raises:
            RuntimeError: OpenVINO fails, or the window is longer than the model's context.
        """
        self._check_length(tokens.shape[1])
        with self._sequences(*tokens.shape) as sequences:
            parts = [
                sequences.append(tokens[:, start : start + PART], first=0) for start in range(0, tokens.shape[1], PART)
            ]
        return np.concatenate(parts, axis=1)

    def follow(self, tokens: NDArray[Any], count: int) -> Iterator[NDArray[np.int64]]:
        """Yield the tokens after each prompt one by one, int64 `(rows,)`; `tokens` is `(rows, length)`.

        Raises:
            RuntimeError: OpenVINO fails, or prompt and answer are longer than the model's context.
        """
        rows, length = tokens.shape
        self._check_length(length + count)
        with self._sequences(rows, length + count) as sequences:
            for _ in range(count):
                chosen = sequences.append(tokens, first=-1)[:, -1].argmax(axis=1)
                yield chosen
                tokens = chosen[:, None]

    def generate(
        self, tokens: NDArray[Any], new_tokens: int | None = None, *, past_end: bool = True
    ) -> NDArray[np.int32]:
        """Return the tokens after each prompt, int32 `(rows, new_tokens)`; see `follow`.

        Without `past_end` there are fewer where all texts end before.
        """
        count = self.new_tokens if new_tokens is None else new_tokens
        found, ended = [], np.zeros(len(tokens), bool)
        for chosen in self.follow(tokens, count):
            found.append(chosen)
            if not past_end:
                ended |= np.isin(chosen, self.config["eos_token_id"])
                if ended.all():
                    break
        return np.stack(found, axis=1).astype(np.int32)

    def encode(self, prompt: str) -> NDArray[np.int64]:
        """Return the tokens of a prompt, int64 `(length,)`."""
        return np.array(self._tokenizer.encode(prompt).ids, np.int64)

    def stream(self, tokens: NDArray[Any], count: int) -> Iterator[str]:
        """Yield the text after the tokens of a prompt, until it ends or has `count` tokens."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=True)
        ends = {*np.ravel(self.config["eos_token_id"]).tolist()}
        for (token,) in self.follow(tokens[None], count):
            if int(token) in ends:
                return
            # None until the bytes of a character are complete.
            yield stream.step(self._tokenizer, int(token)) or ""

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self._folder / "tokenizer.json"))

    def run(self, batch: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Answer one request."""
        return [self.generate(batch[TOKENS])]

    def bound(self, batch: Mapping[str, NDArray[Any]]) -> Callable[[], Any]:
        """Return a request that answers this batch of prompts; each call blocks until it is done."""
        tokens = np.ascontiguousarray(batch[TOKENS])
        return lambda: self.generate(tokens)

    @contextmanager
    def _sequences(self, rows: int, length: int) -> Iterator[_Sequences]:
        """Yield empty sequences of at most `length` tokens, and keep their request from other threads until the end."""
        try:
            request = self._idle.pop()
        except IndexError:
            request = self.compiled.create_infer_request()
        request.reset_state()
        yield _Sequences(request, rows, length)
        self._idle.append(request)

    def _check_length(self, length: int) -> None:
        if length > self.context:
            raise RuntimeError(f"{length} tokens, and the model's context has {self.context}")


class _Sequences:
    """Sequences of equal length whose keys and values a request holds."""

    def __init__(self, request: Any, rows: int, length: int) -> None:
        self._request, self._done = request, 0
        self._mask = np.ones((rows, length), np.int64)
        self._beams = np.arange(rows, dtype=np.int32)

    def append(self, tokens: NDArray[Any], *, first: int) -> NDArray[np.float32]:
        """Append tokens `(rows, count)`; return the logits from the token with the index `first` among them."""
        rows, count = tokens.shape
        end = self._done + count
        feed = {
            TOKENS: np.ascontiguousarray(tokens, np.int64),
            MASK: np.ascontiguousarray(self._mask[:, :end]),
            POSITIONS: np.tile(np.arange(self._done, end), (rows, 1)),
            BEAMS: self._beams,
            FIRST: np.array([first]),
        }
        self._request.infer(feed, share_inputs=True)
        self._done = end
        return np.array(self._request.get_output_tensor(0).data)


def version() -> str:
    """Return the version of the runtime, as versions name it."""
    return metadata.version("openvino")


def load(model: Path, session: Mapping[str, Any], mismatch: Mismatch | None = None) -> OpenVinoDecoder:
    """Compile a decoder; `session` has the fields of `validators.records.run.SessionSettings`, and maybe a folder `cache`.

    Where the processor has no bfloat16 and `mismatch` allows it, a decoder in bfloat16 is computed in float32.
    """
    options = dict(session["provider_options"])
    if mismatch and options[PRECISION] == "bf16" and "BF16" not in _capabilities():
        mismatch("a processor without bfloat16", "bf16", "load it where the processor has it")
        options[PRECISION] = "f32"
    if session.get("cache"):
        options["CACHE_DIR"] = session["cache"]
    return OpenVinoDecoder(model, session["threads"], options)


def _capabilities() -> Sequence[str]:
    found: Sequence[str] = core().get_property(DEVICE, "OPTIMIZATION_CAPABILITIES")
    return found
