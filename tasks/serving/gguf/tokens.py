"""Metadata of a byte-level BPE tokenizer, from `tokenizer.json`, as llama.cpp reads it (ggml-org/ggml, docs/gguf.md).

llama.cpp knows how a text is cut into words by name alone: a pre-tokenizer that is none of `CUTS` is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.serving.decoder.graph_nodes import refusal
from validators.errors import JobError
from validators.untrusted.bounded_json import read_json

FILE, SETTINGS, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(digits: str) -> tuple[str, ...]:
    return (f"Split {_WORDS % digits}", "ByteLevel")


# The steps of a pre-tokenizer, and whether whole words of the vocabulary are taken before merges, by name in llama.cpp's
# `llama-vocab.cpp`.
CUTS: Mapping[tuple[tuple[str, ...], bool], str] = {
    (("ByteLevel words",), False): "gpt-2",
    (("Digits one by one", "ByteLevel words"), False): "smollm",
    (_split(r"\p{N}{1,3}"), True): "llama-bpe",
    (_split(r"\p{N}"), False): "qwen2",
}


def tokenizer_metadata(folder: Path, rows: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of the tokenizer in a folder, by key, for an embedding of `rows` tokens.

    `config` is the part `model` of `genai_config.json`.

    Raises:
        JobError: the tokenizer cannot be read, is not byte-level BPE, or cuts words in a way that llama.cpp has no name for.
    """
    try:
        return _metadata(folder, rows, config)
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:  # its author wrote the file
        raise refusal(
            f"a tokenizer that cannot be read: {type(error).__name__}: {error}",
            "the files as the library tokenizers writes them",
            "log the model with its own tokenizer",
        ) from error


def _metadata(folder: Path, rows: int, config: Mapping[str, Any]) -> dict[str, Any]:
    told = read_json(folder / FILE)
    model = told["model"]
    name = _name(told, model)
    tokens, kinds = _tokens(told, model, rows)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    found: dict[str, Any] = {"model": "gpt2", "pre": name, "tokens": tokens, "token_type": kinds, "merges": merges}
    ends = config.get("eos_token_id")
    ends = ends if isinstance(ends, Sequence) else [ends]
    settings = read_json(folder / SETTINGS) if (folder / SETTINGS).exists() else {}
    told_end = settings.get("eos_token")
    if isinstance(told_end, dict):
        told_end = told_end.get("content")
    end = next((one for one in ends if one is not None and tokens[one] == told_end), ends[0])
    for key, token in (("bos", config.get("bos_token_id")), ("eos", end), ("padding", config.get("pad_token_id"))):
        if token is not None:
            found[f"{key}_token_id"] = token
    first = _first_token(told)
    found["add_bos_token"] = first is not None
    if first is not None:
        found["bos_token_id"] = tokens.index(first)
    metadata = {f"tokenizer.ggml.{key}": value for key, value in found.items()}
    if template := _template(folder, settings):
        metadata["tokenizer.chat_template"] = template
    return metadata


def _name(told: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Return llama.cpp's name of the pre-tokenizer."""
    kind = model.get("type")
    cut = told.get("pre_tokenizer") or {}
    steps = tuple(_step(step) for step in cut.get("pretokenizers", [cut]))
    if kind != "BPE" or model.get("byte_fallback") or not any(step.startswith("ByteLevel") for step in steps):
        raise _refused(f"a tokenizer of the kind {'SentencePiece' if kind in ('BPE', 'Unigram') else kind}")
    if extras := [key for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout") if model.get(key)]:
        raise _refused(f"a tokenizer with {', '.join(extras)}")
    name = CUTS.get((steps, bool(model.get("ignore_merges"))))
    normalizer = (told.get("normalizer") or {}).get("type")
    # llama.cpp's own converter leaves NFC out too: it changes no text that is composed already.
    if name is None or normalizer not in (None, "NFC"):
        raise _refused(
            f"a tokenizer that cuts text by {', '.join(steps)}{f' after {normalizer}' if normalizer else ''}"
        )
    return name


def _step(step: Mapping[str, Any]) -> str:
    """Describe a step of a pre-tokenizer; a description that is in no cut is refused."""
    match step:
        case {"type": "ByteLevel", "add_prefix_space": False}:
            return "ByteLevel words" if step.get("use_regex", True) else "ByteLevel"
        case {"type": "Digits", "individual_digits": True}:
            return "Digits one by one"
        case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
            return f"Split {pattern}"
    return json.dumps(step)[:200]


def _tokens(told: Mapping[str, Any], model: Mapping[str, Any], rows: int) -> tuple[list[str], list[int]]:
    """Return the token of each row of the embedding, and its kind."""
    by_id = {index: (token, NORMAL) for token, index in model["vocab"].items()}
    for added in told.get("added_tokens", ()):
        by_id[added["id"]] = (added["content"], CONTROL if added["special"] else USER_DEFINED)
    if max(by_id) >= rows:
        raise refusal(
            f"a tokenizer with the token {max(by_id)}, and an embedding of {rows}",
            "a row of the embedding for each token",
            "log the model with its own tokenizer",
        )
    found = [by_id.get(index, (f"[PAD{index}]", UNUSED)) for index in range(rows)]
    return [token for token, _ in found], [kind for _, kind in found]


def _first_token(told: Mapping[str, Any]) -> str | None:
    """Return the token that the tokenizer puts before each text, if any."""
    processor = told.get("post_processor") or {}
    for one in processor.get("processors", [processor]):
        for item in one.get("single", ())[:1] if one.get("type") == "TemplateProcessing" else ():
            if "SpecialToken" in item:
                return str(one["special_tokens"][item["SpecialToken"]["id"]]["tokens"][0])
    return None


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Return the chat template: a file, or a setting, which may be a list of named ones."""
    if (folder / TEMPLATE).exists():
        return (folder / TEMPLATE).read_text(encoding="utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):
        found = {one["name"]: one["template"] for one in found}.get("default")
    return found


def _refused(found: str) -> JobError:
    names = ", ".join(CUTS.values())
    return refusal(found, f"byte-level BPE that llama.cpp knows by name ({names})", "export with --genai FOLDER")
