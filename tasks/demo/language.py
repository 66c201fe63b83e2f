"""Language demo: SmolLM2-135M-Instruct with its tokenizer, and windows of Wikipedia articles."""

from __future__ import annotations

from pathlib import Path

from tasks.demo.articles import fetch_articles, split_articles, spread_windows
from tasks.demo.assets import ARTICLES, SMOLLM2
from tasks.demo.built import CALIBRATION_FILE, EVALUATION_FILE, Demo, Notes, build_once
from tasks.demo.splits import save_samples

NAME = "smollm2-135m-instruct"
MODEL_FILE = "model.safetensors"
WINDOW_TOKENS = 128
# Calibration needs at least 64; the evaluation windows are halved, to choose and to confirm.
CALIBRATION_WINDOWS, EVALUATION_WINDOWS = 64, 64


def build(state: Path, *, seed: int = 7) -> Demo:
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
        sources=[folder / f"{name}.py" for name in ("language", "articles", "gguf_file", "llama", "smollm")],
        distributions=("torch", "transformers", "tokenizers"),
        seed=seed,
        make=lambda target: _make(state, target, seed),
    )


def _make(state: Path, folder: Path, seed: int) -> Notes:
    from tasks.demo.smollm import hugging_face_model, quiet_transformers

    with quiet_transformers():
        model, tokenizer = hugging_face_model(state)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    notes: Notes = {"parameters": model.num_parameters(), "window_tokens": WINDOW_TOKENS, "seed": seed}
    parts = split_articles(fetch_articles(state), seed)
    # Numbers of articles differ between the files: a group in both would be a leak.
    first = 0
    sizes = {CALIBRATION_FILE: CALIBRATION_WINDOWS, EVALUATION_FILE: EVALUATION_WINDOWS}
    for (name, count), articles in zip(sizes.items(), parts, strict=True):
        windows, owners = spread_windows(articles, tokenizer.backend_tokenizer, WINDOW_TOKENS, count, seed)
        save_samples(folder / name, {"input_ids": windows, "article": first + owners})
        first += len(articles)
        notes[f"{name.removesuffix('.npz')}_windows"] = len(windows)
    return notes
