"""Answers of a decoder: speed by length of the prompt, bytes read, and memory by length of the cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from tasks.reporting import formats
from tasks.reporting.rows import RowOutcome, metric_heading, metric_of, shown_outcome
from tasks.reporting.tables import Column, ReportTable
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


def answers_table(result: Result) -> ReportTable:
    """Return the table of speeds: a row for each candidate and length of the prompt, the baseline's first."""
    shown = answerers(result)
    several = len({(one.batch_size, one.threads) for answerer in shown for one in answerer.generations}) > 1
    each = [(answerer, one) for answerer in shown for one in answerer.generations]
    rows = [
        (
            answerer.name,
            formats.metric_value(answerer.metric, metric_of(result)),
            formats.percent(answerer.agreement),
            _request(one, several=several),
            formats.milliseconds(one.first_ms[0]),
            formats.significant(one.tokens_per_s[0]),
            formats.megabytes(one.read_per_token(answerer.decoder) if answerer.decoder else None),
            formats.gigabytes(one.bandwidth(answerer.decoder, 0) if answerer.decoder else None),
        )
        for answerer, one in each
    ]
    figures = ("Agreement %", "Prompt + answer", "First token ms", "Tokens/s", "MB per token", "GB/s")
    columns = [Column("Candidate", "name"), Column(metric_heading(result)), *map(Column, figures)]
    kinds = ["chosen" * answerer.is_chosen for answerer, _ in each]
    return ReportTable("answers", "speed of answers", columns, rows, kinds)


def cache_lengths(result: Result) -> tuple[int, ...]:
    """Return the lengths of the cache, in tokens, whose memory `memory_table` has."""
    decoder = next((one.decoder for one in answerers(result) if one.decoder), None)
    return decoder.lengths if decoder else ()


def memory_table(result: Result) -> ReportTable:
    """Return the table of memory of each candidate, the baseline's first, by length of the cache."""
    lengths, shown = cache_lengths(result), [one for one in answerers(result) if one.decoder]
    rows = [
        (
            one.name,
            formats.megabytes(one.decoder.weights),
            formats.significant(one.decoder.cache / 1e3),
            *(formats.megabytes(one.decoder.memory(length)) for length in lengths),
        )
        for one in shown
        if one.decoder
    ]
    figures = ("Weights MB", "Cache kB per token", *(f"MB at {length:,}" for length in lengths))
    columns = [Column("Candidate", "name"), *map(Column, figures)]
    return ReportTable(
        "answers", "memory by length of the cache", columns, rows, ["chosen" * one.is_chosen for one in shown]
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
