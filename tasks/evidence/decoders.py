"""Decoders of the flavor `transformers`, for engines that run them with their cache."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tasks.evidence.flavors import need_libraries
from tasks.evidence.hugging_face import read_json, refused, weights_folder
from validators.errors import DataError, JobError, SourceError
from validators.job.job import Job
from validators.records.latencies import NEW_TOKENS, USUAL_NEW_TOKENS
from validators.samples.datasets import Samples

# Folder of a source's or variant's graph with the files beside it.
DECODER = "decoder"
CONFIG = "genai_config.json"
# Decoders that both the model builder of onnxruntime-genai and transformers know.
DECODERS = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "PhiForCausalLM",
    "Phi3ForCausalLM",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "SmolLM3ForCausalLM",
)
TOKENIZER = "tokenizer.json"


def decoder_folder(model: Path, flavor: dict[str, Any], uri: str) -> Path:
    """Return the folder with configuration, weights and tokenizer of a decoder of the flavor `transformers`.

    Raises:
        SourceError: the version has an adapter or no weights, weights that are not safetensors, no tokenizer, or another
            architecture.
    """
    folder = weights_folder(model, flavor, uri)
    kinds = [str(kind) for kind in read_json(folder / "config.json", uri).get("architectures") or []]
    if not kinds or kinds[0] not in DECODERS:
        raise refused(
            f"{uri} is a {', '.join(kinds) or 'model without an architecture in config.json'}",
            f"one of {', '.join(DECODERS)}",
            "take another target for a model that does not generate",
        )
    beside = model / "components" / "tokenizer"
    for path in sorted(beside.iterdir()) if beside.is_dir() else ():
        if path.is_file() and not path.is_symlink() and not (folder / path.name).exists():
            shutil.copyfile(path, folder / path.name)
    if not (folder / TOKENIZER).is_file():
        raise refused(
            f"{uri} has no {TOKENIZER}",
            "the tokenizer beside the weights: prompts are text",
            "log both again, with a fast tokenizer: mlflow.transformers.log_model({'model': ..., 'tokenizer': ...}, ...)",
        )
    need_libraries(["transformers", "onnxruntime_genai"], "genai", uri)
    return folder


def no_decoder(uri: str) -> SourceError:
    """Return the error for a source of another kind."""
    return refused(
        f"{uri} for a target that generates",
        "a decoder with its tokenizer, of the MLflow flavor transformers",
        "log it with mlflow.transformers.log_model, or take another target",
    )


def check_context(job: Job, folder: Path, windows: Samples, uri: str) -> None:
    """Check that the windows, and the measured requests, fit the context of the decoder in a folder.

    Raises:
        DataError: the windows are longer than the context.
        JobError: a prompt and the tokens that follow are, or the job names no length of the prompt.
    """
    context = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["model"]["context_length"]
    length = windows.inputs["input_ids"].shape[1]
    if length > context:
        raise DataError(
            found=f"windows of {length} tokens in {windows.file.path.name}",
            expected=f"at most {context}, the context of {uri}",
            fix="write shorter windows",
        )
    for point in job.measurement.points:
        new = point.dims.get(NEW_TOKENS, USUAL_NEW_TOKENS)
        prompt = next((size for name, size in point.dims.items() if name != NEW_TOKENS), length)
        if prompt + new > context:
            raise JobError(
                found=f"a prompt of {prompt} tokens and {new} that follow",
                expected=f"at most {context} together, the context of {uri}",
                fix="lower `measurement.dims`",
            )
