"""Decoders in llama.cpp and OpenVINO GenAI, as measured beside `onnxruntime-genai`; see `decoder_rivals.py`.

The libraries are looked up in `build/decoder-rivals`, after the environment's own. As a script this file is the measuring
process of `tasks/measure/latency/worker.py`, which then knows these engines too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from validators.records.run import SessionSettings

LLAMA_CPP, OPENVINO_GENAI = "LlamaCpp", "OpenVINOGenAI"
PACKAGES = Path(__file__).parents[1] / "build" / "decoder-rivals"
TOKENS, NEW_TOKENS = "input_ids", "new_tokens"
# As in `tasks.engines.genai.shipped.model`: scores take so many tokens at a time.
PART = 64
# Tokens of the longest request, and of the longest window.
CONTEXT = 1024

Scores = NDArray[np.float32]
Tokens = NDArray[Any]


class DecoderModel:
    """What both engines answer with; see `tasks.measure.latency.worker.Model`."""

    most_bound = 64

    def scores(self, tokens: Tokens) -> Scores:
        """Return the logits of windows `(rows, length)`."""
        return np.stack([self._row_scores(row) for row in tokens])

    def bound(self, batch: Mapping[str, Tokens]) -> Callable[[], Any]:
        """Return a request that answers this batch of prompts."""
        return partial(self.run, batch)

    def run(self, batch: Mapping[str, Tokens]) -> list[Tokens]:
        """Answer one request."""
        raise NotImplementedError

    def _row_scores(self, row: Tokens) -> Scores:
        raise NotImplementedError


class LlamaCppModel(DecoderModel):
    """A GGUF file in llama.cpp, through the functions of its C interface; see `tasks.measure.latency.worker.Model`."""

    providers = (LLAMA_CPP,)

    def __init__(self, model: Path, threads: int, options: Mapping[str, str]) -> None:
        """Load the file.

        Raises:
            RuntimeError: the library does not load it.
        """
        import llama_cpp

        self._lib = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, None)
        llama_cpp.llama_backend_init()
        loading, running = llama_cpp.llama_model_default_params(), llama_cpp.llama_context_default_params()
        running.n_ctx = CONTEXT
        running.n_threads = running.n_threads_batch = threads
        self._new_tokens = int(options[NEW_TOKENS])
        self._model = llama_cpp.llama_model_load_from_file(str(model).encode(), loading)
        self._context = self._model and llama_cpp.llama_init_from_model(self._model, running)
        if not self._context:
            raise RuntimeError(f"llama.cpp does not load {model.name}")
        self.vocabulary = int(llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model)))
        self._greedy = llama_cpp.llama_sampler_init_greedy()

    def run(self, batch: Mapping[str, Tokens]) -> list[Tokens]:
        return [np.array([self._generate(row) for row in batch[TOKENS]], np.int32)]

    def _row_scores(self, row: Tokens) -> Scores:
        """Compute the logits part by part through the cache."""
        self._forget()
        batch = self._lib.llama_batch_init(PART, 0, 1)
        parts = []
        for start in range(0, len(row), PART):
            part = row[start : start + PART]
            batch.n_tokens = len(part)
            for index, token in enumerate(part):
                batch.token[index], batch.pos[index] = int(token), start + index
                batch.n_seq_id[index], batch.seq_id[index][0], batch.logits[index] = 1, 0, 1
            self._decode(batch)
            logits = self._lib.llama_get_logits(self._context)
            parts.append(np.ctypeslib.as_array(logits, (len(part), self.vocabulary)).copy())
        self._lib.llama_batch_free(batch)
        return np.concatenate(parts)

    def _generate(self, prompt: Tokens) -> list[int]:
        lib, found = self._lib, []
        self._forget()
        pending = (lib.llama_token * len(prompt))(*prompt.tolist())
        for _ in range(self._new_tokens):
            self._decode(lib.llama_batch_get_one(pending, len(pending)))
            found.append(lib.llama_sampler_sample(self._greedy, self._context, -1))
            pending = (lib.llama_token * 1)(found[-1])
        return found

    def _forget(self) -> None:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), False)

    def _decode(self, batch: Any) -> None:
        if code := self._lib.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returns {code}")


class OpenVinoGenaiModel(DecoderModel):
    """An OpenVINO model in the pipeline of OpenVINO GenAI; see `tasks.measure.latency.worker.Model`.

    Its cache of prompts is off: a request that repeats would not compute its prompt.
    """

    providers = (OPENVINO_GENAI,)

    def __init__(self, model: Path, threads: int, options: Mapping[str, str]) -> None:
        """Load the folder of a model file; options other than `new_tokens` go to OpenVINO.

        Raises:
            RuntimeError: the library does not load it.
        """
        import openvino
        import openvino_genai

        self._tensor, self._genai = openvino.Tensor, openvino_genai
        properties = {name: value for name, value in options.items() if name != NEW_TOKENS}
        self._new_tokens = int(options[NEW_TOKENS])
        scheduling = openvino_genai.SchedulerConfig()
        scheduling.enable_prefix_caching = False
        # A prompt goes in at once, as in its `LLMPipeline`.
        scheduling.max_num_batched_tokens = CONTEXT
        config = json.loads(model.with_name("config.json").read_text(encoding="utf-8"))
        self.vocabulary = int(config["vocab_size"])
        device = {"INFERENCE_NUM_THREADS": threads, **properties}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(model.parent), scheduling, "CPU", device)

    def run(self, batch: Mapping[str, Tokens]) -> list[Tokens]:
        rows = [self._tensor(np.ascontiguousarray(row[None], np.int64)) for row in batch[TOKENS]]
        answers = self._pipeline.generate(rows, [self._config(self._new_tokens)] * len(rows))
        return [np.array([answer.m_generation_ids[0] for answer in answers], np.int32)]

    def _row_scores(self, row: Tokens) -> Scores:
        """Give each token that follows the likelihood that the pipeline gives it.

        The pipeline tells nothing of other tokens: they share the rest evenly. The window goes in at once; its keys and
        values are read from the cache, in the cache's precision.
        """
        config = self._config(1)
        config.echo, config.logprobs = True, 1
        handle = self._pipeline.add_request(0, self._tensor(np.ascontiguousarray(row[None], np.int64)), config)
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        # One for each token of the window, of which the first is not predicted, and one for the answer's.
        told = np.array(next(iter(handle.read_all())).generated_log_probs)
        assert len(told) == len(row) + 1, f"{len(told)} likelihoods of {len(row)} tokens"
        return spread(told[1 : len(row)], row, self.vocabulary)

    def _config(self, new_tokens: int) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new_tokens, True, False
        return config


def spread(log_likelihoods: NDArray[np.float64], row: Tokens, vocabulary: int) -> Scores:
    """Return logits `(length, vocabulary)` that give each token after the first its likelihood, and all others equal ones.

    >>> found = spread(np.log([0.5, 0.25]), np.array([0, 1, 3]), 4)
    >>> np.exp(found).round(3)[:, [1, 3]]
    array([[0.5  , 0.167],
           [0.25 , 0.25 ],
           [0.25 , 0.25 ]], dtype=float32)
    """
    found = np.full((len(row), vocabulary), -np.log(vocabulary), np.float32)
    rest = np.log1p(-np.exp(np.minimum(log_likelihoods, -1e-9))) - np.log(vocabulary - 1)
    found[:-1] = rest[:, None]
    found[np.arange(len(row) - 1), row[1:]] = log_likelihoods
    return found


ENGINES: dict[str, Callable[[Path, int, Mapping[str, str]], Any]] = {
    LLAMA_CPP: LlamaCppModel,
    OPENVINO_GENAI: OpenVinoGenaiModel,
}


class RivalRunner:
    """A loaded rival; see `tasks.runtimes.runner.Runner`. `run` scores windows, `bound` generates."""

    def __init__(self, model: LlamaCppModel | OpenVinoGenaiModel) -> None:
        from tasks.runtimes.decoder_session import decoder_specs

        tokens, scores = decoder_specs(model.vocabulary)
        self.inputs, self.outputs = (tokens,), (scores,)
        self._model = model
        self.bound = model.bound

    def run(self, batch: Mapping[str, Tokens], outputs: list[str]) -> list[Scores]:
        return [self._model.scores(batch[TOKENS]) for _ in outputs]


@contextmanager
def open_model(model: Path, settings: SessionSettings) -> Iterator[RivalRunner]:
    """Open the file of a rival in its engine."""
    find_packages()
    yield RivalRunner(ENGINES[settings.provider](model, settings.threads, settings.provider_options))


# Stands for the package of an engine, whose `model` this module is.
SHIPPED = "rival"


def find_packages() -> None:
    """Have the rivals' packages found, where the environment has no other of the name."""
    if str(PACKAGES) not in sys.path:
        sys.path.append(str(PACKAGES))


def load(model: Path, session: Mapping[str, Any]) -> Any:
    return ENGINES[session["provider"]](model, session["threads"], session["provider_options"])


def main() -> None:
    from tasks.measure.latency import worker

    find_packages()
    sys.modules[f"{SHIPPED}.model"] = sys.modules[__name__]
    worker.main()


if __name__ == "__main__":
    main()
