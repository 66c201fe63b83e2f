"""Sections shared by the model card of a version and its README, each as blocks of Markdown that a blank line separates.

Names of models, data, tensors and devices are external text: escaped and truncated, which also bounds the total length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tasks.reporting import formats
from tasks.reporting.details import gates_table, load_code
from tasks.serving.promoted import Promoted
from validators.gates.catalog import GATES, LATER_GATES
from validators.job.candidate_name import decode
from validators.job.recipe_words import describe
from validators.plain_text import as_markdown, markdown_table
from validators.records.generation import generations_of
from validators.records.latencies import Latency, point_labels
from validators.records.run import DataFile

LONGEST, LONGEST_ADDRESS = 160, 400
# Former champions that a card lists.
MOST_FORMER = 5
# Gates listed by name only, without a row for a number; gates on metrics that the job's own step logs get rows.
YES_OR_NO = frozenset(gate.name for gate in (*GATES, *LATER_GATES) if gate.unit == "yes or no")
POLICY = (
    "Another version of the runtime, or another device, than it was approved on is a warning when the version is loaded by "
    "MLflow, and an error with `QUANTGATE_MISMATCH=refuse` in the environment. A changed file, or a provider that would not "
    "run the model, is always an error."
)


def shown(text: str, most: int = LONGEST) -> str:
    """Escape external text for Markdown and truncate it to at most `most` characters, escapes included.

    >>> shown("a_b"), shown("long_name", 5)
    ('a\\\\_b', 'long…')
    """
    whole = as_markdown(text)
    if len(whole) <= most:
        return whole
    kept = text
    while len(as_markdown(kept)) > most - 1:
        kept = kept[: min(len(kept) - 1, most)]
    return f"{as_markdown(kept)}…"


def document(opening: Iterable[str], sections: Mapping[str, Iterable[str]], level: str) -> str:
    """Return Markdown: the opening blocks, then the blocks of each section under its heading; `level` is `##` or `###`."""
    headed = (block for heading, blocks in sections.items() for block in (f"{level} {heading}", *blocks))
    return "\n\n".join([*opening, *headed]) + "\n"


def code_block(*lines: str, language: str = "python") -> str:
    """Return lines of code as a block."""
    return "\n".join([f"```{language}", *lines, "```"])


def origin(promoted: Promoted) -> list[str]:
    """Render the source, recipe, artifact, promotion and sign-off."""
    source, approval = promoted.source, promoted.approval
    variant = approval.variant
    version = f", version {source.version}" if source.version else ""
    page = promoted.run_page
    link = f" ([its page]({page}))" if page and len(page) <= LONGEST_ADDRESS else ""
    rows = [
        ("Source", f"{shown(source.name)}{shown(version)} ({source.flavor}), sha256 `{source.digest}`"),
        ("Recipe", f"`{variant.candidate}`: {describe(decode(variant.candidate))}"),
        ("Artifact", f"sha256 `{variant.digest}`, {formats.megabytes(variant.size_bytes)} MB"),
        ("Promoted", f"{promoted.at}, by the run `{promoted.run_id}`{link}"),
    ]
    if approval.evidence:
        rows.append(
            ("Evidence", "`evidence.zip` among the artifacts; `quantgate verify` computes these verdicts again")
        )
    if said := approval.sign_off:
        rows.append(("Approved", shown(str(said))))
    return [markdown_table(("What", "Value"), rows)]


def device(promoted: Promoted) -> list[str]:
    """Render the device and runtimes for which the approval holds."""
    inventory = promoted.inventory
    gpu = inventory.gpu
    where = [f"{inventory.cpu}, {inventory.cores} cores, {' '.join(inventory.isa) or 'no integer extensions'}"]
    if gpu:
        where.insert(0, f"{gpu.name}, compute capability {gpu.compute_capability}, driver {gpu.driver}")
    versions = ", ".join(f"{name} {version}" for name, version in inventory.runtimes.items())
    return [
        f"Approved for `{promoted.job.target}` on {shown('; '.join(where))}, with {shown(versions)}, and for no other.",
        POLICY + ("" if gpu else _cap(promoted)),
        *_where_exact(promoted),
    ]


def unchecked_device(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a folder for a server says of the device, which the server does not check."""
    unchecked = f"the device is not checked; the variant was approved on {manifest['device']}"
    if needed := manifest.get("saturates_without"):
        return (
            unchecked,
            f"on an x86 processor with none of {', '.join(needed)} sums saturate, and its answers are others",
        )
    return (unchecked,)


def _where_exact(promoted: Promoted) -> list[str]:
    """Render on which processors the answers are those that were judged, for a version whose products are in INT8."""
    if needed := promoted.approval.variant.saturates_without:
        told = (
            f"On an x86 processor with none of {', '.join(f'`{one}`' for one in needed)}, sums of its INT8 products saturate "
            "and its answers are others: MLflow's loader refuses it there, unless `QUANTGATE_MISMATCH=allow` is set."
        )
        return [told]
    if promoted.job.portable:
        return ["It is portable: it gives the same answers on every processor."]
    return []


def _cap(promoted: Promoted) -> str:
    threads = promoted.manifest["session"]["threads"]
    return (
        f" The session has {threads or 'all'} threads; where fewer than {promoted.inventory.cores} cores are usable "
        "(affinity or CPU quota), MLflow's loader caps them at the usable cores. `QUANTGATE_THREADS` sets another number."
    )


def history(promoted: Promoted) -> list[str]:
    """Render the last champions before this one, and how each ended."""
    if not promoted.before:
        return ["The first champion of this model on this target."]
    rows = []
    for number, one in enumerate(promoted.before[:MOST_FORMER]):
        ended = promoted.at if number == 0 else promoted.before[number - 1].at
        gone = f"replaced {ended[:10]}"
        if mark := one.rolled_back:
            to = f"version {mark.to}" if mark.to else "the source"
            gone = f"rolled back to {to} {mark.at[:10]}" + (f": {shown(mark.reason, 60)}" if mark.reason else "")
        faster = f"{shown(one.speedup, 20)}x" if one.speedup else formats.NO_VALUE
        rows.append((one.version, f"`{shown(one.candidate, 80)}`", faster, one.at[:10] or formats.NO_VALUE, gone))
    more = len(promoted.before) - len(rows)
    table = markdown_table(("Version", "Recipe", "Speedup", "Promoted", "Then"), rows)
    return [table, f"{more} more before these."] if more else [table]


def verdicts(promoted: Promoted) -> list[str]:
    """Render every passed gate: those with a bound as rows, the others in a sentence."""
    trial = promoted.approval.trial
    metric = trial.accuracy.metric if trial.accuracy else ""
    bounded = [verdict for verdict in trial.verdicts if verdict.gate not in YES_OR_NO]
    others = sorted(verdict.gate for verdict in trial.verdicts if verdict.gate in YES_OR_NO)
    table = gates_table(trial.candidate, bounded, metric).without("Verdict", "Method", "Reason")
    return [
        table.markdown(lambda text: shown(text, 60)),
        f"All passed; so did {shown(', '.join(others))}.",
    ]


def figures(promoted: Promoted, points: int | None = None) -> list[str]:
    """Render metric, size and latency beside the source's, from selection and from confirmation.

    `points` limits the operating points to the first ones; None means all.
    """
    trial = promoted.approval.trial
    variant, accuracy, confirmed = promoted.approval.variant, trial.accuracy, trial.confirmed
    sizes = [formats.megabytes(size) for size in (variant.size_bytes, promoted.source_bytes)]
    rows: list[tuple[str, ...]] = [
        ("size", f"{sizes[0]} MB", f"{sizes[1]} MB", formats.speedup(variant.size_bytes / promoted.source_bytes))
    ]
    if accuracy:
        value = formats.metric_value(accuracy.value, accuracy.metric)
        rows.append((f"{shown(accuracy.metric, 60)}, {accuracy.n} rows that chose it", value, "", ""))
    if accuracy and confirmed:
        both = [formats.metric_value(one, accuracy.metric) for one in (confirmed.value, confirmed.baseline_value)]
        rows.append((f"{shown(accuracy.metric, 60)}, {confirmed.n} rows that confirmed it", *both, ""))
    for label, latency in list(zip(point_labels(trial.latencies), trial.latencies, strict=True))[:points]:
        rows.append(_latency(f"p50 latency at {shown(label, 60)}", latency))
    if confirmed and confirmed.latency:
        rows.append(_latency("p50 latency, confirmed", confirmed.latency))
    rows += _answers(promoted, points)
    engine = promoted.job.baseline_on(promoted.inventory)
    return [markdown_table(("Figure", "This", f"Source in {engine}", "Ratio"), rows)]


def _answers(promoted: Promoted, points: int | None) -> list[tuple[str, ...]]:
    """Return rows on the answers of a decoder: speed by length of the prompt, bytes read, and memory by length of the cache.

    `points` limits the prompts to the first ones, and leaves memory for the context alone.
    """
    ours, theirs = promoted.approval.variant.decoder, promoted.source.decoder
    answers = generations_of(promoted.approval.trial.latencies)
    rows: list[tuple[str, ...]] = []
    for answer in answers[:points]:
        prompt = "" if answer.prompt is None else f", prompt of {answer.prompt}"
        firsts, paces = answer.first_ms, answer.tokens_per_s
        told = [f"{formats.milliseconds(value)} ms" for value in firsts]
        rows.append((f"time to the first token{prompt}", *told, f"{formats.speedup(firsts[1] / firsts[0])} the speed"))
        told = [formats.significant(value) for value in paces]
        faster = f"{formats.speedup(paces[0] / paces[1])} the speed"
        rows.append((f"tokens a second after it, over {answer.new_tokens}", *told, faster))
        if ours and theirs and answer.prompt is not None:
            read = [formats.megabytes(answer.read_per_token(one)) for one in (ours, theirs)]
            rates = [formats.gigabytes(answer.bandwidth(one, side)) for side, one in enumerate((ours, theirs))]
            rows.append(("weights and cache read per token", *(f"{size} MB" for size in read), ""))
            rows.append(("memory bandwidth at that speed", *(f"{rate} GB/s" for rate in rates), ""))
    if ours and theirs:
        for length in ours.lengths[-1 if points else 0 :]:
            sizes = ours.memory(length), theirs.memory(length)
            cells = (f"{formats.megabytes(size)} MB" for size in sizes)
            rows.append((f"weights with a cache of {length} tokens", *cells, formats.speedup(sizes[0] / sizes[1])))
    return rows


def _latency(what: str, latency: Latency) -> tuple[str, str, str, str]:
    both = [f"{formats.milliseconds(value)} ms" for value in (latency.p50_ms, latency.baseline_p50_ms)]
    low = latency.speedup.low
    bound = f", at least {formats.speedup(low)}" if low is not None else ""
    return what, both[0], both[1], f"{formats.speedup(latency.speedup.value)} the speed{bound}"


def data(promoted: Promoted) -> list[str]:
    """Render the data that the variant was calibrated and judged on."""
    rows = (_file(role, file) for role, file in promoted.data.items())
    return [markdown_table(("Data", "File", "Samples", "sha256"), rows)]


def _file(role: str, file: DataFile) -> tuple[str, ...]:
    version = f" ({file.version})" if file.version else ""
    return role, shown(f"{file.uri or file.path.name}{version}"), str(file.rows), f"`{file.digest}`"


def limits(promoted: Promoted) -> list[str]:
    """Render what was not measured, and the limits of the measurements."""
    trial, job = promoted.approval.trial, promoted.job
    points = ", ".join(point_labels(trial.latencies)) or "no operating point"
    threads = promoted.manifest["session"]["threads"] or "all"
    lines = [
        "Other devices, other versions of the runtime, and other settings of the session were not measured.",
        f"Latency: one request at a time, {threads} threads, at {shown(points)} (b: samples a request); at "
        "no other size, and not under load.",
        f"Accuracy: on the evaluation data above alone, by {shown(trial.accuracy.metric, 60) if trial.accuracy else ''} of "
        "one output; samples unlike those were not judged.",
        _slices(promoted),
    ]
    if not trial.confirmed:
        lines.append("No samples were kept to confirm it: it was judged on those that chose it among the candidates.")
    if "traffic" not in promoted.data:
        lines.append("No traffic was given: the calibration data was held against the evaluation data.")
    if trial.saturation and (worst := trial.saturation.worst):
        lines.append(
            f"Its ranges are fixed: up to {formats.percent(worst.share)} % of the values of {shown(worst.tensor, 80)} lay "
            f"outside of them ({trial.saturation.samples} samples); of other inputs more may."
        )
    if job.gates.speedup_bound(job.target) is None:
        lines.append("The job asked for no speed: a faster one was not required.")
    lines += [f"{shown(latency.disturbance)}" for latency in trial.latencies if latency.disturbance]
    lines += [shown(note) for note in promoted.approval.variant.notes]
    return ["\n".join(f"- {line}" for line in lines)]


def _slices(promoted: Promoted) -> str:
    found, job = promoted.approval.trial.slices, promoted.job
    metric = promoted.approval.trial.accuracy.metric if promoted.approval.trial.accuracy else ""
    if not found:
        return "No groups of samples were named: a loss in one of them is seen in the mean alone."
    worst = max(found, key=lambda one: one.drop.value)
    told = (
        f"the worst of {len(found)} groups is {shown(worst.name, 80)}, {formats.metric_drop(worst.drop.value, metric)}"
    )
    bound = job.gates.max_slice_drop
    if bound is None:
        return f"Groups of samples were looked at and not judged: {told}."
    unsure = [one for one in found if one.drop.high is None or one.drop.high > bound]
    if unsure:
        return f"Groups of samples: {told}; of {len(unsure)} too few samples were there to tell ({shown(unsure[0].name, 80)})."
    return f"Groups of samples: {told}; groups that nobody named were not judged."


def load(promoted: Promoted) -> list[str]:
    """Render how to load the version without quantgate."""
    return [code_block(*load_code(promoted.uri).splitlines())]
