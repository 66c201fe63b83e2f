"""Write small decoders of further kinds as their conversion does: `python tests/support/more_decoders.py FOLDER`.

Each gets a folder with the float graph, its configuration and its tokenizer. Gains and biases are random, so that each shows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from decoder_user import SIZES, trained

from tasks.evidence.original_models import from_decoder

# Angles as of Llama 3.1.
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-scaled": ("Llama", {"rope_parameters": SCALED, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {"num_attention_heads": 2, "num_key_value_heads": 1}),
    "qwen3": ("Qwen3", {}),
}


def main(folder: Path) -> None:
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=trained(), bos_token="<s>", eos_token="</s>")
    for name, (kind, changes) in KINDS.items():
        torch.manual_seed(0)
        config = getattr(transformers, f"{kind}Config")(**SIZES | changes)
        model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
        for parameter, values in model.named_parameters():
            if parameter.endswith("bias") or "norm" in parameter:
                torch.nn.init.normal_(values, 1.0 if "norm" in parameter else 0.0, 0.3)
        logged = folder / f"{name}-logged"
        model.save_pretrained(logged)
        tokenizer.save_pretrained(logged)
        (folder / name).mkdir()
        from_decoder({"path": str(logged), "onnx": str(folder / name / "model.onnx")})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
