"""A promoted decoder for other programs: `quantgate export --genai`, `--gguf` and `--vllm`, each loaded by its receiver."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driving import TESTS, environment, lend_both, run_jobs, write_job
from llama_cpp import LlamaCpp
from numpy.typing import NDArray
from processors import HERE

from tasks.engines.genai.shipped.model import GenaiModel
from tasks.engines.openvino_decoder.shipped.model import OpenVinoDecoder
from tasks.ptq.graph.prepare import make_prepared
from tasks.ptq.weight_only.matmul_nbits import BlockWeights, quantize_weights
from tasks.serving.checkpoint.compressed_tensors import CompressedTensors
from tasks.serving.checkpoint.export import make_checkpoint
from tasks.serving.checkpoint.names import checkpoint_of
from tasks.serving.decoder.decoder_graph import read_decoder
from tasks.serving.decoder.matrices import BlockMatrix
from tasks.serving.gguf.blocks import allowed_difference, encode, kind_of
from tasks.serving.gguf.export import make_gguf, prove
from tasks.serving.gguf.llama import tensors_of
from validators.digests import digest_file
from validators.errors import JobError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
# The extras `genai` and `receivers`, which `make test-rest` installs and `make test` does without.
for library in ("transformers", "onnxruntime_genai", "gguf", "xllamacpp", "safetensors"):
    pytest.importorskip(library, reason="the extras genai and receivers are not installed")
CANDIDATE, VOCABULARY, CONTEXT = "int4-g32-gptq@ort-genai", 300, 128
# Words, numbers, marks, other scripts, spaces and lines.
TEXT = "Hello world, it's 12345 o'clock\n\n  and I'LL be naïve -- 東京 is 7.5 km   away.\r\n\tdon't"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a state folder whose registry has a promoted decoder of `CANDIDATE`."""
    folder = tmp_path_factory.mktemp("handoff")
    state = folder / "state"
    lend_both(state)
    command = [sys.executable, "-W", "ignore", str(TESTS / "decoder_user.py"), str(folder)]
    done = subprocess.run(
        command, env=environment(state, HF_HUB_OFFLINE="1"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    measurement = {"dims": {"sequence_length": 16, "new_tokens": 8}, "launches": 1, "blocks": 3, "block_seconds": 0.02}
    job: dict[str, object] = {
        "source": "models:/lm/1",
        "target": "ort-genai",
        "candidates": [CANDIDATE],
        "data": {"calibration": "cal.npz", "evaluation": "ev.npz"},
        "metric": "perplexity",
        "gates": {"max_drop": 0.5, "min_speedup": None},
        "confirmation": {"share": 0},
        "measurement": measurement | {"max_other_load": None},
    }
    call: dict[str, object] = {"name": "run", "job": str(write_job(folder / "job.yaml", job))}
    answer = run_jobs(state, folder / "run", [call], plain=True)["run"]
    assert answer.code == 0, answer.said[-3000:]
    return folder


def export(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flows.cli.app", "export", "lm", "--target", "ort-genai", *arguments]
    root = TESTS.parents[1]
    return subprocess.run(
        command, env=environment(place / "state"), capture_output=True, text=True, cwd=root, check=False
    )


def source_folder(place: Path) -> Path:
    (model,) = (place / "state" / "store" / "source").glob("*/decoder/model.onnx")
    return model.parent


def engine(folder: Path) -> GenaiModel:
    """The judged engine with the decoder of a folder."""
    return GenaiModel(folder / "model.onnx", 1, {"new_tokens": "8"})


def judged(folder: Path, windows: NDArray[Any]) -> NDArray[np.float64]:
    """Log-probabilities of all next tokens, by the judged engine."""
    scores = engine(folder).scores(windows).astype(np.float64)
    scores -= scores.max(axis=-1, keepdims=True)
    return np.asarray(scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True)))


def windows_of(place: Path, count: int) -> NDArray[Any]:
    with np.load(place / "ev.npz") as archive:
        return np.asarray(archive["input_ids"][:count])


def test_the_genai_folder_opens_as_it_is(place: Path) -> None:
    folder = place / "genai"
    done = export(place, "--genai", str(folder))
    assert done.returncode == 0, done.stderr
    assert f"exported {CANDIDATE}" in done.stdout and "not carried over: the number of threads" in done.stdout
    (manifest,) = (place / "state" / "mlartifacts").rglob("manifest.json")
    digests = json.loads(manifest.read_text())["files"]
    assert {name: digest_file(folder / name) for name in digests} == digests
    assert {path.name for path in folder.iterdir()} - digests.keys() == {"README.md", "quantgate.json"}
    # The program of the README, where the folder is.
    (program,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    code = program.replace("your prompt", "hello world")
    ran = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and ran.stdout.startswith("hello world"), ran.stderr


def test_llama_cpp_runs_the_champion_as_it_was_judged(place: Path) -> None:
    import gguf

    done = export(place, "--gguf", str(place / "gguf"))
    assert done.returncode == 0, done.stderr
    (file,) = (place / "gguf").glob("*.gguf")
    assert file.name == "lm-quantized-int4-g32-gptq.gguf"
    assert "not carried over: weights with float16 scales: the largest difference" in done.stdout
    assert "--cache-type-k q8_0" in (place / "gguf" / "README.md").read_text()
    (manifest,) = (place / "state" / "mlartifacts").rglob("manifest.json")
    fields = gguf.GGUFReader(file).fields
    assert fields["quantgate.candidate"].contents() == CANDIDATE
    assert gguf.LlamaFileType(fields["general.file_type"].contents()).name == "MOSTLY_Q4_0"
    llama = LlamaCpp(file, context=CONTEXT)
    windows = windows_of(place, 8)
    wanted = judged(manifest.parent / "variant", windows)
    found = np.array([llama.log_probabilities(window, VOCABULARY) for window in windows])
    perplexities = [float(np.exp(-mean_of(told, windows))) for told in (found, wanted)]
    assert perplexities[0] == pytest.approx(perplexities[1], rel=0.005)
    # Both engines round activations to 8 bits, each in its own way; another model would differ by whole nats.
    assert np.abs(found - wanted).mean() < 0.05
    answer = llama.ask("/completion", prompt="hello world", n_predict=12, temperature=0, ignore_eos=True)
    assert answer["tokens_predicted"] == 12 and answer["content"]
    assert answer["tokens_evaluated"] == len(llama.tokens("hello world"))


def mean_of(told: NDArray[np.float64], windows: NDArray[Any]) -> float:
    return float(np.take_along_axis(told[:, :-1], windows[:, 1:, None], axis=2).mean())


def test_a_float_decoder_gives_the_same_probabilities_and_texts(place: Path, tmp_path: Path) -> None:
    """Nothing rounds here, so that the order of rows, the angles and the norms show in every digit."""
    source = source_folder(place)
    made = make_gguf(source, tmp_path / "float.gguf", "lm", {})
    assert made.proof.difference == 0 and set(made.proof.kinds) == {"F32"}
    llama = LlamaCpp(made.path, context=CONTEXT)
    windows = windows_of(place, 2)
    found = np.array([llama.log_probabilities(window, VOCABULARY) for window in windows])
    np.testing.assert_allclose(found, judged(source, windows), atol=1e-3)
    with np.load(place / "told.npz") as told:  # by transformers
        for window, answer in zip(windows, told["answers"], strict=False):
            assert llama.generate(window[:16], 8) == answer.tolist()


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with float decoders of other kinds."""
    folder = tmp_path_factory.mktemp("more")
    command = [sys.executable, "-W", "ignore", str(TESTS / "more_decoders.py"), str(folder)]
    told = environment(folder / "state", HF_HUB_OFFLINE="1")
    done = subprocess.run(command, env=told, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("kind", ["llama-scaled", "mistral", "qwen2", "qwen3"])
def test_other_architectures_give_the_same_probabilities(more: Path, place: Path, tmp_path: Path, kind: str) -> None:
    """Scaled angles, biases, norms of heads and a tied embedding."""
    llama = LlamaCpp(make_gguf(more / kind, tmp_path / "lm.gguf", kind, {}).path, context=CONTEXT)
    windows = windows_of(place, 1)
    found = llama.log_probabilities(windows[0], VOCABULARY)
    np.testing.assert_allclose(found, judged(more / kind, windows)[0], atol=1e-3)


@pytest.mark.parametrize("kind", ["llama-scaled", "mistral", "qwen2", "qwen3"])
def test_other_architectures_have_the_same_scores_in_openvino(more: Path, place: Path, kind: str) -> None:
    options = {"new_tokens": "8", "INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    found = OpenVinoDecoder(more / kind / "model.onnx", 1, options).scores(windows_of(place, 2))
    np.testing.assert_allclose(found, engine(more / kind).scores(windows_of(place, 2)), atol=1e-4)


@pytest.mark.parametrize(
    ("source", "weights", "kind"),
    [
        ("lm", BlockWeights("rtn", 32, symmetric=False), "Q4_1"),
        ("lm", BlockWeights("hqq", 32, symmetric=False), "Q4_1"),
        ("lm", BlockWeights("rtn", 32, symmetric=True, bits=8), "Q8_0"),
        # The tied embedding has 8 bits.
        ("llama-scaled", BlockWeights("rtn", 32, symmetric=True), "Q8_0"),
    ],
)
def test_other_blocks_are_the_judged_ones(
    place: Path, more: Path, tmp_path: Path, source: str, weights: BlockWeights, kind: str
) -> None:
    folder = source_folder(place) if source == "lm" else more / source
    shutil.copytree(folder, tmp_path / "variant", ignore=shutil.ignore_patterns("model.onnx*"))
    (tmp_path / "prepared").mkdir()
    prepared = make_prepared(folder / "model.onnx", (), tmp_path / "prepared")
    quantize_weights(prepared, tmp_path / "variant" / "model.onnx", weights)
    made = make_gguf(tmp_path / "variant", tmp_path / "lm.gguf", "lm", {})
    assert kind in made.proof.kinds and 0 < made.proof.difference < 1e-3
    windows = windows_of(place, 4)
    llama = LlamaCpp(made.path, context=CONTEXT)
    found = np.array([llama.log_probabilities(window, VOCABULARY) for window in windows])
    wanted = judged(tmp_path / "variant", windows)
    assert np.abs(found - wanted).mean() < 0.05


def test_a_changed_weight_fails_the_proof(place: Path, tmp_path: Path) -> None:
    import gguf

    source = source_folder(place)
    made = make_gguf(source, tmp_path / "lm.gguf", "lm", {})
    tensors = list(tensors_of(read_decoder(source / "model.onnx"), "llama"))
    offset = {tensor.name: tensor.data_offset for tensor in gguf.GGUFReader(made.path).tensors}["blk.1.ffn_up.weight"]
    content = bytearray(made.path.read_bytes())
    content[int(offset) + 2] ^= 1
    made.path.write_bytes(content)
    with pytest.raises(JobError) as caught:
        prove(made.path, tensors)
    assert "blk.1.ffn_up.weight as F32" in caught.value.found


@pytest.mark.parametrize("name", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_llama_cpp_cuts_text_as_the_tokenizer_does(place: Path, tmp_path: Path, name: str) -> None:
    """Merges cross all borders of words, so that only a cut at the right ones gives these tokens."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    from tasks.serving.gguf.tokens import CUTS

    (steps, whole) = next(key for key, value in CUTS.items() if value == name)
    parts = {
        "Digits one by one": lambda: pre_tokenizers.Digits(individual_digits=True),
        "ByteLevel words": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
        "ByteLevel": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    }
    cut = [
        parts[step]() if step in parts else pre_tokenizers.Split(Regex(step.removeprefix("Split ")), "isolated")
        for step in steps
    ]
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole))
    tokenizer.pre_tokenizer = parts["ByteLevel"]()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=6,
    )
    tokenizer.train_from_iterator([TEXT] * 5, trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cut) if len(cut) > 1 else cut[0]
    shutil.copytree(source_folder(place), tmp_path / "variant")
    tokenizer.save(str(tmp_path / "variant" / "tokenizer.json"))
    made = make_gguf(tmp_path / "variant", tmp_path / "lm.gguf", "lm", {})
    llama = LlamaCpp(made.path, context=CONTEXT)
    for text in (TEXT, *TEXT.split()):
        assert llama.tokens(text) == tokenizer.encode(text).ids, text


@pytest.mark.parametrize(("bits", "zero"), [(4, 8), (4, 3), (4, 7.4), (8, 128), (8, 20)])
def test_gguf_dequantizes_blocks_to_the_judged_weights(bits: int, zero: float) -> None:
    """The oracle is the library's own reading of the bytes."""
    import gguf

    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 2**bits, (64, 96), dtype=np.uint8)
    scales = (rng.normal(size=(64, 3)) * 10.0 ** rng.integers(-4, 1, (64, 3))).astype(np.float32)
    matrix = BlockMatrix(bits, codes, scales, np.full(scales.shape, zero, np.float32))
    kind = kind_of(matrix)
    found = gguf.quants.dequantize(encode(matrix, kind), gguf.GGMLQuantizationType[kind])
    difference = np.abs(found - matrix.values())
    assert (difference <= allowed_difference(matrix, kind)).all()
    # The bound is that of rounding: no larger than a code is apart.
    steps = np.repeat(np.abs(scales), 32, axis=1)
    assert (allowed_difference(matrix, kind) < 0.13 * steps + 1e-5).all()


def test_refusals_end_with_code_2(place: Path) -> None:
    (place / "taken").mkdir(exist_ok=True)
    (place / "taken" / "file").touch()
    for option in ("--genai", "--gguf", "--vllm", "--tensorrt-llm"):
        done = export(place, option, str(place / "taken"))
        assert done.returncode == 2 and "was not written by quantgate" in done.stderr


VLLM = Path(sys.prefix) / "vllm" / "bin" / "python"
# Checkpoints by name: the decoder, its weights (None: as they are), the type in which vLLM computes (None: transformers alone).
CHECKPOINTS: dict[str, tuple[str, BlockWeights | None, str | None]] = {
    "float": ("mistral", None, "float32"),
    # Biases; vLLM's kernel for 4 bits computes in 16.
    "symmetric": ("qwen2", BlockWeights("rtn", 32, symmetric=True), "bfloat16"),
    # Zero points, and norms of heads.
    "zero-points": ("qwen3", BlockWeights("rtn", 32, symmetric=False), "bfloat16"),
    # Scaled angles and a tied table.
    "larger-blocks": ("llama-scaled", BlockWeights("rtn", 64, symmetric=True), "bfloat16"),
    "eight-bits": ("mistral", BlockWeights("rtn", 32, symmetric=True, bits=8), None),
}


@pytest.fixture(scope="module")
def checkpoints(place: Path, more: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the export of the champion, `promoted`, checkpoints of other decoders, and what vLLM answers of each."""
    if not VLLM.exists():
        pytest.skip("vLLM is not installed: infra/setup.sh .venv flavors, on Linux")
    if "avx2" in HERE.isa and "avx512f" not in HERE.isa:
        pytest.skip("vLLM has no kernel for weights in blocks on an x86 processor without AVX512")
    folder = tmp_path_factory.mktemp("checkpoints")
    done = export(place, "--vllm", str(folder / "promoted"))
    assert done.returncode == 0, done.stderr
    assert "not carried over: scales are those that were judged" in done.stdout
    for name, (source, weights, _) in CHECKPOINTS.items():
        variant = folder / f"{name}-variant"
        shutil.copytree(more / source, variant)
        if weights:
            prepared = folder / f"{name}-prepared"
            prepared.mkdir()
            quantize_weights(make_prepared(more / source / "model.onnx", (), prepared), variant / "model.onnx", weights)
        made = make_checkpoint(variant, folder / name, {}, CompressedTensors())
        assert made.bits == ((weights.bits,) if weights else ())
    np.savez(folder / "windows.npz", input_ids=windows_of(place, 8))
    dtypes = {name: dtype for name, (_, _, dtype) in CHECKPOINTS.items() if dtype} | {"promoted": "bfloat16"}
    request = {
        "runs": [(str(folder / name), dtype) for name, dtype in dtypes.items()],
        "weights": [str(folder / name) for name, (_, weights, _) in CHECKPOINTS.items() if weights],
        "windows": str(folder / "windows.npz"),
        "vocabulary": VOCABULARY,
        "new_tokens": 8,
    }
    (folder / "request.json").write_text(json.dumps(request))
    command = [str(VLLM), "-W", "ignore", str(TESTS / "vllm_answers.py"), str(folder / "request.json")]
    ran = subprocess.run(command, env=environment(folder), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return folder


def answers_of(checkpoints: Path, name: str, dtype: str) -> dict[str, NDArray[Any]]:
    with np.load(checkpoints / f"{name}.{dtype}.npz") as archive:
        return dict(archive)


def test_vllm_runs_the_champion_as_it_was_judged(place: Path, checkpoints: Path) -> None:
    told, windows = answers_of(checkpoints, "promoted", "bfloat16"), windows_of(place, 8)
    (manifest,) = (place / "state" / "mlartifacts").rglob("manifest.json")
    wanted = judged(manifest.parent / "variant", windows)
    perplexities = [float(np.exp(-mean_of(found, windows))) for found in (padded(told["scores"]), wanted)]
    assert perplexities[0] == pytest.approx(perplexities[1], rel=0.005)
    # vLLM computes in bfloat16, and the judged engine rounds activations to 8 bits.
    assert np.abs(told["scores"] - wanted[:, :-1]).mean() < 0.06
    assert told["answers"].shape == (8, 8) and str(told["text"])
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoints / "promoted" / "tokenizer.json"))
    assert told["prompt"].tolist() == tokenizer.encode("hello world").ids
    assert "vllm serve ." in (checkpoints / "promoted" / "README.md").read_text()


def padded(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """With a row for the last token, which vLLM does not score."""
    return np.concatenate([scores, np.zeros_like(scores[:, :1])], axis=1)


def test_vllm_gives_probabilities_and_texts_of_a_float_decoder(place: Path, more: Path, checkpoints: Path) -> None:
    told, windows = answers_of(checkpoints, "float", "float32"), windows_of(place, 8)
    np.testing.assert_allclose(told["scores"], judged(more / "mistral", windows)[:, :-1], atol=1e-3)


@pytest.mark.parametrize("name", [name for name, (_, weights, dtype) in CHECKPOINTS.items() if weights and dtype])
def test_vllm_runs_other_decoders_and_blocks(place: Path, checkpoints: Path, name: str) -> None:
    told = answers_of(checkpoints, name, "bfloat16")
    wanted = judged(checkpoints / f"{name}-variant", windows_of(place, 8))
    assert np.abs(told["scores"] - wanted[:, :-1]).mean() < 0.06


@pytest.mark.parametrize("name", [name for name, (_, weights, _) in CHECKPOINTS.items() if weights])
def test_compressed_tensors_dequantizes_the_judged_weights(place: Path, checkpoints: Path, name: str) -> None:
    """The oracle is the library of the format; in float32 it also gives the probabilities, with sizes, angles and biases."""
    told = answers_of(checkpoints, name, "weights")
    decoder = checkpoint_of(read_decoder(checkpoints / f"{name}-variant" / "model.onnx"))
    assert any(product.scheme for product in decoder.products)
    for product in decoder.products:
        found = told[f"{product.name}.weight"]
        np.testing.assert_allclose(found, product.matrix.values(), rtol=1e-6, atol=1e-9, err_msg=product.name)
    for vector, matrix in decoder.vectors.items():
        np.testing.assert_array_equal(told[vector], matrix.array)
    wanted = judged(checkpoints / f"{name}-variant", windows_of(place, 8))
    assert np.abs(told["scores"] - wanted[:, :-1]).mean() < 0.06
