"""A decoder's weights on their way to a checkpoint of transformers: packed codes, names, the configuration, the proof."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_decoder import BASE, HEAD_WIDTH, HEADS, INNER, KV_HEADS, TOKENS, WIDTH, tiny_weights, write_decoder

from tasks.ptq.weight_only.matmul_nbits import BlockWeights, quantize_weights
from tasks.serving.checkpoint.compressed_tensors import CompressedTensors
from tasks.serving.checkpoint.export import make_checkpoint, prove
from tasks.serving.checkpoint.modelopt import ModelOpt
from tasks.serving.checkpoint.names import CheckpointFormat, NamedProduct, Scheme, checkpoint_of
from tasks.serving.decoder.decoder_graph import read_decoder
from tasks.serving.decoder.matrices import BlockMatrix
from tasks.serving.decoder.rotary import llama3_scaling
from validators.errors import JobError

pytest.importorskip("safetensors", reason="the extra demo, which development has, is not installed")
GENAI = {"model": {"type": "llama", "context_length": 32, "bos_token_id": 1, "eos_token_id": [2, 3]}}


def matrix(bits: int, rows: int, columns: int, block: int, *, symmetric: bool) -> BlockMatrix:
    """A random weight."""
    rng = np.random.default_rng(bits)
    scales = rng.uniform(0.01, 1, (rows, columns // block)).astype(np.float32)
    middle = 2 ** (bits - 1)
    zeros = np.full(scales.shape, middle) if symmetric else rng.integers(0, 2**bits, scales.shape)
    codes = rng.integers(0, 2**bits, (rows, columns), dtype=np.uint8)
    return BlockMatrix(bits, codes, scales, zeros.astype(np.float32))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("block", [32, 64])
def test_compressed_tensors_packs_codes_of_a_row_into_words(bits: int, symmetric: bool, block: int) -> None:
    """The oracle reads each code out of its word by hand."""
    weight = matrix(bits, 11, 128, block, symmetric=symmetric)
    made = CompressedTensors().pack(weight, symmetric=symmetric)
    each = 32 // bits
    assert made["weight_packed"].shape == (11, 128 // each) and made["weight_packed"].dtype == np.int32
    words = made["weight_packed"].view(np.uint32)
    for row, column in ((0, 0), (3, 7), (10, 127)):
        word = int(words[row, column // each])
        assert word >> bits * (column % each) & (2**bits - 1) == weight.codes[row, column]
    assert ("weight_zero_point" in made) is not symmetric
    if not symmetric:
        # Zero points of one column of blocks share a word: eight rows of 4 bits, four of 8.
        assert made["weight_zero_point"].shape == (-(-11 // each), 128 // block)
        word = int(made["weight_zero_point"].view(np.uint32)[10 // each, 1])
        assert word >> bits * (10 % each) & (2**bits - 1) == weight.zero_points[10, 1]
    scheme = Scheme(bits, block, symmetric)
    np.testing.assert_array_equal(CompressedTensors().unpack(made, scheme, slice(2, 11)), weight.values()[2:])


def test_modelopt_packs_pairs_of_rows_in_twos_complement() -> None:
    weight = matrix(4, 6, 256, 128, symmetric=True)
    made = ModelOpt().pack(weight, symmetric=True)
    assert made["weight"].shape == (3, 256) and made["weight_scale"].shape == (6, 2)
    for row, column in ((0, 0), (3, 17), (5, 255)):
        half = int(made["weight"][row // 2, column]) >> 4 * (row % 2) & 15
        assert (half - 16 if half > 7 else half) == int(weight.codes[row, column]) - 8
    np.testing.assert_array_equal(ModelOpt().unpack(made, Scheme(4, 128, True), slice(1, 6)), weight.values()[1:])
    assert (made["pre_quant_scale"] == 1).all()


@pytest.mark.parametrize(("bits", "block", "symmetric"), [(4, 32, True), (8, 128, True), (4, 128, False)])
def test_modelopt_refuses_what_tensorrt_llm_has_no_kernel_for(bits: int, block: int, symmetric: bool) -> None:
    with pytest.raises(JobError) as refused:
        ModelOpt().pack(matrix(bits, 4, 128, block, symmetric=symmetric), symmetric=symmetric)
    assert "4 bits in blocks of 128 without zero points" in refused.value.expected


def test_compressed_tensors_refuses_fractions_of_zero_points() -> None:
    weight = matrix(4, 8, 32, 32, symmetric=False)
    weight.zero_points[3, 0] = 7.5
    with pytest.raises(JobError, match="no whole numbers"):
        CompressedTensors().pack(weight, symmetric=False)


def variant(folder: Path, weights: Any, how: BlockWeights | None, **changes: Any) -> Path:
    """A folder of a variant, as the target `ort-genai` writes it."""
    folder.mkdir()
    if how is None:
        write_decoder(folder / "model.onnx", weights, **changes)
    else:
        source = write_decoder(folder.with_suffix(".onnx"), weights, **changes)
        quantize_weights(source, folder / "model.onnx", how)
    (folder / "genai_config.json").write_text(json.dumps(GENAI))
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize("how", [None, BlockWeights("rtn", 32, True), BlockWeights("rtn", 32, False)])
def test_a_checkpoint_has_the_names_and_weights_of_transformers(tmp_path: Path, how: BlockWeights | None) -> None:
    from safetensors.numpy import load_file

    weights = tiny_weights()
    folder = variant(tmp_path / "variant", weights, how)
    made = make_checkpoint(folder, tmp_path / "made", {"candidate": "x"}, CompressedTensors())
    assert made.files.keys() == {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    config = json.loads(made.files["config.json"].read_text())
    told = {key: config[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads", "head_dim")}
    assert told == {
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "head_dim": HEAD_WIDTH,
    }
    assert config["num_key_value_heads"] == KV_HEADS and config["vocab_size"] == TOKENS
    assert config["rope_theta"] == BASE and config["eos_token_id"] == [2, 3] and "pad_token_id" not in config
    tensors = load_file(made.files["model.safetensors"])
    np.testing.assert_array_equal(tensors["model.embed_tokens.weight"], weights["embed"])
    np.testing.assert_array_equal(tensors["model.layers.1.post_attention_layernorm.weight"], weights["1.post"])
    if how is None:
        assert "quantization_config" not in config and made.proof.difference == 0
        np.testing.assert_array_equal(tensors["model.layers.0.mlp.up_proj.weight"], weights["0.up"])
        return
    (group,) = config["quantization_config"]["config_groups"].values()
    assert group["targets"] == ["Linear"] and group["weights"]["symmetric"] is how.symmetric
    assert group["weights"]["num_bits"] == 4 and group["weights"]["group_size"] == 32
    assert config["quantization_config"]["ignore"] == ["lm_head"]
    assert tensors["model.layers.0.self_attn.q_proj.weight_packed"].shape == (HEADS * HEAD_WIDTH, WIDTH // 8)


def test_products_that_run_as_one_share_the_wider_codes() -> None:
    """A layer with an up product of 8 bits and a gate of 4: both get 8, and the values stay."""
    from dataclasses import replace

    four, eight = (matrix(bits, 32, 64, 32, symmetric=True) for bits in (4, 8))
    checkpoint = checkpoint_of(decoder_with(gate=four, up=eight))
    products = {product.name: product for product in checkpoint.products}
    gate, up = (products[f"model.layers.0.mlp.{name}_proj"] for name in ("gate", "up"))
    assert gate.scheme == up.scheme == Scheme(8, 32, True)
    np.testing.assert_array_equal(gate.matrix.values(), four.values())
    settings, _ = CompressedTensors().settings(checkpoint.products)
    groups = settings["quantization_config"]["config_groups"].values()
    assert sorted(name for group in groups for name in group["targets"]) == sorted(products)
    zeros = replace(four, zero_points=np.full_like(four.zero_points, 3))
    mixed = {one.name: one for one in checkpoint_of(decoder_with(gate=zeros, up=eight)).products}
    assert mixed["model.layers.0.mlp.up_proj"].scheme == Scheme(8, 32, False)
    with pytest.raises(JobError, match="blocks of different sizes"):
        checkpoint_of(decoder_with(gate=matrix(4, 32, 64, 64, symmetric=True), up=eight))


def decoder_with(*, gate: BlockMatrix, up: BlockMatrix) -> Any:
    """A decoder of one layer in 4 bits, but for two products."""
    from tasks.serving.decoder.decoder_graph import (
        Attention,
        DecoderWeights,
        GraphProjection,
        Layer,
        Projections,
    )

    four, gain = matrix(4, 64, 64, 32, symmetric=True), np.ones(64, np.float32)
    attention = Attention(2, 2, 32, np.ones(16), "NONE")
    parts = Projections(*(GraphProjection(four) for _ in "qkv"))
    layer = Layer(attention, gain, parts, four, gain, gate, up, matrix(4, 64, 32, 32, symmetric=True))
    return DecoderWeights(four, (layer,), gain, None, 1e-5)


@pytest.mark.parametrize("form", [CompressedTensors(), ModelOpt()])
def test_a_changed_weight_fails_the_proof(tmp_path: Path, form: CheckpointFormat) -> None:
    from safetensors.numpy import load_file, save_file

    block = 128 if isinstance(form, ModelOpt) else 32
    product = NamedProduct("p", weight := matrix(4, 64, 256, block, symmetric=True), Scheme(4, block, True))
    decoder = checkpoint_of(
        decoder_with(gate=matrix(4, 32, 64, 32, symmetric=True), up=matrix(4, 32, 64, 32, symmetric=True))
    )
    checkpoint = type(decoder)((product,), {}, {})
    packed = {"p": form.pack(weight, symmetric=True)}
    save_file({f"p.{end}": array for end, array in packed["p"].items()}, tmp_path / "w")
    assert prove(tmp_path / "w", checkpoint, packed, form).difference == 0
    tensors = load_file(tmp_path / "w")
    codes = tensors["p.weight" if isinstance(form, ModelOpt) else "p.weight_packed"]
    codes[3, 5] ^= 1
    save_file(tensors, tmp_path / "w")
    with pytest.raises(JobError, match="p as INT4 has"):
        prove(tmp_path / "w", checkpoint, packed, form)


def test_a_tied_table_of_few_bits_becomes_float16(tmp_path: Path) -> None:
    folder = variant(tmp_path / "variant", tiny_weights(), BlockWeights("rtn", 32, True), tied=True)
    made = make_checkpoint(folder, tmp_path / "made", {}, CompressedTensors())
    assert json.loads(made.files["config.json"].read_text())["tie_word_embeddings"] is True
    assert made.proof.tensor == "model.embed_tokens.weight" and 0 < made.proof.difference < 2e-3
    assert made.proof.kinds["F16"] == 1


def test_a_checkpoint_of_modelopt_says_how_it_is_quantized(tmp_path: Path) -> None:
    folder = variant(tmp_path / "variant", tiny_weights(), None)
    made = make_checkpoint(folder, tmp_path / "made", {}, ModelOpt())
    told = json.loads(made.files["hf_quant_config.json"].read_text())
    assert told["quantization"]["quant_algo"] == "W4A16_AWQ" and told["quantization"]["group_size"] == 128
    assert "lm_head" in told["quantization"]["exclude_modules"]


def llama3(frequencies: NDArray[np.float64], factor: float, context: int) -> NDArray[np.float64]:
    """The scaling of Llama 3.1, one angle at a time, as its authors wrote it."""
    found = []
    for frequency in frequencies:
        wavelength = 2 * np.pi / frequency
        if wavelength < context / 4:
            found.append(frequency)
        elif wavelength > context:
            found.append(frequency / factor)
        else:
            smooth = (context / wavelength - 1) / 3
            found.append((1 - smooth) * frequency / factor + smooth * frequency)
    return np.array(found)


@pytest.mark.parametrize(("base", "factor", "context"), [(500000.0, 8.0, 8192), (500000.0, 32.0, 8192), (1e4, 8.0, 64)])
def test_scaled_angles_are_named_by_their_settings(base: float, factor: float, context: int) -> None:
    plain = base ** -(np.arange(32) / 32)
    found = llama3_scaling(llama3(plain, factor, context))
    assert found is not None
    assert found[0] == base and found[1]["factor"] == factor
    assert found[1]["original_max_position_embeddings"] == context
    assert llama3_scaling(plain / np.linspace(1, 3, 32)) is None


def test_decoders_that_transformers_names_otherwise_are_refused(tmp_path: Path) -> None:
    folder = variant(tmp_path / "variant", tiny_weights(), None)
    (folder / "genai_config.json").write_text(json.dumps({"model": GENAI["model"] | {"type": "phi3"}}))
    with pytest.raises(JobError, match="a decoder of the type phi3"):
        make_checkpoint(folder, tmp_path / "made", {}, CompressedTensors())
    assert read_decoder(folder / "model.onnx").layers
