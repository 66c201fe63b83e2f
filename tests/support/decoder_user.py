"""Log and register a small decoder and broken ones: `python tests/support/decoder_user.py FOLDER`.

`lm` is sound; `lm-mute` has no tokenizer, `lm-pickled` pickled weights, `lm-other` another architecture. The folder gets data
files, and in `told.npz` what transformers itself says of `lm`. It runs in a process of its own, like `user.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tasks.run.settings import artifact_location, state_folder, tracking_uri

VOCABULARY, CONTEXT, NEW_TOKENS = 300, 128, 8
# Longer than the parts in which scores go through the cache.
WINDOW, PROMPTS = 80, 3
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    # vLLM has attention on a CPU for no less.
    "head_dim": 32,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 1,
    # Far from uniform, so that rounding shows.
    "initializer_range": 0.15,
}


def main(folder: Path) -> None:
    state = state_folder()
    mlflow.set_tracking_uri(tracking_uri(state))
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("user", artifact_location(tracking_uri(state))))
    sound = parts()
    register("lm", sound)
    remove(register("lm-mute", sound), "tokenizer.json")
    weights = next(register("lm-pickled", sound).rglob("model.safetensors"))
    weights.rename(weights.with_name("pytorch_model.bin"))
    other = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=4, bos_token_id=0, eos_token_id=1
    )
    register("lm-other", sound | {"model": transformers.GPT2LMHeadModel(other)})
    rng = np.random.default_rng(0)
    windows = {role: rng.integers(2, VOCABULARY, (count, WINDOW)) for role, count in (("cal", 200), ("ev", 100))}
    for role, tokens in windows.items():
        np.savez(folder / f"{role}.npz", input_ids=tokens)
    np.savez(folder / "long.npz", input_ids=rng.integers(2, VOCABULARY, (4, CONTEXT + 1)))
    np.savez(folder / "told.npz", **told(sound["model"], windows["ev"]))
    for role, tokens in windows.items():
        np.savez(folder / f"greedy-{role}.npz", **greedy(sound["model"], tokens))


def parts() -> dict[str, Any]:
    """A small Llama with random weights, and its tokenizer."""
    # Weights whose first answers are letters, and not parts of characters.
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=trained(), bos_token="<s>", eos_token="</s>")
    return {"model": model, "tokenizer": tokenizer}


def register(name: str, logged: dict[str, Any]) -> Path:
    """Log and register a model; return its folder of artifacts."""
    with mlflow.start_run():
        info = mlflow.transformers.log_model(
            logged, name=name, task="text-generation", registered_model_name=name, pip_requirements=["transformers"]
        )
    return Path(str(mlflow.get_logged_model(info.model_id).artifact_location).removeprefix("file://"))


def remove(folder: Path, name: str) -> None:
    for path in folder.rglob(name):
        path.unlink()


def trained() -> Tokenizer:
    """A tokenizer of bytes with a few merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["hello world, this is the text of a test"] * 10, trainer)
    return tokenizer


def greedy(model: Any, windows: Any) -> dict[str, Any]:
    """Prompts with the tokens that transformers finds most probable, one by one; every fourth label has another last token."""
    found = torch.from_numpy(windows[:, :16])
    labels = torch.full((len(windows), 16 + NEW_TOKENS), -100)
    with torch.no_grad():
        for at in range(16, 16 + NEW_TOKENS):
            labels[:, at] = model(found).logits[:, -1].argmax(dim=-1)
            found = torch.cat([found, labels[:, at : at + 1]], dim=1)
    labels[::4, -1] = (labels[::4, -1] + 1) % VOCABULARY
    return {"input_ids": found.numpy(), "label": labels.numpy()}


def told(model: Any, windows: Any) -> dict[str, Any]:
    """Logits and losses of windows, and greedy answers to prompts, by transformers."""
    tokens = torch.from_numpy(windows)
    with torch.no_grad():
        logits = model(tokens).logits
        losses = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
        prompts = tokens[:PROMPTS, :16]
        answers = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
        )
    return {
        "logits": logits[:PROMPTS].numpy(),
        "perplexity": np.exp(losses.mean(dim=1).numpy().mean()),
        "answers": answers[:, 16:].numpy(),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
