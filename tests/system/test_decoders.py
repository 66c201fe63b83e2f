"""A decoder of the flavor `transformers` through a run with each target for decoders, up to a version that answers prompts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from driving import TESTS, Answer, environment, lend_both, run_jobs, write_job
from scipy.special import logsumexp
from tokenizers import Tokenizer

from tasks.engines.variants import session_settings
from tasks.evidence.original_models import load_decoder
from tasks.measure.continuations import Generator
from tasks.runtimes.runner import open_runner
from validators.job.candidate_name import decode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
# The extra `genai`, which `make test-rest` installs and `make test` does without.
for library in ("transformers", "onnxruntime_genai"):
    pytest.importorskip(library, reason="the extra genai is not installed")
TARGETS = ("ort-genai", "openvino-decoder")
INT8, INT4 = "int8-g32-rtn+kv8", "int4-g32-gptq+kv4"
MEASUREMENT = {
    "dims": {"sequence_length": 16, "new_tokens": [8, 1]},
    "launches": 1,
    "blocks": 3,
    "block_seconds": 0.02,
    "max_other_load": None,
}
CONSUMER = """
import json, sys
import mlflow, numpy as np
model = mlflow.pyfunc.load_model(sys.argv[1])
both = model.predict(["this is", "hello world"])
few = model.predict({"prompt": ["this is"], "new_tokens": 3})
streamed = list(model.predict_stream("this is"))
scores = model.predict({"input_ids": np.ones((2, 5), np.int64)})["logits"]
try:
    model.predict([""])
except ValueError as error:
    empty = str(error)
loaded = sorted({"tasks", "torch", "transformers"} & set(sys.modules))
print(json.dumps([both, few, streamed, list(scores.shape), empty, loaded]))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data files and a state folder whose registry has decoders."""
    folder = tmp_path_factory.mktemp("decoder")
    lend_both(folder / "state")
    command = [sys.executable, "-W", "ignore", str(TESTS / "decoder_user.py"), str(folder)]
    told = environment(folder / "state", HF_HUB_OFFLINE="1")
    done = subprocess.run(command, env=told, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


LOOSE = {"max_drop": 0.9, "min_speedup": None}


def make_call(place: Path, call: str, name: str, target: str = "ort-genai", **changes: Any) -> dict[str, object]:
    job = {
        "source": f"models:/{name}/1",
        "target": target,
        "candidates": [f"{recipe}@{target}" for recipe in (INT8, INT4, "int8-static-mse-pc")],
        "data": {"calibration": "cal.npz", "evaluation": "ev.npz"},
        "metric": "perplexity",
        "gates": {"max_drop": 0.5, "min_speedup": None},
        "confirmation": {"share": 0},
        "measurement": MEASUREMENT,
    } | changes
    return {"name": call, "job": str(write_job(place / f"{call}.yaml", job))}


FUNCTIONS = """
def same(outputs, labels):
    return [float(told == wanted) for told, wanted in zip(outputs, labels, strict=True)]
"""


@pytest.fixture(scope="module")
def runs(place: Path) -> dict[str, Answer]:
    """All runs, in one process: it imports what they need once."""
    (place / "judging.py").write_text(FUNCTIONS, encoding="utf-8")
    measurement = MEASUREMENT | {"dims": {"sequence_length": [16, 32], "new_tokens": [8, 1]}}
    greedy = {"data": {"calibration": "greedy-cal.npz", "evaluation": "greedy-ev.npz"}, "gates": LOOSE}
    several = greedy | {"metric": "greedy_match", "measurement": MEASUREMENT | {"batch_sizes": [1, 3]}}
    own = greedy | {"metric": "judging:same", "metric_direction": "higher", "code": str(place)}

    # The champions are those of the first two.
    stays = {"promote": False}

    def int8(target: str) -> dict[str, Any]:
        return {"candidates": [f"{INT8}@{target}"]}

    # INT4 that loses too much for its gate, which other forms of some weights meet.
    gates = {"max_drop": 0.0105, "min_speedup": None}
    searched = {"candidates": ["int4-g128-rtn@ort-genai"], "objective": "size", "gates": gates}

    calls = [
        *(make_call(place, f"champion-{target}", "lm", target, measurement=measurement) for target in TARGETS),
        make_call(place, "greedy", "lm", **several, **int8("ort-genai")) | stays,
        *(make_call(place, f"function-{target}", "lm", target, **own, **int8(target)) | stays for target in TARGETS),
        make_call(place, "search", "lm", **searched) | stays,
    ]
    return run_jobs(place / "state", place / "run", calls, plain=True, QUANTGATE_ALLOWED_HOOKS=f"judging:*@{place}")


@pytest.mark.parametrize("target", TARGETS)
def test_decoder_becomes_a_champion_that_answers_prompts(place: Path, runs: dict[str, Answer], target: str) -> None:
    answer = runs[f"champion-{target}"]
    assert answer.code == 0 and answer.result is not None, answer.said
    assert answer.result["outcome"] == "promoted"
    with np.load(place / "told.npz") as told:
        assert answer.result["baseline"]["value"] == pytest.approx(float(told["perplexity"]), rel=1e-4)
        check_source(place, target, told)
    by_name = {one["name"]: one for one in answer.result["candidates"]}
    assert "fixed ranges" in by_name[f"int8-static-mse-pc@{target}"]["refusal"]["reason"]
    winner = by_name[answer.result["chosen"]]
    verdicts = {one["gate"]: one for one in winner["verdicts"]}
    assert verdicts["coverage"]["value"] == 1.0
    # Rounding shows, and is no other model.
    assert 0 < abs(verdicts["drop"]["value"]) < 0.5
    times = {(one["dims"]["sequence_length"], one["dims"]["new_tokens"]): one["p50_ms"] for one in winner["latencies"]}
    assert sorted(times) == [(16, 1), (16, 8), (32, 1), (32, 8)] and winner["latency_p50_ms"] == times[16, 8]
    check_bytes(answer.result, winner)
    # The same tokens as the baseline for a while, and not for ever.
    assert 0 < winner["agreement"]["value"] < 1

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CONSUMER, f"models:/lm-quantized@champion-{target}"],
        env=environment(place / "state", MLFLOW_TRACKING_URI=f"sqlite:///{place / 'state' / 'mlflow.db'}"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    both, few, streamed, shape, empty, loaded = json.loads(done.stdout.splitlines()[-1])
    # The answer to the second prompt may end at once.
    assert len(both) == 2 and "".join(streamed) == both[0]
    assert few[0] and both[0].startswith(few[0]) and len(few[0]) < len(both[0])
    assert shape == [2, 5, 300] and "found an empty prompt" in empty
    assert loaded == []
    # The program of the version's own page, where its files are.
    page = promoted(place, winner["name"]).parents[1] / "README.md"
    programs = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (program,) = [text for text in programs if "mlflow" not in text]
    code = program.replace("your prompt", "this is")
    ran = subprocess.run([sys.executable, "-c", code], cwd=page.parent, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    # Random tokens are no whole characters: onnxruntime-genai shows a text differently from its tokens one by one.
    assert both[0] in ran.stdout if target == "openvino-decoder" else ran.stdout.startswith("this is")


def test_search_finds_forms_of_weights_that_pass(runs: dict[str, Answer]) -> None:
    answer = runs["search"]
    assert answer.result is not None, answer.said
    by_name = {one["name"]: one for one in answer.result["candidates"]}
    recovery = answer.result["recovery"]
    assert recovery["candidate"] == "int4-g128-rtn@ort-genai" and recovery["recovered"], answer.said
    plain, found = by_name[recovery["candidate"]], by_name[recovery["recovered"]]
    # A champion that is smaller stays; the forms pass the gate that the plain candidate does not.
    outcomes = [next(one for one in each["verdicts"] if one["gate"] == "drop")["outcome"] for each in (plain, found)]
    assert outcomes == ["inconclusive", "pass"]
    assert recovery["cost_unit"] == "bytes" and recovery["attempts"] <= 6
    (point,) = (point for point in recovery["frontier"] if point["candidate"] == found["name"])
    # Codes and scales are all that the files differ in, but for attributes and the names of constants.
    assert found["size_bytes"] - plain["size_bytes"] == pytest.approx(point["cost"], abs=1000)
    assert {part["form"] for part in recovery["parts"]} - {""} <= {"int4-g64", "int4-g32", "int8-g64", "int8-g32"}


def test_greedy_match_judges_answers_that_are_known(runs: dict[str, Answer]) -> None:
    """Labels are what transformers answers, but for every fourth, whose last token is another."""
    answer = runs["greedy"]
    assert answer.result is not None, answer.said
    assert answer.result["baseline"]["value"] == 0.75
    (found,) = answer.result["candidates"]
    (drop,) = [one for one in found["verdicts"] if one["gate"] == "drop"]
    # INT8 of a small random model changes some answers, and not all.
    assert 0 < drop["value"] < 0.75
    # Several prompts at a time are a request of their own.
    points = {(one["batch_size"], one["dims"]["new_tokens"]) for one in found["latencies"]}
    assert points == {(1, 8), (1, 1), (3, 8), (3, 1)}
    page = Path(answer.result["report"]).read_text(encoding="utf-8")
    p50 = {(one["batch_size"], one["dims"]["new_tokens"]): one for one in found["latencies"]}
    # Making ready for an answer takes longer than all tokens of such a small model; then there may be no row.
    shown = [
        batch
        for batch in (1, 3)
        if all(p50[batch, 8][one] > p50[batch, 1][one] for one in ("p50_ms", "baseline_p50_ms"))
    ]
    # The batch is named where there are several.
    assert len(shown) < 2 or all(f">16 + 8, batch {batch}, " in page for batch in shown)


@pytest.mark.parametrize("target", TARGETS)
def test_a_function_of_the_user_judges_answers_as_texts(place: Path, runs: dict[str, Answer], target: str) -> None:
    """Of transformers' own answers, whose labels differ in every fourth, as far as that shows in the text."""
    answer = runs[f"function-{target}"]
    assert answer.result is not None, answer.said
    source = next((place / "state" / "store" / "source").glob("*/decoder/tokenizer.json"))
    tokenizer, end = Tokenizer.from_file(str(source)), 1
    with np.load(place / "greedy-ev.npz") as archive:
        sides = archive["input_ids"][:, 16:], archive["label"][:, 16:]
    told, wanted = (
        [tokenizer.decode(list(takewhile(lambda token: token != end, row))) for row in side.tolist()] for side in sides
    )
    same = np.mean([ours == theirs for ours, theirs in zip(told, wanted, strict=True)])
    assert 0.75 <= same < 1 and answer.result["baseline"]["value"] == pytest.approx(same)
    (found,) = answer.result["candidates"]
    (drop,) = [one for one in found["verdicts"] if one["gate"] == "drop"]
    assert 0 < drop["value"] < 0.9


def check_bytes(result: dict[str, Any], winner: dict[str, Any]) -> None:
    """The graph's bytes are those of the architecture; the report tells speeds of both prompts."""
    base = result["baseline"]["decoder"]
    # Two layers of keys and values, in 2 heads of 32 floats.
    assert base["cache"] == 2 * 2 * 2 * 32 * 4 and base["context"] == 128
    # The winner's cache is in INT8 or INT4.
    assert winner["decoder"]["cache"] == base["cache"] // (4 if winner["name"].startswith(INT8) else 8)
    # 300 x 64 floats of the embedding are read by rows, those of the head in full.
    assert base["weights"] - base["read_weights"] == pytest.approx(300 * 64 * 4 + 2 * 128 * 16 * 4, abs=200)
    assert winner["decoder"]["weights"] < base["weights"] and base["weights"] <= result["baseline"]["size_bytes"]
    page = Path(result["report"]).read_text(encoding="utf-8")
    p50 = {(one["dims"]["sequence_length"], one["dims"]["new_tokens"]): one for one in winner["latencies"]}
    for length in (16, 32):
        # Making ready for an answer takes longer than all tokens of such a small model; then there may be no row.
        if all(p50[length, 8][one] > p50[length, 1][one] for one in ("p50_ms", "baseline_p50_ms")):
            assert 'id="answers"' in page and f">{length} + 8<" in page


def check_source(place: Path, target: str, told: Any) -> None:
    """The converted source scores and answers in the engine as transformers does, across the parts of the cache."""
    (model,) = (place / "state" / "store" / "source").glob("*/decoder/model.onnx")
    with np.load(place / "ev.npz") as archive:
        windows = archive["input_ids"]
    with open_runner(model, session_settings(decode(f"int8-g32-rtn@{target}"), 2)) as runner:
        (scores,) = runner.run({"input_ids": windows[:3]}, ["logits"])
        np.testing.assert_allclose(scores, told["logits"], atol=1e-3)
        np.testing.assert_array_equal(cast(Generator, runner).generate(windows[:3, :16], 8), told["answers"])


# Source, changes of the job, and words of the refusal.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("lm-mute", {}, "has no tokenizer.json"),
    ("lm-pickled", {}, "pytorch_model.bin"),
    ("lm-other", {}, "GPT2LMHeadModel"),
    ("lm", {"target": "ort-cpu", "candidates": "default", "measurement": {}}, "target: ort-genai"),
    ("lm", {"data": {"calibration": "long.npz", "evaluation": "long.npz"}}, "windows of 129 tokens"),
    ("lm", {"measurement": {"dims": {"sequence_length": 100, "new_tokens": 64}}}, "100 tokens and 64 that follow"),
    ("lm", {"measurement": {"dims": {"new_tokens": 0}}}, "measurement.dims.new_tokens"),
    ("lm", {"provider_options": {"a": "1"}}, "provider_options"),
]


@pytest.fixture(scope="module")
def refusals(place: Path) -> dict[str, Answer]:
    """The answers to all jobs of `REFUSED` in one process, by the words that each must say."""
    calls = [make_call(place, f"refused{i}", name, **changes) for i, (name, changes, _) in enumerate(REFUSED)]
    answers = run_jobs(place / "state", place / "refused", calls, plain=True)
    return {words: answers[f"refused{i}"] for i, (_, _, words) in enumerate(REFUSED)}


@pytest.mark.parametrize("words", [words for _, _, words in REFUSED])
def test_what_no_decoder_can_be_made_of_is_refused(refusals: dict[str, Answer], words: str) -> None:
    answer = refusals[words]
    assert answer.code == 2 and words in answer.said, answer.said[-3000:]


RECEIVER = """
import contextlib, io, json, sys
from pathlib import Path
import numpy as np, openvino as ov, openvino_genai as og
folder, windows = Path(sys.argv[1]), np.load(sys.argv[2])
code = (folder / "README.md").read_text().split("```python")[1].split("```")[0]
said = io.StringIO()
with contextlib.redirect_stdout(said):
    exec(code.replace('"."', "str(folder)").replace("your prompt", "this is"))
options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1", "KV_CACHE_PRECISION": "f32"}
scoring = og.ContinuousBatchingPipeline(str(folder), og.SchedulerConfig(), "CPU", options)
config = og.GenerationConfig()
config.max_new_tokens, config.echo, config.logprobs, config.do_sample = 1, True, 1, False
told = []
for number, row in enumerate(windows):
    handle = scoring.add_request(number, ov.Tensor(np.ascontiguousarray(row[None])), config)
    while scoring.has_non_finished_requests():
        scoring.step()
    # The first token is not predicted, and the last one is the answer's.
    told.append(next(iter(handle.read_all())).generated_log_probs[1 : len(row)])
print(json.dumps([float(np.exp(-np.mean(told))), said.getvalue()]))
"""


def test_openvino_genai_runs_the_champion_as_it_was_judged(place: Path, runs: dict[str, Answer]) -> None:
    pytest.importorskip("openvino_genai", reason="the extra receivers is not installed")
    assert runs["champion-openvino-decoder"].code == 0
    # Its graph is not the one that the other formats are read from.
    refused = export(place, "--gguf", str(place / "openvino"))
    assert refused.returncode == 2 and "one of ort-genai for --gguf" in refused.stderr
    exported = export(place, "--genai", str(place / "openvino"))
    assert exported.returncode == 0, exported.stderr
    (name,) = re.findall(r"exported (\S+@openvino-decoder)", exported.stdout)
    assert "the number of threads" in exported.stdout
    with np.load(place / "ev.npz") as archive:
        windows = archive["input_ids"][:8]
    np.save(place / "windows.npy", windows)
    command = [sys.executable, "-c", RECEIVER, str(place / "openvino"), str(place / "windows.npy")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    perplexity, text = json.loads(done.stdout.splitlines()[-1])
    variant = promoted(place, name)
    tokenizer = Tokenizer.from_file(str(variant.with_name("tokenizer.json")))
    prompt = np.array([tokenizer.encode("this is").ids])
    with open_runner(variant, session_settings(decode(name), 1)) as runner:
        (scores,) = runner.run({"input_ids": windows}, ["logits"])
        answered = cast(Generator, runner).generate(prompt, 1)
    likelihoods = scores - logsumexp(scores.astype(np.float64), axis=2, keepdims=True)
    told = np.take_along_axis(likelihoods[:, :-1], windows[:, 1:, None], axis=2)
    assert perplexity == pytest.approx(float(np.exp(-told.mean())), rel=0.005)
    # Answers of random weights part soon, and a token may be a part of a character.
    assert text.strip() and text.startswith(tokenizer.decode(answered[0, :1]).rstrip("\ufffd"))


def test_folders_of_decoders_are_judged_beside_recipes(place: Path, runs: dict[str, Answer]) -> None:
    """A folder with states gets the verdict of the champion that it was exported from; caches in INT8 are named."""
    pytest.importorskip("openvino_genai", reason="the extra receivers is not installed")
    given = []
    for target in TARGETS:
        assert runs[f"champion-{target}"].code == 0
        done = export(place, "--genai", str(place / f"theirs-{target}"), target=target)
        assert done.returncode == 0, done.stderr
        given.append({"name": "theirs", "file": f"theirs-{target}", "engine": target})
    call = make_call(place, "given", "lm", "cpu-decoder", candidates=[], given=given) | {"promote": False}
    answer = run_jobs(place / "state", place / "given", [call], plain=True)["given"]
    assert answer.result is not None, answer.said
    by_name = {one["name"]: one for one in answer.result["candidates"]}
    reason = by_name["int8-given-theirs@ort-genai"]["refusal"]["reason"]
    assert re.search(r"its input is past_key_values\.\d\.(key|value): u?int\d", reason), reason
    taken = by_name["int8-given-theirs@openvino-decoder"]
    assert taken["outcome"] == "passed", taken
    # Its cache is in float32 here.
    assert taken["metric_value"] == pytest.approx(chosen(runs["champion-openvino-decoder"])["metric_value"], rel=0.02)


def chosen(answer: Answer) -> dict[str, Any]:
    assert answer.result is not None
    return next(one for one in answer.result["candidates"] if one["name"] == answer.result["chosen"])


def export(place: Path, *arguments: str, target: str = "openvino-decoder") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flows.cli.app", "export", "lm", "--target", target, *arguments]
    return subprocess.run(
        command, env=environment(place / "state"), cwd=TESTS.parents[1], capture_output=True, text=True, check=False
    )


def promoted(place: Path, name: str) -> Path:
    """The graph of a promoted version in the registry."""
    for manifest in (place / "state" / "mlartifacts").rglob("manifest.json"):
        if json.loads(manifest.read_text())["candidate"] == name:
            return manifest.with_name("variant") / "model.onnx"
    raise AssertionError(f"no version of {name}")


@pytest.mark.parametrize("kind", ["Llama", "Qwen3", "Phi3", "Gemma2"])
def test_mapped_weights_give_the_answers_of_float32(kind: str, tmp_path: Path) -> None:
    """Also with constants that are no weights, which Gemma would round to the type of the file."""
    import torch
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=64,
        hidden_size=80,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        head_dim=20,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.15)
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    tokens = torch.arange(2, 50).reshape(2, 24)
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32").eval()
    with torch.no_grad():
        expected, found = (one(tokens, use_cache=False).logits for one in (whole, load_decoder(str(tmp_path))))
    assert torch.equal(found, expected) and found.dtype == torch.float32
