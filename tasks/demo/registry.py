"""Registration of the demos in MLflow, as a user would do it: logged in a run, then registered."""

from __future__ import annotations

import warnings
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.demo.built import Demo
from tasks.demo.splits import Array
from tasks.registry.mlflow_registry import connect, experiment_id, quiet_mlflow, registry_call, sent_once

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.models import ModelSignature
    from mlflow.types import TensorSpec

EXPERIMENT = "quantgate demo"
DIGEST_TAG = "quantgate.demo_digest"
_EXAMPLE_SAMPLES = 2  # with one sample, torch.export would treat the batch size as a constant


def register(built: Demo, tracking_uri: str, kind: str) -> str:
    """Register the demo of this kind and return its URI, such as `models:/sentiment-minilm/1`.

    If a version was registered from the same model file or weights before, that version is returned.

    Raises:
        InfrastructureError: the registry does not answer.
    """
    import mlflow

    with connect(tracking_uri) as client:
        if version := _known_version(client, built):
            return f"models:/{built.name}/{version}"
        experiment = experiment_id(client, EXPERIMENT, tracking_uri)
        with registry_call(mlflow.start_run, experiment_id=experiment, run_name=built.name):
            registry_call(mlflow.log_params, dict(built.notes))
            with warnings.catch_warnings():
                # MLflow 3.17 warns about a type hint of its own when its pyfunc flavor is imported.
                warnings.filterwarnings("ignore", ".*Any type hint is inferred as AnyType", UserWarning)
                model_uri = registry_call({"text": _log_text, "image": _log_image, "llm": _log_language}[kind], built)
        with quiet_mlflow(), sent_once():
            made: Any = registry_call(mlflow.register_model, model_uri, built.name, tags={DIGEST_TAG: built.digest})
        return f"models:/{built.name}/{made.version}"


def _log_text(built: Demo) -> str:
    """Log an ONNX model; return its URI."""
    import mlflow.onnx
    import onnx
    from mlflow.types import TensorSpec

    inputs = _example(built, ("input_ids", "attention_mask"))
    info = mlflow.onnx.log_model(
        onnx.load(built.model_path),
        name=built.name,
        signature=_signature([TensorSpec(array.dtype, (-1, -1), name) for name, array in inputs.items()], classes=2),
        input_example=inputs,
        # One file, so that its digest equals that of the built file.
        save_as_external_data=False,
        onnx_execution_providers=["CPUExecutionProvider"],
        pip_requirements=_pins("onnx", "onnxruntime"),
    )
    return str(info.model_uri)


def _log_image(built: Demo) -> str:
    """Log an exported PyTorch program; return its URI."""
    import mlflow.pytorch
    from mlflow.types import TensorSpec

    from tasks.demo.image import load_model

    image = _example(built, ("image",))["image"]
    info = mlflow.pytorch.log_model(
        load_model(built.model_path),
        name=built.name,
        # Without a name: MLflow's PyTorch flavor predicts on arrays, not on dictionaries.
        signature=_signature([TensorSpec(image.dtype, (-1, *image.shape[1:]))], classes=10),
        input_example=image,
        serialization_format="pt2",
        pip_requirements=_pins("torch"),
    )
    return str(info.model_uri)


def _log_language(built: Demo) -> str:
    """Log a decoder of transformers with its tokenizer; return its URI."""
    from tasks.demo.language import quiet_transformers

    with quiet_transformers(), quiet_mlflow():
        import mlflow.transformers
        import transformers

        library: Any = transformers
        folder = built.model_path.parent
        parts = {
            "model": library.AutoModelForCausalLM.from_pretrained(folder),
            "tokenizer": library.AutoTokenizer.from_pretrained(folder),
        }
        info = mlflow.transformers.log_model(
            parts, name=built.name, task="text-generation", pip_requirements=_pins("torch", "transformers")
        )
    return str(info.model_uri)


def _known_version(client: MlflowClient, built: Demo) -> int | None:
    # Every version, not only the latest: variants that quantgate promotes may be registered under the same name.
    versions: Any = registry_call(client.search_model_versions, f"name = '{built.name}'")
    same = [int(item.version) for item in versions if item.tags.get(DIGEST_TAG) == built.digest]
    return max(same, default=None)


def _example(built: Demo, names: tuple[str, ...]) -> dict[str, Array]:
    with np.load(built.calibration_path) as samples:
        return {name: samples[name][:_EXAMPLE_SAMPLES] for name in names}


def _signature(inputs: list[TensorSpec], *, classes: int) -> ModelSignature:
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    outputs = [TensorSpec(np.dtype(np.float32), (-1, classes), "logits")]
    return ModelSignature(inputs=Schema([*inputs]), outputs=Schema([*outputs]))


def _pins(*distributions: str) -> list[str]:
    # Listed explicitly: to infer them, MLflow would load the model in a process to see its imports.
    return [f"{name}=={metadata.version(name)}" for name in distributions if _installed(name)]


def _installed(name: str) -> bool:
    return any(True for _ in metadata.distributions(name=name))
