"""Runs of models of packages from the jobs that `quantgate init` writes: minutes, memory, verdict, speedup, changed lines.

    python benchmarks/real_models.py --state ~/quantgate-benchmark

Each model is used as a package ships it. Its data are files in the folder of the job, under the names that `init` writes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer
from figures import earlier, save
from jobs import QUANTGATE, candidates_of, run_job
from models.real import MODELS, Change, RealModel

from validators.plain_text import markdown_table

MOST_CHANGES = 2
PROBED = re.compile(r"([0-9.]+)x in a ")


def main(
    state: Annotated[Path, typer.Option(help="Folder of models, data and runs.")],
    models: Annotated[
        list[str] | None, typer.Option("--model", help="Models to run, beside figures kept of others.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the file of figures.")] = "real_models",
    key: Annotated[
        list[str] | None, typer.Option(help="Top-level line of each job, in place of its own: 'target: openvino'.")
    ] = None,
) -> None:
    """Run each model and write the figures."""
    state = state.resolve()
    os.environ |= {"MLFLOW_TRACKING_URI": f"sqlite:///{state / 'mlflow.db'}", "QUANTGATE_STATE": str(state / "state")}
    found: dict[str, Any] = earlier(name).get("models", {}) if models else {}
    for model in models or list(MODELS):
        found[model] = _run(state, model, MODELS[model], key or [])
        print(f"{model}: {found[model]}", flush=True)
        ordered = {one: found[one] for one in MODELS if one in found}
        save(name, {"keys": key or [], "models": ordered}, quiet=True)
    print(table(found))


def changed(job: str, changes: tuple[Change, ...]) -> str:
    """Return the text of a job with each change made in one line.

    >>> changed("metric: r2  # CHECK\\nname: a\\n", (("metric:", "metric: mae"), ("", "b: 1")))
    'metric: mae\\nname: a\\nb: 1\\n'
    """
    lines = job.splitlines()
    for old, new in changes:
        if not old:
            lines.append(new)
            continue
        (place,) = (number for number, line in enumerate(lines) if line.strip().startswith(old))
        lines[place] = " " * (len(lines[place]) - len(lines[place].lstrip())) + new
    return "\n".join(lines) + "\n"


def with_keys(job: str, keys: list[str]) -> str:
    r"""Return the text of a job with lines of top-level keys in place of what it has under these keys.

    >>> with_keys("target: a\ncandidates:\n  - b\nmetric: c\n", ["candidates: [d]"])
    'target: a\nmetric: c\ncandidates: [d]\n'
    """
    for line in keys:
        job = re.sub(rf"^{line.split(':')[0]}:.*\n(?:[ #].*\n)*", "", job, flags=re.MULTILINE)
    return "\n".join([job.rstrip("\n"), *keys]) + "\n"


def _run(state: Path, name: str, model: RealModel, keys: list[str]) -> dict[str, Any]:
    lines = model.changes
    if len(lines) > MOST_CHANGES:
        raise SystemExit(f"{name} changes more than {MOST_CHANGES} lines")
    folder = state / "real-models" / name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(state / "state" / "store", ignore_errors=True)
    source = model.build(state, folder)
    # A file is named relative to its job.
    source = Path(source).name if Path(source).parent == folder else source
    job = folder / "job.yaml"
    job.unlink(missing_ok=True)
    subprocess.run([*QUANTGATE, "init", source, "--out", job.name], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    job.write_text(with_keys(changed(job.read_text(encoding="utf-8"), lines), keys), encoding="utf-8")
    result, seconds, code = run_job(folder, "--no-promote")
    facts = {"kind": model.kind, "minutes": round(seconds / 60, 1), "exit": code}
    changes = {"changed": [new for _, new in lines]}
    if not result:
        return facts | {"outcome": "error", "reason": (folder / "log.txt").read_text()[-1000:]} | changes
    return facts | _figures(result) | changes


def _figures(result: dict[str, Any]) -> dict[str, Any]:
    footprint = result["footprint"]
    chosen = next((one for one in result["candidates"] if one["name"] == result["chosen"]), None)
    return {
        "memory_mb": footprint and round(footprint["peak_memory_mb"]),
        "outcome": result["outcome"],
        "reason": result["reason"],
        "chosen": result["chosen"],
        "speedup": chosen and round(chosen["speedup_p50"]["value"], 2),
        "fastest": max(map(_speed, result["candidates"]), default=0.0) or None,
        "candidates": candidates_of(result),
    }


def _speed(candidate: dict[str, Any]) -> float:
    """Return the speedup of a candidate, also of one that a short measurement stopped; 0 if it was not timed."""
    if candidate["speedup_p50"]:
        return round(candidate["speedup_p50"]["value"], 2)
    stopped = candidate["refusal"] and PROBED.match(candidate["refusal"]["reason"])
    return float(stopped[1]) if stopped else 0.0


def table(found: dict[str, Any]) -> str:
    """Return the figures as a Markdown table."""
    rows = []
    for name, one in found.items():
        fastest = f"at best {one['fastest']:.2f}x" if one.get("fastest") else ""
        speedup = f"{one['speedup']:.2f}x" if one.get("speedup") else fastest
        changes = "<br>".join(f"`{line}`" for line in one["changed"]) or "none"
        verdict = f"`{one['chosen']}`" if one.get("chosen") else one["outcome"]
        memory = f"{one['memory_mb']:,} MB" if one.get("memory_mb") else ""
        rows.append((name, one["kind"], str(one["minutes"]), memory, verdict, speedup, changes))
    return markdown_table(("model", "kind", "minutes", "memory", "verdict", "speedup", "changed lines"), rows)


if __name__ == "__main__":
    typer.run(main)
