"""Frozen records of a decoder that generates: the bytes of its weights and cache, and its speed by length of the prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from validators.records.latencies import NEW_TOKENS, Latency

# Shortest cache for which memory is reported, and the factor between the lengths up to the model's context.
FIRST_LENGTH, LENGTH_FACTOR = 1024, 8


@dataclass(frozen=True)
class DecoderBytes:
    """Bytes of a decoder, read from its graph.

    `weights` counts all weights, `read_weights` those that each step reads in full: not the tables, such as the embedding, of
    which it reads a row. `cache` counts keys and values of one token of one sequence. `context` is the largest number of tokens
    of a sequence.
    """

    weights: int
    read_weights: int
    cache: int
    context: int

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the cache for which memory is reported: 1024, 8192 and so on, and the context.

        >>> DecoderBytes(0, 0, 0, 8192).lengths, DecoderBytes(0, 0, 0, 40960).lengths, DecoderBytes(0, 0, 0, 128).lengths
        ((1024, 8192), (1024, 8192, 40960), (128,))
        """
        count = max(0, math.ceil(math.log(max(self.context, 1) / FIRST_LENGTH, LENGTH_FACTOR)))
        steps = (FIRST_LENGTH * LENGTH_FACTOR**power for power in range(count))
        return (*(length for length in steps if length < self.context), self.context)

    def memory(self, length: int) -> int:
        """Return the bytes of the weights and of a cache with `length` tokens.

        >>> DecoderBytes(1000, 900, 4, 128).memory(100)
        1400
        """
        return self.weights + length * self.cache


@dataclass(frozen=True)
class Generation:
    """Speed of a decoder at one length of the prompt, of the variant and of the baseline: medians in milliseconds.

    `first_ms` is the time to the first token of an answer, `each_ms` that of each further one of `new_tokens`; a step makes a
    token of each of `batch_size` sequences. `prompt` is None where the job leaves the data's length.
    """

    prompt: int | None
    new_tokens: int
    first_ms: tuple[float, float]
    each_ms: tuple[float, float]
    batch_size: int = 1
    threads: int = 0

    @property
    def tokens_per_s(self) -> tuple[float, float]:
        """Tokens a second after the first, of the variant and of the baseline, over all sequences.

        >>> Generation(128, 64, (95.2, 210.0), (10.0, 40.0), batch_size=2).tokens_per_s
        (200.0, 50.0)
        """
        variant, baseline = (1000 * self.batch_size / each for each in self.each_ms)
        return variant, baseline

    def read_per_token(self, of: DecoderBytes) -> float | None:
        """Return the bytes of weights and cache that a token reads, on average over the answer; None without `prompt`.

        Weights are read once a step for all sequences, each cache by its own sequence.

        >>> Generation(100, 50, (1.0, 1.0), (1.0, 1.0), batch_size=2).read_per_token(DecoderBytes(1000, 900, 4, 200))
        950.0
        """
        if self.prompt is None:
            return None
        return of.read_weights / self.batch_size + of.cache * (self.prompt + self.new_tokens / 2)

    def bandwidth(self, of: DecoderBytes, side: int) -> float | None:
        """Return the bytes read a second at the measured speed of the variant (`side` 0) or the baseline (1).

        >>> Generation(0, 2, (1.0, 1.0), (0.5, 1.0)).bandwidth(DecoderBytes(10**6, 10**6, 0, 200), 0)
        2000000000.0
        """
        read = self.read_per_token(of)
        return None if read is None else read * self.tokens_per_s[side]

    def __str__(self) -> str:
        """Return the variant's figures beside the baseline's.

        >>> str(Generation(128, 64, (95.2, 210.0), (11.4, 30.1)))
        'prompt of 128: first token after 95.2 ms (baseline 210), then 87.7 tokens a second (baseline 33.2), over 64 tokens'
        """
        prompt = "" if self.prompt is None else f"prompt of {self.prompt}: "
        first = f"first token after {self.first_ms[0]:.3g} ms (baseline {self.first_ms[1]:.3g})"
        pace = [f"{each:.3g}" for each in self.tokens_per_s]
        return f"{prompt}{first}, then {pace[0]} tokens a second (baseline {pace[1]}), over {self.new_tokens} tokens"


def generations_of(latencies: Sequence[Latency]) -> tuple[Generation, ...]:
    """Return the speed at each operating point whose first token was measured alone, too; in the order of the points.

    A request of n tokens takes the time of the first one, and n - 1 times that of each further one.
    """
    alone = {_key(one): one for one in latencies if one.dims.get(NEW_TOKENS) == 1}
    found = []
    for whole in latencies:
        count, first = whole.dims.get(NEW_TOKENS, 1), alone.get(_key(whole))
        if count == 1 or first is None:
            continue
        firsts = (first.p50_ms, first.baseline_p50_ms)
        wholes = (whole.p50_ms, whole.baseline_p50_ms)
        each = [(long - short) / (count - 1) for long, short in zip(wholes, firsts, strict=True)]
        # Noise can make a whole answer seem shorter than its first token.
        if min(each) > 0:
            prompt = next((size for axis, size in whole.dims.items() if axis != NEW_TOKENS), None)
            found.append(
                Generation(
                    prompt, count, firsts, (each[0], each[1]), batch_size=whole.batch_size, threads=whole.threads
                )
            )
    return tuple(found)


def _key(latency: Latency) -> tuple[object, ...]:
    """Return what two points of the same request share, whatever the length of its answer."""
    others = sorted((axis, size) for axis, size in latency.dims.items() if axis != NEW_TOKENS)
    return (latency.batch_size, latency.threads, *others)
