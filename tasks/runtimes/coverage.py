"""Coverage: multiply-accumulates and time by kernel and precision, read from the runtime and never from the file."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import onnx

from tasks.runtimes.kernel_times import kernel_events, profile, time_kernels
from tasks.runtimes.kernels import PROFILED, Kernel, kernel_of, write_kernels
from tasks.runtimes.macs import BLOCKED_DOMAIN, count_macs
from tasks.runtimes.unfused import CONVERSIONS, find_unfused
from validators.records.measurements import UNNAMED, Coverage, KernelProfile, KernelTime, MultipliedNode
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays
from validators.targets import facts_of_provider
from validators.untrusted.external_data import graphs_of

# Conversions between kernels that differ in type, layout or memory, inserted by a quantizer or the runtime.
GLUE = ("Cast", "Transpose", "ReorderInput", "ReorderOutput", "MemcpyToHost", "MemcpyFromHost")
# Their time includes the kernels in their bodies, which the profile lists too.
_WITH_BODIES = ("If", "Loop", "Scan")


def measure_coverage(
    model: Path,
    settings: SessionSettings,
    batch: Arrays,
    *,
    baseline: KernelProfile | None = None,
    folder: Path | None = None,
) -> Coverage:
    """Run a request several times under the profiler, and sum up multiply-accumulates and microseconds by kernel.

    `baseline` holds the kernels of the float model on the same request, to tell which ones quantization inserted. The list of
    all kernels is written into `folder`. Custom operators are not counted, since their multiply-accumulates are unknown. On a
    GPU there are no times: the profile only times the launch of a kernel, which returns long before the kernel ends.

    Raises:
        CandidateRefused: the runtime does not load or run the model.
    """
    if module := facts_of_provider(settings.provider).coverage:
        found: Coverage = import_module(module).measure(model, settings, batch, folder)
        return found
    graph, events = _profile(model, settings, batch, PROFILED)
    found = coverage_of(graph, events, settings.provider, PROFILED, baseline)
    if any(node.domain == BLOCKED_DOMAIN for part in graphs_of(graph) for node in part.node):
        # Float channels are padded to blocks of 8 or 16: the padding would be counted too.
        plain = _profile(model, settings, batch, 1, without=("NchwcTransformer",))
        found = _with_work(found, coverage_of(*plain, settings.provider, 1))
    if settings.on_gpu:
        found = replace(found, us_by_kernel={})
    return replace(found, kernels_path=write_kernels(folder, time_kernels(events, PROFILED)))


def profile_kernels(model: Path, settings: SessionSettings, batch: Arrays) -> KernelProfile:
    """Return the kernels of a request with their times, as `measure_coverage` sees them.

    Raises:
        CandidateRefused: the runtime does not load or run the model.
    """
    events = profile(model, settings.without_spinning(), batch, requests=PROFILED, content=with_names(model))
    return KernelProfile(time_kernels(events, PROFILED))


def coverage_of(
    graph: onnx.GraphProto,
    events: list[dict[str, Any]],
    provider: str,
    requests: int,
    baseline: KernelProfile | None = None,
) -> Coverage:
    """Return the coverage of a profile; `graph` is the graph that ran, `events` those of `requests` requests."""
    counted = [(name, macs, kernel_of(args, provider)) for name, args, macs in count_macs(graph, events)]
    ran = time_kernels(events, requests)
    by_name = {
        (name, args["op_name"], args["provider"]): kernel_of(args, provider) for name, _, args in kernel_events(events)
    }
    timed = [(kernel, by_name[kernel.name, kernel.kind, kernel.provider]) for kernel in ran]
    timed = [(kernel, what) for kernel, what in timed if kernel.kind not in _WITH_BODIES]
    by_kernel: dict[str, float] = {}
    for kernel, what in timed:
        by_kernel[what.name] = by_kernel.get(what.name, 0.0) + kernel.microseconds
    unfused = frozenset(find_unfused(graph, provider))
    without_form = facts_of_provider(provider).without_form
    kernels = {what for _, what in timed}
    return replace(
        sum_up(counted, sorted({args["provider"] for _, _, args in kernel_events(events)}), requests),
        low_precision=tuple(sorted(kernel.name for kernel in kernels if kernel.is_low_precision)),
        half_precision=tuple(sorted(kernel.name for kernel in kernels if kernel.is_half)),
        us_by_kernel=by_kernel,
        unfused=tuple(kernel for kernel in ran if kernel.kind in CONVERSIONS and kernel.name in unfused),
        inserted=_inserted(ran, baseline.kernels) if baseline else (),
        without_form=tuple(sorted({what.name for _, _, what in counted} & without_form)),
    )


def _with_work(found: Coverage, plain: Coverage) -> Coverage:
    """Return the times of `found` with the multiply-accumulates of `plain`."""
    return replace(
        found,
        macs_by_kernel=plain.macs_by_kernel,
        float_nodes=plain.float_nodes,
        half_nodes=plain.half_nodes,
        products=plain.products,
        without_form=plain.without_form,
        low_precision=tuple(sorted({*found.low_precision, *plain.low_precision})),
        half_precision=tuple(sorted({*found.half_precision, *plain.half_precision})),
    )


def _inserted(ran: Iterable[KernelTime], before: Iterable[KernelTime]) -> tuple[KernelTime, ...]:
    """Return the conversions that a variant has in excess of the baseline: per kind, the slowest ones with new names."""
    before, ran = tuple(before), tuple(ran)
    known = {kernel.name for kernel in before}
    found: list[KernelTime] = []
    for kind in GLUE:
        ours, theirs = ([kernel for kernel in side if kernel.kind == kind] for side in (ran, before))
        new = sorted((kernel for kernel in ours if kernel.name not in known), key=lambda kernel: -kernel.microseconds)
        found += new[: max(0, len(ours) - len(theirs))]
    return tuple(found)


def _profile(
    model: Path, settings: SessionSettings, batch: Arrays, requests: int, *, without: tuple[str, ...] = ()
) -> tuple[onnx.GraphProto, list[dict[str, Any]]]:
    """Return the graph that ran, and the events of `requests` requests."""
    with tempfile.TemporaryDirectory() as folder:
        optimized = Path(folder, "optimized.onnx")
        events = profile(
            model,
            # Sessions of other candidates may run at the same time; spinning threads would compete with theirs.
            settings.without_spinning(),
            batch,
            requests=requests,
            optimized_model=optimized,
            without=without,
            content=with_names(model),
        )
        return onnx.load(optimized, load_external_data=False).graph, events


def with_names(model: Path) -> bytes | None:
    """Return the model with unique node names, by which the profile refers to nodes; None if its names are unique."""
    proto = onnx.load(model, load_external_data=False)
    seen: set[str] = set()
    changed = 0
    for node in [node for part in graphs_of(proto.graph) for node in part.node]:
        if not node.name or node.name in seen:
            changed += 1
            node.name = f"{node.name or node.op_type}/{changed}"
        seen.add(node.name)
    return proto.SerializeToString() if changed else None


def macs_as_written(model: Path, batch: Arrays) -> list[tuple[str, int]]:
    """Return the multiply-accumulates of the file's own nodes for a request, counted on ONNX Runtime's CPU provider.

    Raises:
        CandidateRefused: it does not load or run the model.
    """
    events = profile(model, SessionSettings.reference(1), batch, as_written=True)
    graph = onnx.load(model, load_external_data=False).graph
    return [(name, macs) for name, _, macs in count_macs(graph, events)]


def sum_up(counted: Sequence[tuple[str, int, Kernel]], providers: Iterable[str], requests: int = 1) -> Coverage:
    """Return the coverage of (node, MACs, kernel) over `requests` requests; a kernel `UNNAMED` has unknown precision."""
    by_kernel: Counter[str] = Counter()
    in_float: Counter[str] = Counter()
    in_half: Counter[str] = Counter()
    by_node: Counter[tuple[str, str]] = Counter()
    for name, macs, kernel in counted:
        by_kernel[kernel.name] += macs
        by_node[name, kernel.name] += macs
        if not kernel.is_low_precision and kernel.name != UNNAMED:
            (in_half if kernel.is_half else in_float)[name] += macs
    kernels = [kernel for _, macs, kernel in counted if macs]
    return Coverage(
        macs_by_kernel={name: macs // requests for name, macs in by_kernel.items()},
        low_precision=tuple(sorted({kernel.name for kernel in kernels if kernel.is_low_precision})),
        half_precision=tuple(sorted({kernel.name for kernel in kernels if kernel.is_half})),
        float_nodes=tuple(name for name, macs in in_float.most_common() if macs),
        half_nodes=tuple(name for name, macs in in_half.most_common() if macs),
        providers=tuple(providers),
        products=tuple(MultipliedNode(*node, macs // requests) for node, macs in by_node.items() if macs),
    )
