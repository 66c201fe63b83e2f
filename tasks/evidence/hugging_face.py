"""Checks of models of the flavors `transformers` and `sentence_transformers` before a process loads them.

Only weights in safetensors are read, only classes of the two libraries are built, and nothing is downloaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.evidence.flavors import need_libraries
from validators.errors import SourceError
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
SENTENCE_MODULES = "sentence_transformers."
ACTIVATIONS = "torch.nn.modules."


def transformers_folder(model: Path, flavor: dict[str, Any], uri: str) -> Path:
    """Return the folder with configuration and weights of a model of the flavor `transformers`.

    Raises:
        SourceError: the version has an adapter or no weights, weights that are not safetensors, or a decoder.
    """
    folder = weights_folder(model, flavor, uri)
    config = read_json(folder / "config.json", uri)
    kinds = [str(kind) for kind in config.get("architectures") or []]
    if config.get("is_encoder_decoder") or any(kind.endswith(GENERATORS) for kind in kinds):
        raise refused(
            f"{uri} is a model that generates, {', '.join(kinds) or config.get('model_type')}",
            "an encoder: a generator needs a cache from step to step, which its conversion does not have",
            "set `target: ort-genai`, which runs decoders with their cache, or log an ONNX file with mlflow.onnx.log_model",
        )
    need_libraries(["transformers"], "transformers", uri)
    return folder


def weights_folder(model: Path, flavor: dict[str, Any], uri: str) -> Path:
    """Return the folder with configuration and weights, which are safetensors.

    Raises:
        SourceError: there is an adapter, or no weights, or other files of weights.
    """
    if flavor.get("peft_adaptor"):
        raise refused(
            f"{uri} holds an adapter (PEFT) without its base model", "a whole model", "log model.merge_and_unload()"
        )
    if not flavor.get("model_binary"):
        raise refused(
            f"{uri} holds no weights, only the name {flavor.get('source_model_name')!r} of a model elsewhere",
            "a version with its weights",
            "log it with mlflow.transformers.log_model(..., save_pretrained=True), or call "
            "mlflow.transformers.persist_pretrained_model on it",
        )
    folder = inside(model, str(flavor["model_binary"]), said_by="MLmodel")
    _check_weights(folder, uri)
    return folder


def sentence_folder(model: Path, uri: str, data: str = "model.sentence_transformer") -> Path:
    """Return the folder of a model of the flavor `sentence_transformers`.

    Raises:
        SourceError: its weights are not safetensors, or it names classes of other libraries.
    """
    folder = inside(model, data, said_by="MLmodel")
    for module in read_json(folder / "modules.json", uri):
        kind, path = str(module.get("type")), str(module.get("path", ""))
        place = inside(folder, path, said_by="modules.json") if path else folder
        activation = None
        if (place / "config.json").exists():
            activation = read_json(place / "config.json", uri).get("activation_function")
        known = activation is None or str(activation).startswith(ACTIVATIONS)
        if not kind.startswith(SENTENCE_MODULES) or not known:
            raise refused(
                f"{uri} has a module of the class {kind if known else activation}, whose code quantgate does not run",
                "modules of sentence_transformers and activations of torch",
                "log the model as ONNX with mlflow.onnx.log_model",
            )
    for place in {folder, *(path.parent for pattern in PICKLES for path in folder.rglob(pattern))}:
        _check_weights(place, uri)
    need_libraries(["sentence_transformers"], "transformers", uri)
    return folder


def read_json(path: Path, uri: str) -> Any:
    """Return the content of a JSON file of a model.

    Raises:
        SourceError: there is no such file, or it is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise refused(
            f"{uri}: {path.name} cannot be read: {str(error)[:200]}",
            "the file as the library writes it",
            "log it again",
        ) from error


def _check_weights(folder: Path, uri: str) -> None:
    if any(folder.glob("*.safetensors")):
        return
    found = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    raise refused(
        f"{uri}: {', '.join(found) or 'no weights'} in {folder.name}",
        "weights in safetensors: other formats can run any code when they are loaded",
        "save the model with save_pretrained(..., safe_serialization=True), which writes model.safetensors, and log it again",
    )


def refused(found: str, expected: str, fix: str) -> SourceError:
    return SourceError(found=found, expected=expected, fix=fix)
