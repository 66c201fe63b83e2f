"""Logs small models of many MLflow flavors into a registry of files: `log_flavors.py FOLDER`.

It runs in a process of its own, since the libraries warn when they are imported.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
import mlflow
import numpy as np
import torch
import transformers
from mlflow.models import ModelSignature
from mlflow.types import Schema, TensorSpec
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tasks.evidence.sklearn_file import TRUSTED

TOKENS = ("input_ids", "attention_mask", "token_type_ids")
CONFIG: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


class Dictionary(torch.nn.Module):
    """A dictionary with a key like an input and a nested tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = torch.nn.Linear(64, 4)

    def forward(self, x: torch.Tensor, *, shift: torch.Tensor) -> dict[str, Any]:
        y = self.logits(x - shift)
        return {"logits": torch.relu(y), "nothing": None, "states": (y * 2, y + 1)}


def log_transformers(folder: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{index}" for index in range(95))]
    (folder / "vocab.txt").write_text("\n".join(words))
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"))
    config = transformers.BertConfig(**CONFIG)
    model = transformers.BertForSequenceClassification(config)
    told: dict[str, Any] = {"pip_requirements": ["transformers"]}
    parts = {"model": model, "tokenizer": tokenizer}
    mlflow.transformers.log_model(parts, name="bert", task="text-classification", registered_model_name="bert", **told)
    generator = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=100, n_embd=32, n_layer=1, n_head=4))
    parts = {"model": generator, "tokenizer": tokenizer}
    mlflow.transformers.log_model(parts, name="gpt", task="text-generation", registered_model_name="gpt", **told)
    encoder = transformers.BertModel(config).eval()
    encoder.save_pretrained(folder / "encoder")
    tokenizer.save_pretrained(folder / "encoder")
    sentences = SentenceTransformer(modules=[Transformer(str(folder / "encoder")), Pooling(32), Normalize()])
    mlflow.sentence_transformers.log_model(sentences, name="sentences", registered_model_name="sentences", **told)
    batch, sequence = torch.export.Dim("batch"), torch.export.Dim("sequence", max=64)
    shapes = {name: {0: batch, 1: sequence} for name in TOKENS}
    # Tensors of their own: the exporter takes one object given twice for one input.
    ids = {name: torch.ones((2, 8), dtype=torch.int64) for name in TOKENS}
    log_program("model_output", torch.export.export(encoder, (), ids, dynamic_shapes=shapes))


def log_program(name: str, program: torch.export.ExportedProgram) -> None:
    """Log a program; MLflow itself exports with positional arguments alone, so its program is replaced."""
    example = np.zeros((2, 64), np.float32)
    info = mlflow.pytorch.log_model(
        torch.nn.Linear(64, 4), name=name, serialization_format="pt2", input_example=example, pip_requirements=["torch"]
    )
    (logged,) = Path(mlflow.artifacts.download_artifacts(info.model_uri)).rglob("*.pt2")
    torch.export.save(program, logged)
    mlflow.register_model(info.model_uri, name)


def log_torch() -> None:
    x, batch = torch.ones(4, 64), {0: torch.export.Dim("batch")}
    log_program(
        "dictionary",
        torch.export.export(Dictionary(), (x,), {"shift": x * 3}, dynamic_shapes={"x": batch, "shift": batch}),
    )
    example = np.zeros((2, 64), np.float32)
    signature = ModelSignature(Schema([TensorSpec(np.dtype("float32"), (-1, 64), "x")]))
    mlflow.pytorch.log_model(
        torch.nn.Linear(64, 4),
        name="pickled",
        registered_model_name="pickled",
        serialization_format="pickle",
        pip_requirements=["torch"],
        signature=signature,
        input_example={"x": example},
    )


def log_sklearn() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 8)).astype(np.float32), rng.integers(0, 3, 200)
    models = {
        "sk-mlp": make_pipeline(StandardScaler(), MLPClassifier((32,), max_iter=5)),
        "sk-linear": make_pipeline(StandardScaler(), LogisticRegression()),
        "sk-trees": RandomForestClassifier(3),
    }
    for name, model in models.items():
        mlflow.sklearn.log_model(
            model.fit(x, y),
            name=name,
            registered_model_name=name,
            serialization_format="skops",
            skops_trusted_types=[*TRUSTED, "sklearn.tree._tree.Tree"],
            pip_requirements=["scikit-learn"],
        )
    mlflow.sklearn.log_model(
        models["sk-mlp"],
        name="sk-pickled",
        registered_model_name="sk-pickled",
        serialization_format="cloudpickle",
        pip_requirements=["scikit-learn"],
    )


def log_keras() -> None:
    layers = keras.layers
    tokens, extra = layers.Input((12,), dtype="int32", name="tokens"), layers.Input((4,), name="extra")
    words = layers.Embedding(100, 32)(tokens)
    words = layers.LayerNormalization()(layers.MultiHeadAttention(4, 8)(words, words))
    joined = layers.Concatenate()([layers.GlobalAveragePooling1D()(words), extra])
    two = keras.Model(
        {"tokens": tokens, "extra": extra}, {"kind": layers.Dense(3)(joined), "size": layers.Dense(1)(joined)}
    )
    image = keras.Sequential(
        [
            layers.Input((16, 16, 3), name="image"),
            layers.Conv2D(8, 3, strides=2, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(4, activation="softmax", name="scores"),
        ]
    )
    code = keras.Sequential([layers.Input((4,)), layers.Lambda(lambda x: x * 2)])
    for name, model in (("keras-two", two), ("keras-image", image), ("keras-code", code)):
        mlflow.keras.log_model(model, name=name, registered_model_name=name, pip_requirements=["keras"])


if __name__ == "__main__":
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    root = Path(sys.argv[1])
    os.chdir(root)
    mlflow.set_tracking_uri(f"sqlite:///{root}/mlflow.db")
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("flavors", f"file://{root}/artifacts"))
    with mlflow.start_run():
        log_torch()
        log_sklearn()
        log_keras()
        log_transformers(root)
