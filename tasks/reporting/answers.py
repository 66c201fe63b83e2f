"""Answers of a decoder as rows of text: speed by length of the prompt, bytes read, and memory by length of the cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from tasks.reporting import formats
from tasks.reporting.rows import RowOutcome, metric_of, shown_outcome
from validators.records.generation import DecoderBytes, Generation, generations_of
from validators.records.result import CandidateResult, Result

BASELINE = "baseline"


@dataclass(frozen=True)
class Answerer:
    """A candidate or the baseline, with its speed at each length of the prompt.

    `first_ms` and `each_ms` of its generations hold its own figures first.
    """

    name: str
    outcome: RowOutcome
    is_chosen: bool
    metric: float | None
    agreement: float | None
    decoder: DecoderBytes | None
    generations: tuple[Generation, ...]


@dataclass(frozen=True)
class AnswerRow:
    """One row of the table of speeds, every cell as text in the unit of its heading."""

    name: str
    is_chosen: bool
    metric: str
    agreement: str
    request: str
    first_ms: str
    tokens_per_s: str
    read_mb: str
    bandwidth_gb: str


@dataclass(frozen=True)
class MemoryRow:
    """One row of the table of memory; `memory_mb` has one cell for each length of the cache."""

    name: str
    is_chosen: bool
    weights_mb: str
    cache_kb: str
    memory_mb: tuple[str, ...]


def answerers(result: Result) -> tuple[Answerer, ...]:
    """Return the baseline and the candidates of a decoder that were measured or made; empty for any other model."""
    candidates = [one for one in result.candidates if one.decoder or generations_of(one.latencies)]
    if not candidates or result.baseline is None:
        return ()
    baseline = Answerer(
        BASELINE, "baseline", False, result.baseline.value, None, result.baseline.decoder, _of_baseline(candidates)
    )
    return baseline, *(
        Answerer(
            one.name,
            shown_outcome(one),
            one.name == result.chosen,
            one.metric_value,
            one.agreement.value if one.agreement else None,
            one.decoder,
            generations_of(one.latencies),
        )
        for one in candidates
    )


def answer_rows(result: Result) -> tuple[AnswerRow, ...]:
    """Return a row for each candidate and length of the prompt, the baseline's first."""
    shown = answerers(result)
    several = len({(one.batch_size, one.threads) for answerer in shown for one in answerer.generations}) > 1
    return tuple(
        AnswerRow(
            name=answerer.name,
            is_chosen=answerer.is_chosen,
            metric=formats.metric_value(answerer.metric, metric_of(result)),
            agreement=formats.percent(answerer.agreement),
            request=_request(one, several=several),
            first_ms=formats.milliseconds(one.first_ms[0]),
            tokens_per_s=formats.significant(one.tokens_per_s[0]),
            read_mb=formats.megabytes(one.read_per_token(answerer.decoder) if answerer.decoder else None),
            bandwidth_gb=formats.gigabytes(one.bandwidth(answerer.decoder, 0) if answerer.decoder else None),
        )
        for answerer in shown
        for one in answerer.generations
    )


def cache_lengths(result: Result) -> tuple[int, ...]:
    """Return the lengths of the cache, in tokens, whose memory `memory_rows` has."""
    decoder = next((one.decoder for one in answerers(result) if one.decoder), None)
    return decoder.lengths if decoder else ()


def memory_rows(result: Result) -> tuple[MemoryRow, ...]:
    """Return the memory of each candidate, the baseline's first."""
    lengths = cache_lengths(result)
    return tuple(
        MemoryRow(
            name=one.name,
            is_chosen=one.is_chosen,
            weights_mb=formats.megabytes(one.decoder.weights),
            cache_kb=formats.significant(one.decoder.cache / 1e3),
            memory_mb=tuple(formats.megabytes(one.decoder.memory(length)) for length in lengths),
        )
        for one in answerers(result)
        if one.decoder
    )


def _request(one: Generation, *, several: bool) -> str:
    prompt = "data's length" if one.prompt is None else str(one.prompt)
    more = f", batch {one.batch_size}, {one.threads} threads" if several else ""
    return f"{prompt} + {one.new_tokens}{more}"


def _of_baseline(candidates: Sequence[CandidateResult]) -> tuple[Generation, ...]:
    """Return the baseline's speeds: of each request the medians over the candidates, beside which it was measured."""
    found: dict[tuple[object, ...], list[Generation]] = defaultdict(list)
    for candidate in candidates:
        for one in generations_of(candidate.latencies):
            found[one.prompt, one.new_tokens, one.batch_size, one.threads].append(one)
    speeds = []
    for same in found.values():
        first, each = median(one.first_ms[1] for one in same), median(one.each_ms[1] for one in same)
        speeds.append(replace(same[0], first_ms=(first, first), each_ms=(each, each)))
    return tuple(speeds)
