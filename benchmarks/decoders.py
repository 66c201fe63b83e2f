"""quantgate's choice of a decoder beside what onnxruntime-genai's own model builder writes: perplexity and tokens a second.

    python benchmarks/decoders.py     # 20 minutes and 4 GB, on a machine that does nothing else; --again times anew

SmolLM2-135M-Instruct on Wikipedia articles. Its weights were stored in 4 bits: the gains of its norms are folded into them
first, so that they lie on no grid. All are judged by the same gate through the cache of the library, and the choice answers the
same prompts in turn with each rival, one process each.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from calibration_figures import save

from tasks.run.settings import prepare_environment, state_folder

if TYPE_CHECKING:
    from validators.records.latencies import Latency

RESULTS = Path(__file__).parent / "results"
NAME, WINDOW, WINDOWS, CALIBRATION = "smollm2-135m", 256, 32, 64
PROMPTS, ANSWER = (128, 512), 128
# Arguments of the model builder beside its input and output: precision, and its own defaults.
BUILDS = {"builder, INT4": "int4", "builder, INT8": "int8"}


def main(
    results: Annotated[Path, typer.Option(help="Where the figures go.")] = RESULTS,
    again: Annotated[bool, typer.Option(help="Forget earlier latencies.")] = False,
) -> None:
    """Measure, and write `decoders.json`."""
    os.environ.setdefault("QUANTGATE_STATE", str(Path(".quantgate/benchmark-decoders").resolve()))
    state = state_folder()
    prepare_environment(state)
    if again:
        shutil.rmtree(state / "store" / "latency", ignore_errors=True)
    if not (state / "evaluation.npz").exists():
        _register(state)
    # Prefect reads the environment when it is imported.
    from prefect import flow

    shape = flow(name="decoders")(_shape)
    figures: dict[str, Any] = {}
    for prompt in PROMPTS:
        figures[f"prompt {prompt}, answer {ANSWER}"] = shape(state, prompt)
        save(results, "decoders", figures)


def _register(state: Path) -> None:
    """Log the model as its users would, and write windows of articles."""
    import mlflow
    from models.language import language_pool

    from tasks.demo.smollm import hugging_face_model
    from tasks.run.settings import artifact_location, tracking_uri

    model, tokenizer = hugging_face_model(state)
    uri = tracking_uri(state)
    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("models", artifact_location(uri)))
    with mlflow.start_run():
        mlflow.transformers.log_model(
            {"model": model, "tokenizer": tokenizer},
            name=NAME,
            task="text-generation",
            registered_model_name=NAME,
            pip_requirements=["transformers"],
        )
    pool = language_pool(state)
    (state / "language.onnx").unlink()
    np.savez(state / "calibration.npz", input_ids=pool.calibration[:CALIBRATION, :WINDOW])
    np.savez(state / "evaluation.npz", input_ids=pool.evaluation[:WINDOWS])


def _shape(state: Path, prompt: int) -> dict[str, Any]:
    """Return the figures of the choice and of the rivals at one length of the prompt."""
    from variants_compare import choose, open_bench, row

    from tasks.trials.measure_accuracy import Reference, measure_accuracy
    from tasks.trials.measure_latency import measure_latency
    from validators.job.read_job import parse_job
    from validators.records.measurements import Coverage
    from validators.records.run import Trial, Variant

    job = parse_job(
        {
            "source": f"models:/{NAME}/1",
            "target": "ort-genai",
            "data": {"calibration": "calibration.npz", "evaluation": "evaluation.npz"},
            "metric": "perplexity",
            "gates": {"max_drop": 0.05},
            "confirmation": {"share": 0},
            "measurement": {
                "dims": {"sequence_length": prompt, "new_tokens": [ANSWER, 1]},
                "launches": 4,
                "blocks": 1,
                "block_count": 1,
            },
        },
        base=state,
    )
    bench = open_bench(job)
    choice, rows = choose(bench)
    found: dict[str, Any] = {"choice": choice and choice.candidate, "baseline": bench.baseline.value, "rows": rows}
    for name, precision in BUILDS.items():
        path = _build(bench.run_inputs.source.uri, precision, state / "builder")
        session = bench.source.session
        size = sum(file.stat().st_size for file in path.parent.glob("model.onnx*"))
        variant = Variant(name, path, f"{precision} {bench.run_inputs.source.digest}", size, session)
        reference = Reference(bench.baseline, bench.source)
        accuracy, _ = measure_accuracy(
            bench.run, bench.run_inputs.evidence, bench.inventory, variant, reference, alone=True
        )
        trial = Trial(name, variant=variant, coverage=Coverage({}, (), (), (session.provider,)), accuracy=accuracy)
        timed = measure_latency(bench.run, bench.run_inputs, bench.inventory, trial)
        told = row(replace(timed, outcome="passed")) | {"generation": _told(timed.latencies)}
        if choice and choice.variant:
            told["choice_beside_it"] = bench.in_turn(variant, choice.variant).speedup.value
        found["rows"].append(told)
    if choice:
        found["generation"] = _told(choice.latencies)
    return found


def _told(latencies: Sequence[Latency]) -> str:
    from validators.records.generation import generations_of

    return "; ".join(map(str, generations_of(latencies)))


def _build(source: str, precision: str, folder: Path) -> Path:
    """Write the model builder's own form of the logged model."""
    import mlflow

    path = folder / precision / "model.onnx"
    if not path.exists():
        model = Path(mlflow.artifacts.download_artifacts(source, dst_path=str(folder / "logged")))
        weights, tokens = model / "model", model / "components" / "tokenizer"
        for file in tokens.iterdir():
            shutil.copy(file, weights)
        arguments = [
            "-i",
            str(weights),
            "-o",
            str(path.parent),
            "-p",
            precision,
            "-e",
            "cpu",
            "-c",
            str(folder / "cache"),
        ]
        subprocess.run([sys.executable, "-m", "onnxruntime_genai.models.builder", *arguments], check=True)
    return path


if __name__ == "__main__":
    typer.run(main)
