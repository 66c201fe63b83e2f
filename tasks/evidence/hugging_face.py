"""Checks of models of the flavors `transformers` and `sentence_transformers` before a process loads them.

Only weights in safetensors are read, only classes of the two libraries are built, and nothing is downloaded.
"""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tasks.evidence.flavors import need_libraries
from validators.errors import DataError, JobError, SourceError
from validators.job.job import Job
from validators.plain_text import shortened
from validators.records.latencies import NEW_TOKENS, USUAL_NEW_TOKENS
from validators.samples.datasets import Samples
from validators.untrusted.bounded_json import read_json
from validators.untrusted.external_data import MOST_ELEMENTS
from validators.untrusted.paths import inside

# Weights that torch or another library would unpickle.
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
GENERATORS = (
    "ForCausalLM",
    "LMHeadModel",
    "ForConditionalGeneration",
    "ForSpeechSeq2Seq",
    "ForVision2Seq",
    "ForSeq2SeqLM",
)
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
SENTENCE_MODULES = "sentence_transformers."
ACTIVATIONS = "torch.nn.modules."


def transformers_folder(model: Path, flavor: dict[str, Any], uri: str) -> Path:
    """Return the folder with configuration and weights of a model of the flavor `transformers`.

    Raises:
        SourceError: the version has an adapter or no weights, weights that are not safetensors, or a decoder.
    """
    folder = _weights_folder(model, flavor, uri)
    config = read_config(folder / "config.json", uri)
    kinds = _architectures(config, uri)
    if config.get("is_encoder_decoder") or any(kind.endswith(GENERATORS) for kind in kinds):
        raise _refused(
            f"{uri} is a model that generates, {', '.join(kinds) or config.get('model_type')}",
            "an encoder: a generator needs a cache from step to step, which its conversion does not have",
            "set `target: ort-genai`, which runs decoders with their cache, or log an ONNX file with mlflow.onnx.log_model",
        )
    need_libraries(["transformers"], "transformers", uri)
    return folder


def _weights_folder(model: Path, flavor: dict[str, Any], uri: str) -> Path:
    """Return the folder with configuration and weights, which are safetensors."""
    if flavor.get("peft_adaptor"):
        raise _refused(
            f"{uri} holds an adapter (PEFT) without its base model", "a whole model", "log model.merge_and_unload()"
        )
    if not flavor.get("model_binary"):
        raise _refused(
            f"{uri} holds no weights, only the name {flavor.get('source_model_name')!r} of a model elsewhere",
            "a version with its weights",
            "log it with mlflow.transformers.log_model(..., save_pretrained=True), or call "
            "mlflow.transformers.persist_pretrained_model on it",
        )
    folder = inside(model, str(flavor["model_binary"]), said_by="MLmodel")
    _check_weights(folder, uri)
    return folder


def decoder_folder(model: Path, flavor: dict[str, Any], uri: str) -> Path:
    """Return the folder with configuration, weights and tokenizer of a decoder of the flavor `transformers`.

    Raises:
        SourceError: the version has an adapter or no weights, weights that are not safetensors, no tokenizer, a size of the
            vocabulary that is none, or another architecture.
    """
    folder = _weights_folder(model, flavor, uri)
    config = read_config(folder / "config.json", uri)
    kinds = _architectures(config, uri)
    if not kinds or kinds[0] not in DECODERS:
        raise _refused(
            f"{uri} is a {', '.join(kinds) or 'model without an architecture in config.json'}",
            f"one of {', '.join(DECODERS)}",
            "take another target for a model that does not generate",
        )
    size = config.get("vocab_size")
    if size is not None and not (type(size) is int and 0 < size <= MOST_ELEMENTS):
        raise _unreadable(uri, "config.json", f"the vocab_size {shortened(repr(size), 100)} is no number of tokens")
    beside = model / "components" / "tokenizer"
    for path in sorted(beside.iterdir()) if beside.is_dir() else ():
        if path.is_file() and not path.is_symlink() and not (folder / path.name).exists():
            shutil.copyfile(path, folder / path.name)
    if not (folder / TOKENIZER).is_file():
        raise _refused(
            f"{uri} has no {TOKENIZER}",
            "the tokenizer beside the weights: prompts are text",
            "log both again, with a fast tokenizer: mlflow.transformers.log_model({'model': ..., 'tokenizer': ...}, ...)",
        )
    need_libraries(["transformers", "onnxruntime_genai"], "genai", uri)
    return folder


def no_decoder(uri: str) -> SourceError:
    """Return the error for a source of another kind."""
    return _refused(
        f"{uri} for a target that generates",
        "a decoder with its tokenizer, of the MLflow flavor transformers",
        "log it with mlflow.transformers.log_model, or take another target",
    )


def check_context(job: Job, folder: Path, windows: Samples, uri: str) -> None:
    """Check that the windows, and the measured requests, fit the context of the decoder in a folder.

    Raises:
        DataError: the windows are longer than the context.
        JobError: a prompt and the tokens that follow are.
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


def sentence_folder(model: Path, uri: str, data: str = "model.sentence_transformer") -> Path:
    """Return the folder of a model of the flavor `sentence_transformers`.

    Raises:
        SourceError: its weights are not safetensors, or it names classes of other libraries.
    """
    folder = inside(model, data, said_by="MLmodel")
    for module in read_config(folder / "modules.json", uri, list):
        if not isinstance(module, dict):
            raise _unreadable(uri, "modules.json", "a module is not an object")
        kind, path = str(module.get("type")), str(module.get("path", ""))
        place = inside(folder, path, said_by="modules.json") if path else folder
        activation = None
        if (place / "config.json").exists():
            activation = read_config(place / "config.json", uri).get("activation_function")
        known = activation is None or str(activation).startswith(ACTIVATIONS)
        if not kind.startswith(SENTENCE_MODULES) or not known:
            raise _refused(
                f"{uri} has a module of the class {kind if known else activation}, whose code quantgate does not run",
                "modules of sentence_transformers and activations of torch",
                "log the model as ONNX with mlflow.onnx.log_model",
            )
    for place in {folder, *(path.parent for pattern in PICKLES for path in folder.rglob(pattern))}:
        _check_weights(place, uri)
    need_libraries(["sentence_transformers"], "transformers", uri)
    return folder


def read_config(path: Path, uri: str, kind: type[dict[str, Any]] | type[list[Any]] = dict) -> Any:
    """Return the content of a JSON file of a model, an object or a list.

    Raises:
        SourceError: there is no such file, or `read_json` refuses it.
    """
    try:
        return read_json(path, kind)
    except (OSError, ValueError) as error:
        raise _unreadable(uri, path.name, str(error)[:200]) from error


def _unreadable(uri: str, name: str, reason: str) -> SourceError:
    return _refused(f"{uri}: {name} cannot be read: {reason}", "the file as the library writes it", "log it again")


def _architectures(config: dict[str, Any], uri: str) -> list[str]:
    found = config.get("architectures") or []
    if not isinstance(found, list) or not all(isinstance(kind, str) for kind in found):
        raise _unreadable(uri, "config.json", "`architectures` is not a list of names")
    return found


def _check_tensors(path: Path, uri: str) -> None:
    """Check the header of a file of safetensors: its library compares sizes, offsets and types with the file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np"):
            pass
    except (SafetensorError, OSError) as error:
        raise _unreadable(uri, path.name, str(error)[:200]) from error


def _check_shards(index: Path, uri: str) -> None:
    """Check that an index names files of its own folder; transformers opens whatever it names."""
    shards = read_config(index, uri).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise _unreadable(uri, index.name, "`weight_map` does not map tensors to files")
    for name in set(shards.values()):
        inside(index.parent, name, said_by=index.name)


def _check_weights(folder: Path, uri: str) -> None:
    for index in folder.glob("*.index.json"):
        _check_shards(index, uri)
    files = sorted(folder.glob("*.safetensors"))
    # Without the library nothing here opens them, and a conversion asks for it by name.
    for path in files if find_spec("safetensors") else ():
        _check_tensors(path, uri)
    if files:
        return
    found = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    raise _refused(
        f"{uri}: {', '.join(found) or 'no weights'} in {folder.name}",
        "weights in safetensors: other formats can run any code when they are loaded",
        "save the model with save_pretrained(..., safe_serialization=True), which writes model.safetensors, and log it again",
    )


def _refused(found: str, expected: str, fix: str) -> SourceError:
    return SourceError(found=found, expected=expected, fix=fix)
