"""HTML report of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import yaml

from tasks.reporting import formats
from tasks.reporting.answers import answers_table, memory_table
from tasks.reporting.confirmation import confirmation_table, tell_confirmation
from tasks.reporting.details import (
    checks_table,
    coverage_facts,
    gates_table,
    latencies_table,
    load_code,
    measured_facts,
    nodes_table,
    slices_table,
    tell_flips,
)
from tasks.reporting.inventory import inventory_facts
from tasks.reporting.next_steps import next_steps
from tasks.reporting.parts import frontier_table, parts_table, tell_recovery
from tasks.reporting.pictures.run_pictures import Pictures
from tasks.reporting.rows import failing, metric_of, shown_outcome, verdict_table
from tasks.reporting.tables import ReportTable
from tasks.reporting.templates import render
from validators.job.job import Job
from validators.records.result import CandidateResult, Result
from validators.records.run import Trial, Variant
from validators.samples.words import percent

NO_PICTURES = Pictures()
SHOWN_TENSORS = 3


@dataclass(frozen=True)
class About:
    """Facts of a run for its page, beside the result: the id in MLflow, when it began (UTC), and words with links.

    `facts` are words, text and address; an address is a URL of a server, a relative path, or empty.
    """

    run: str = ""
    began: str = ""
    facts: Sequence[tuple[str, str, str]] = ()


NO_RUN = About()


def render_page(
    result: Result,
    job: Job | None,
    trials: Iterable[Trial] = (),
    pictures: Pictures = NO_PICTURES,
    about: About = NO_RUN,
    worst: Mapping[str, ReportTable] = MappingProxyType({}),
) -> str:
    """Render the report as one HTML document.

    `trials` add facts that the result document omits (session settings, notes). `pictures` come from `draw_pictures` and are
    the only unescaped text; `worst` is the table of the samples that became worse, by candidate. A run that ended early may
    lack the job, pictures or candidates.
    """
    by_name = {trial.candidate: trial for trial in trials}
    chosen = by_name.get(result.chosen or "")
    champion = result.champion if result.outcome == "promoted" else None
    return render(
        "page.html.j2",
        result=result,
        job=job,
        figures=_figures(result, by_name),
        pictures=pictures,
        confirmation_told=tell_confirmation(result),
        confirmed=confirmation_table(result),
        recovery_told=tell_recovery(result),
        parts=parts_table(result.recovery) if result.recovery else None,
        frontier=frontier_table(result.recovery) if result.recovery else None,
        answers=answers_table(result),
        memory=memory_table(result),
        verdicts=verdict_table(result, by_name.values(), has_links=True),
        proofs={candidate.proof for candidate in result.candidates},
        candidates=[
            _details(one, by_name.get(one.name), metric_of(result)) | {"worst": worst.get(one.name)}
            for one in result.candidates
        ],
        checks=checks_table(result.calibration),
        chosen=chosen,
        inventory=inventory_facts(result.inventory or {}),
        load_code=load_code(f"models:/{champion.name}@{champion.alias}") if champion else None,
        job_yaml=job_yaml(job, result) if job else None,
        about=replace(about, facts=[(word, text, _safe(address)) for word, text, address in about.facts]),
        next_steps=next_steps(result, job, about.run),
        disturbed=[one.name for one in result.candidates if any(latency.disturbance for latency in one.latencies)],
    )


def job_yaml(job: Job, result: Result) -> str:
    """Return the job as YAML that reproduces the run (see `Job.as_run`)."""
    name, version = (result.source.name, result.source.version) if result.source else ("", None)
    document = job.as_run(name, version, result.absent_engines)
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    return text


def _figures(result: Result, trials: Mapping[str, Trial]) -> list[tuple[str, str, str]]:
    """Return title, value and a note of four figures of the chosen candidate, confirmed ones if available."""
    chosen, baseline = result.winner, result.baseline
    if chosen is None or baseline is None:
        return []
    metric, told = baseline.metric, chosen.confirmed or chosen
    ratio, drop = told.speedup_p50, told.metric_drop
    trial = trials.get(chosen.name)
    # The baseline was measured in turn with each candidate; the speedup is based on this measurement.
    beside = trial.final_latency if trial else None
    base_ms = beside.baseline_p50_ms if beside else baseline.latency_p50_ms
    return [
        (
            "speedup, p50",
            formats.speedup(ratio.value if ratio else None),
            f"at least {formats.speedup(ratio.low)}" if ratio and ratio.low is not None else "",
        ),
        (
            f"drop of {metric}",
            formats.metric_drop(drop.value if drop else None, metric),
            f"at most {formats.metric_drop(drop.high, metric)}" if drop and drop.high is not None else "",
        ),
        (
            "latency, p50",
            f"{formats.milliseconds(told.latency_p50_ms)} ms",
            f"baseline {formats.milliseconds(base_ms)} ms in {baseline.engine}",
        ),
        (
            "size",
            f"{formats.megabytes(chosen.size_bytes)} MB",
            f"baseline {formats.megabytes(baseline.size_bytes)} MB",
        ),
    ]


def _details(candidate: CandidateResult, trial: Trial | None, metric: str) -> dict[str, Any]:
    """Return the content of a candidate's expandable details."""
    against = failing(candidate.verdicts)
    holding = len(candidate.verdicts) - len(against)
    summary = f"{holding} of {len(candidate.verdicts)} gates hold" if candidate.verdicts else "not judged"
    return {
        "result": candidate,
        "outcome": shown_outcome(candidate),
        "summary": candidate.refusal.kind if candidate.refusal else summary,
        "flips": tell_flips(candidate),
        "gates": gates_table(candidate.name, candidate.verdicts, metric),
        "slices": slices_table(candidate, metric),
        "nodes": nodes_table(candidate.name, trial.coverage) if trial and trial.coverage else None,
        "latencies": latencies_table(candidate.name, trial.latencies if trial else ()),
        "measured": measured_facts(trial.latency, trial.beside_fp16, candidate.cost) if trial and trial.latency else [],
        "made": _made(trial, trial.variant) if trial and trial.variant else [],
    }


def _made(trial: Trial, variant: Variant) -> list[tuple[str, object]]:
    """Return what the pass changed, remarks, what ran in which kernels, and what fixed ranges clip most."""
    facts: list[tuple[str, object]] = [*variant.changes.items(), *(("note", note) for note in variant.notes)]
    if trial.coverage:
        facts += coverage_facts(trial.coverage)
    if trial.saturation and trial.saturation.worst:
        worst = [tensor for tensor in trial.saturation.tensors[:SHOWN_TENSORS] if tensor.share]
        told = "; ".join(f"{percent(tensor.share)} of {tensor.place}" for tensor in worst) or "no value"
        facts.append(("largest saturation", f"{told}, of {trial.saturation.samples} samples"))
    return [*facts, ("sha256", variant.digest)]


def _safe(address: str) -> str:
    """Return an address that is safe to link, else "", which shows the text alone: `javascript:` must never become a link."""
    return address if urlsplit(address).scheme in ("http", "https", "") else ""
