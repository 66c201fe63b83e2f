"""`config.json` and `generation_config.json` of a checkpoint, as transformers reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.serving.decoder.decoder_graph import DecoderWeights
from tasks.serving.decoder.graph_nodes import refusal
from tasks.serving.decoder.rotary import llama3_scaling, rotary_base

# The class in transformers, by `type` in `genai_config.json`, with settings that a plain decoder of the kind has.
ARCHITECTURES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {"attention_bias": False, "mlp_bias": False}),
    "mistral": ("MistralForCausalLM", {"sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", {"use_sliding_window": False}),
    "qwen3": ("Qwen3ForCausalLM", {"attention_bias": False, "use_sliding_window": False}),
}
# The type in which servers compute by default: float16 overflows in some models that were trained in bfloat16.
DTYPE = "bfloat16"


def config_of(decoder: DecoderWeights, genai: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a decoder; `genai` is the part `model` of `genai_config.json`.

    Raises:
        JobError: transformers has no such decoder, or no such rotary angles.
    """
    kind = genai["type"]
    if kind not in ARCHITECTURES:
        raise refusal(
            f"a decoder of the type {kind}", f"one of {', '.join(ARCHITECTURES)}", "export with --genai FOLDER"
        )
    name, settings = ARCHITECTURES[kind]
    attention = decoder.layers[0].attention
    return {
        "architectures": [name],
        "model_type": kind,
        "vocab_size": decoder.embedding.shape[0],
        "hidden_size": decoder.embedding.shape[1],
        "intermediate_size": decoder.layers[0].gate.shape[0],
        "num_hidden_layers": len(decoder.layers),
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_width,
        "hidden_act": "silu",
        "rms_norm_eps": float(decoder.epsilon),
        "max_position_embeddings": genai["context_length"],
        **_rotary(decoder),
        "tie_word_embeddings": decoder.head is None,
        **_special_tokens(genai),
        **settings,
        "dtype": DTYPE,
    }


def generation_config_of(genai: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokens at which an answer starts and ends; an answer is greedy unless its user says otherwise."""
    return {**_special_tokens(genai), "do_sample": False}


def _special_tokens(genai: Mapping[str, Any]) -> dict[str, Any]:
    return {key: genai[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if genai.get(key) is not None}


def _rotary(decoder: DecoderWeights) -> dict[str, Any]:
    frequencies = decoder.layers[0].attention.frequencies
    base, factors = rotary_base(frequencies)
    if factors is None:
        return {"rope_theta": base, "rope_scaling": None}
    found = llama3_scaling(frequencies)
    if found is None:
        raise refusal(
            "scaled rotary angles",
            "powers of one base, or those of Llama 3.1, which a configuration can name",
            "export with --gguf or --genai FOLDER",
        )
    base, scaling = found
    return {"rope_theta": base, "rope_scaling": scaling}
