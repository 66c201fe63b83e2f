"""A promoted decoder for other programs: `quantgate export --genai` and `--gguf`, loaded by the library and by llama.cpp."""

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

from tasks.ptq.graph.prepare import make_prepared
from tasks.ptq.weight_only.matmul_nbits import BlockWeights, quantize_weights
from tasks.runtimes.genai.model import GenaiModel
from tasks.serving.gguf.blocks import allowed_difference, encode, kind_of
from tasks.serving.gguf.decoder_graph import read_decoder
from tasks.serving.gguf.export import make_gguf
from tasks.serving.gguf.llama import tensors_of
from tasks.serving.gguf.matrices import BlockMatrix
from tasks.serving.gguf.write import prove
from validators.digests import digest_file
from validators.errors import JobError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
# The extras `genai` and `receivers`, which `make test-rest` installs and `make test` does without.
for library in ("transformers", "onnxruntime_genai", "gguf", "xllamacpp"):
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
    measurement = {"dims": {"sequence_length": 16, "new_tokens": 8}, "launches": 3, "blocks": 1, "block_seconds": 0.02}
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
    answer = run_jobs(state, folder / "run", [call])["run"]
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
    found = gguf.quants.dequantize(encode(matrix, kind).data, gguf.GGMLQuantizationType[kind])
    difference = np.abs(found - matrix.values())
    assert (difference <= allowed_difference(matrix, kind)).all()
    # The bound is that of rounding: no larger than a code is apart.
    steps = np.repeat(np.abs(scales), 32, axis=1)
    assert (allowed_difference(matrix, kind) < 0.13 * steps + 1e-5).all()


def test_refusals_end_with_code_2(place: Path) -> None:
    (place / "taken").mkdir(exist_ok=True)
    (place / "taken" / "file").touch()
    for option in ("--genai", "--gguf"):
        done = export(place, option, str(place / "taken"))
        assert done.returncode == 2 and "was not written by quantgate" in done.stderr
