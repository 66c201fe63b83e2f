"""quantgate's choice of a decoder beside what its users would run instead: perplexity, tokens a second, memory and size.

    python benchmarks/decoders.py             # about 2 hours, 8 GB, on a machine that does nothing else; --again times anew
    python benchmarks/decoders.py --losses    # what more recipes lose, in 40 minutes: `decoders_losses.json`
    python benchmarks/decoders.py --rough     # each path on few windows in minutes: the figures are worth nothing

SmolLM2-135M-Instruct on Wikipedia articles. Its weights were stored in 4 bits: the gains of its norms are folded into them
first, so that they lie on no grid. Rivals (`decoder_rivals.py`) are made of the same logged model. All are judged by the same
gate through their cache, beside the float32 graph in `onnxruntime-genai`; each then takes turns with the choice on the same
prompts, one process each: whole answers, and the first token alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from figures import earlier, save
from jobs import state_of

if TYPE_CHECKING:
    from variants_compare import Bench

    from validators.job.job import Job
    from validators.records.latencies import Latency
    from validators.records.run import Trial, Variant

NAME, WINDOW, WINDOWS, CALIBRATION = "smollm2-135m", 256, 16, 64
PROMPTS, ANSWER, LAUNCHES = (128, 512), 128, 4
# Starts of a recipe and the same without its method, which differ by a few percent at most.
PAIR_LAUNCHES = 12
# Starts of a rival that fails the gate, whose speed decides nothing.
FAILED_LAUNCHES = 2
# Of a rough run.
FEW_WINDOWS, SHORT_ANSWER, ROUGH_CANDIDATES = 8, 8, ("int8-g32-rtn@ort-genai",)
# Recipes of `--losses`: each method beside the same without it, and timed in turn with it.
COMPARED = (
    *("int8-dynamic-pc", "int8-dynamic-pc-smooth", "int8-dynamic-pc-rot"),
    *("int8-g32-rtn", "int8-g32-rtn+kv4", "int8-g64-rtn", "int8-g64-rtn-rot"),
    *(f"int4-g{size}-gptq-asym{rest}" for size in (64, 32) for rest in ("", "-rot")),
    *("int4-g64-gptq-asym-21db-rot", "int4-g64-gptq-asym-22db-rot"),
)


@dataclass(frozen=True)
class Plan:
    """Folder of the state, evaluation data, tokens of an answer, starts of a process, accepted load of others, candidates."""

    state: Path
    evaluation: str = "evaluation.npz"
    answer: int = ANSWER
    launches: int = LAUNCHES
    blocks: int = 1
    max_other_load: float | None = 0.15
    candidates: tuple[str, ...] | None = None


def main(
    again: Annotated[bool, typer.Option(help="Forget earlier latencies.")] = False,
    rough: Annotated[bool, typer.Option(help="Few windows, short answers, one start, on a busy machine.")] = False,
    losses: Annotated[bool, typer.Option(help="Only what each recipe of a longer list loses.")] = False,
    only: Annotated[
        str, typer.Option(help="With --losses, recipes that start so; the figures of others are kept.")
    ] = "",
) -> None:
    """Measure, and write `decoders.json`, or `decoders_losses.json`."""
    state = state_of("benchmark-decoders", again=again)
    if not (state / "evaluation.npz").exists():
        _register(state)
    plan = Plan(state)
    if rough:
        np.savez(state / "few.npz", input_ids=np.load(state / "evaluation.npz")["input_ids"][:FEW_WINDOWS])
        plan = Plan(state, "few.npz", SHORT_ANSWER, 1, blocks=3, max_other_load=None, candidates=ROUGH_CANDIDATES)
    # Prefect reads the environment when it is imported.
    from prefect import flow

    if losses:
        flow(name="losses")(_losses)(plan, only)
        return
    shape = flow(name="decoders")(_shape)
    figures: dict[str, Any] = {"rough": rough}
    for prompt in PROMPTS:
        figures[f"prompt {prompt}, answer {plan.answer}"] = shape(plan, prompt)
        save("decoders", figures)


def _register(state: Path) -> None:
    """Log the model as its users would, and write windows of articles."""
    import mlflow
    from models.language import language_pool

    from tasks.demo.language import hugging_face_model
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


def _losses(plan: Plan, only: str) -> None:
    """Write the loss of each compared recipe after it is measured, and its speed beside the same without the method."""
    from variants_compare import accuracy_trial, interval, judge_rivals, open_bench

    from tasks.trials.materials import variant_from_store
    from validators.job.candidate_name import decode

    bench = open_bench(_job(plan, PROMPTS[0]))
    rows: dict[str, Any] = earlier("decoders_losses").get("rows", {}) if only else {}
    made_of: dict[str, Variant] = {}
    for recipe in (one for one in COMPARED if one.startswith(only)):
        made, _ = variant_from_store(bench.run, decode(f"{recipe}@ort-genai"))
        if made.variant is None:
            rows[recipe] = {"refused": made.refusal and made.refusal.reason}
        else:
            (judged,) = judge_rivals(bench, (accuracy_trial(bench, made.variant),))
            rows[recipe] = {"drop": interval(judged.drop), "size_mb": made.variant.size_bytes / 1e6}
            made_of[recipe] = made.variant
            plain = made_of.get(recipe.removesuffix("-rot").removesuffix("-smooth"), made.variant)
            if plain is not made.variant:
                rows[recipe]["speed_beside_plain"] = interval(bench.in_turn(plain, made.variant, PAIR_LAUNCHES).speedup)
        print(recipe, rows[recipe], flush=True)
        save("decoders_losses", {"windows": WINDOWS, "perplexity": bench.baseline.value, "rows": rows})


def _shape(plan: Plan, prompt: int) -> dict[str, Any]:
    """Return the figures of the choice and of the rivals at one length of the prompt."""
    from decoder_rivals import RIVALS, know_engines, logged_model
    from variants_compare import choose, judge_rivals, open_bench

    know_engines()
    job = _job(plan, prompt)
    bench = open_bench(job)
    choice, rows = choose(bench)
    leader = choice.variant if choice and choice.variant else bench.source
    own, baseline = _speeds(choice.latencies) if choice else ({}, {})
    folder = plan.state / "rivals"
    model = logged_model(bench.run.source.uri, folder / "logged")
    trials = tuple(_rival_trial(bench, name, model, folder) for name in RIVALS)
    return {
        "choice": choice and choice.candidate,
        "leader": leader.candidate,
        "own": own,
        "baseline": baseline | {"metric": bench.baseline.value, "size_mb": bench.source.size_bytes / 1e6},
        "rows": rows,
        "rivals": [_rival_row(bench, leader, trial) for trial in judge_rivals(bench, trials)],
    }


def _job(plan: Plan, prompt: int) -> Job:
    """Return the job at one length of the prompt."""
    from validators.job.read_job import parse_job

    chosen_among = {"candidates": list(plan.candidates)} if plan.candidates else {}
    return parse_job(
        {
            "source": f"models:/{NAME}/1",
            "target": "ort-genai",
            "data": {"calibration": "calibration.npz", "evaluation": plan.evaluation},
            "metric": "perplexity",
            "gates": {"max_drop": 0.05},
            "confirmation": {"share": 0},
            **chosen_among,
            "measurement": {
                "dims": {"sequence_length": prompt, "new_tokens": [plan.answer, 1]},
                "launches": plan.launches,
                "blocks": plan.blocks,
                "block_count": 1,
                "max_other_load": plan.max_other_load,
                "patience_seconds": 600,
            },
        },
        base=plan.state,
    )


def _rival_trial(bench: Bench, name: str, model: Path, folder: Path) -> Trial:
    """Return a rival's trial up to its loss."""
    from decoder_engines import NEW_TOKENS
    from decoder_rivals import RIVALS, made
    from variants_compare import accuracy_trial

    from tasks.measure.inventory import usable_cores
    from tasks.ptq.graph.edits import model_bytes
    from validators.digests import digest_model
    from validators.records.run import SessionSettings, Variant

    path = made(name, model, folder)
    options = {NEW_TOKENS: str(ANSWER), **RIVALS[name].options}
    session = SessionSettings(RIVALS[name].provider, usable_cores(), provider_options=options)
    return accuracy_trial(bench, Variant(name, path, digest_model(path), model_bytes(path), session))


def _rival_row(bench: Bench, leader: Variant, trial: Trial) -> dict[str, Any]:
    """Return the figures of a judged rival, and unless it is a reference its speed in turn with the choice, or the baseline."""
    from decoder_rivals import RIVALS
    from variants_compare import interval, row

    told = row(trial)
    if trial.variant is None or RIVALS[trial.candidate].reference:
        return told
    launches = None if trial.outcome == "passed" else min(FAILED_LAUNCHES, bench.run.job.measurement.launches)
    latencies = [bench.in_turn(trial.variant, leader, launches, point) for point in (0, 1)]
    beside, own = _speeds(latencies)
    return told | own | {"leader_in_turn": beside, "leader_beside_it": interval(latencies[0].speedup)}


def _speeds(latencies: Sequence[Latency]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the speed and memory of the measured side, and of the one beside it, from whole answers and first tokens."""
    from validators.records.generation import generations_of

    answers = next(iter(generations_of(latencies)), None)
    whole, first = latencies
    memories = (whole.peak_memory_mb, whole.baseline_peak_memory_mb)
    wholes, firsts = (whole.p50_ms, whole.baseline_p50_ms), (first.p50_ms, first.baseline_p50_ms)
    sides = [
        {
            "whole_ms": wholes[side],
            "first_token_ms": firsts[side],
            "tokens_per_s": answers and 1000 / answers.each_ms[side],
            "peak_memory_mb": memories[side],
            "disturbance": whole.disturbance or first.disturbance,
        }
        for side in (0, 1)
    ]
    return sides[0], sides[1]


if __name__ == "__main__":
    typer.run(main)
