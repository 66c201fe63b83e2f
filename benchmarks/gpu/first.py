"""First contact with a GPU: ceilings, then every form of every seeded model, by PyTorch alone, useful after any time.

As many forms are compiled at once as the processors allow, and timed when no compiler runs. Each figure is in the file as soon
as it is there; the next call measures what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from gpu.apart import apart, each_apart
from gpu.forms import (
    RECIPES,
    TARGET,
    compile_form,
    describe_package,
    export_program,
    relative_error,
)
from gpu.host_compiler import choose_compiler
from gpu.record import REFUSED, Results
from gpu.seeded import MODELS, Seeded, small
from gpu.session import CEILINGS, Check, Options, begin, end, measure_limits, refusal
from gpu.turns import measure_turns
from tasks.measure.inventory import usable_cores
from validators.errors import QuantgateError

REFERENCE = "bf16"
BATCHES = (1, 8, 32, 128)
_FIRST = (REFERENCE, "fp16", "fp8-amax-pc", "int4-g128-rtn")
# INT8 is later: its compiler also times kernels, for a minute or two.
_SECOND = ("int8-dynamic-pc",)
# The first ones of all models, then those of the next group.
FORMS = (_FIRST, _SECOND, tuple(label for label in RECIPES if label not in _FIRST + _SECOND))
# A compiler computes with one processor, and starts others for moments.
_PROCESSORS_A_COMPILER = 2
# Samples of the request that forms are compiled for, and that their answers are compared on.
_EXAMPLES = 32


def run_first(options: Options, results: Results, say: Callable[[str], None]) -> int:
    """Measure what is missing; return how many figures the time did not reach for."""
    check = Check(options, results, say)
    part = begin(check, (CEILINGS, TARGET))
    part["compiler"] = choose_compiler()
    at_once = max(2, usable_cores() // _PROCESSORS_A_COMPILER)
    wanted = wanted_forms(check)
    models = {model.name: model for model, _ in wanted}
    longest = 1.0
    with ThreadPoolExecutor(at_once) as pool:
        # On the processor, while the GPU's ceilings are measured.
        programs = {model: pool.submit(_export, check, models[model]) for model in models}
        measure_limits(check)
        for start in range(0, len(wanted), at_once):
            group = wanted[start : start + at_once]
            if check.seconds_left < longest:
                check.left += sum(len(_missing(check, *one)) for one in group)
                continue
            begun = time.monotonic()
            made = [pool.submit(_make, check, model, label, programs[model.name]) for model, label in group]
            artifacts = [_artifact(check, *one, future) for one, future in zip(group, made, strict=True)]
            for (model, label), artifact in zip(group, artifacts, strict=True):
                _time(check, model, label, artifact)
            longest = max(longest, time.monotonic() - begun)
            if not any("p50_ms" in cell for cell in results.figures["cells"].values()):
                say("none of the first forms could be timed: stopped, to keep the machine's time")
                check.left += sum(len(_missing(check, *one)) for one in wanted[start + at_once :])
                break
    return end(check, part)


def wanted_forms(check: Check) -> Sequence[tuple[Seeded, str]]:
    """Return the forms that lack a figure in the order of their value; of each model the one it is compared with is first."""
    models = [model for model in MODELS if model.name in check.options.models]
    if check.options.rehearsal:
        models = [small(model) for model in models]
    wanted = []
    for forms in FORMS:
        for model in models:
            for label in forms:
                if label in (check.options.forms or forms) and _is_wanted(check, model, label):
                    wanted += [(model, REFERENCE), (model, label)]
    return [one for index, one in enumerate(wanted) if one not in wanted[:index]]


def _is_wanted(check: Check, model: Seeded, label: str) -> bool:
    """Return True if a cell is missing, or a form that was timed was not compared with the float model."""
    known = check.results.figures["artifacts"].get(_key(model, label), {REFUSED: {}})
    return bool(_missing(check, model, label)) or (REFUSED not in known and not _is_described(check, model, label))


def _is_described(check: Check, model: Seeded, label: str) -> bool:
    known = check.results.figures["artifacts"].get(_key(model, label), {})
    return "relative_error" in known and "coverage" in known and not check.options.again


def _missing(check: Check, model: Seeded, label: str) -> list[int]:
    """Return the batch sizes without a figure."""
    batches = check.options.batches or BATCHES
    if check.options.again:
        return list(batches)
    return [batch for batch in batches if not check.results.has("cells", _key(model, label, batch))]


def _key(model: Seeded, label: str, batch: int | None = None) -> str:
    return "/".join([TARGET, model.name, *([f"b{batch}"] if batch else []), label])


def _export(check: Check, model: Seeded) -> None:
    folder = check.options.work / "first" / model.name
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "program.pt2").exists():
        # With sequences of one token alone their length would be a constant.
        axes = ("input_ids", "attention_mask") if model.tokens > 1 else ()
        export_program(model.build, model.request(_EXAMPLES), axes, folder / "program.pt2")


def _make(check: Check, model: Seeded, label: str, program: Future[None]) -> dict[str, Any]:
    """Return what the package of a form is; compile it unless it is there from an earlier call."""
    program.result()
    folder, request, device = check.options.work / "first" / model.name, model.request(_EXAMPLES), check.options.device
    package = folder / f"{label}.pt2"
    told = {} if package.exists() else compile_form(label, folder / "program.pt2", request, folder, device)
    if _is_described(check, model, label):
        return {}
    about = {"compile_seconds": told.get("seconds"), "changes": told.get("changes")}
    try:
        about["relative_error"] = apart(relative_error, model.build, package, request, device, seconds=300.0)
        about |= describe_package(label, package, request, device)
    except Exception as error:  # of any kind: it may be timed all the same
        about["not_described"] = refusal(error)[REFUSED]
    return about


def _artifact(check: Check, model: Seeded, label: str, made: Future[dict[str, Any]]) -> dict[str, Any]:
    """Add what a form is to the file, with its model; return what the file has of it, or why there is none now."""
    try:
        found = made.result()
    except Exception as error:
        found = refusal(error)
    if found:
        if not check.results.has("models", model.name):
            check.results.put("models", model.name, model.described())
        check.add("artifacts", _key(model, label), found)
    return found


def _time(check: Check, model: Seeded, label: str, artifact: dict[str, Any]) -> None:
    """Add the cells of a form, each as soon as it is there; launched one by one where no graph can be captured."""
    batches = _missing(check, model, label)
    if REFUSED in artifact:
        failed = dict.fromkeys(batches, artifact[REFUSED])
    else:
        failed = _turns(check, model, label, batches, graphs=True) if batches else {}
        failed = _turns(check, model, label, list(failed), graphs=False) if failed else {}
    for batch, reason in failed.items():
        check.add("cells", _key(model, label, batch), {REFUSED: reason})


def _turns(check: Check, model: Seeded, label: str, batches: list[int], *, graphs: bool) -> dict[int, dict[str, str]]:
    """Add the cells of these batch sizes that can be timed; return why the others cannot."""
    folder = check.options.work / "first" / model.name
    packages = [folder / f"{name}.pt2" for name in (REFERENCE, label)]
    requests = {batch: model.request(batch) for batch in batches}
    failed: dict[int, dict[str, str]] = {}
    left = list(batches)
    try:
        for batch, cell in each_apart(
            measure_turns, *packages, requests, check.options.block_seconds, graphs, seconds=300.0
        ):
            left.remove(batch)
            if isinstance(cell, Exception):
                failed[batch] = refusal(cell)[REFUSED]
            else:
                check.add("cells", _key(model, label, batch), {"batch_size": batch, "against": REFERENCE} | cell)
    except QuantgateError as error:
        failed |= dict.fromkeys(left, refusal(error)[REFUSED])
    return failed
