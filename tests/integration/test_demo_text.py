"""The text demo: its BERT is BERT, its export is good for optimizers, its data does not leak."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from scipy.special import erf, softmax

from tasks.demo import text
from tasks.demo.bert import BertEncoder, BertShape, Dense, TextClassifier, encoder_from

Floats = NDArray[np.float64]
SHAPE = BertShape(vocabulary=50, positions=20, width=8, heads=2, inner_width=12, layers=2, layer_norm_epsilon=1e-5)


def checkpoint(seed: int = 0) -> dict[str, Any]:
    """Random weights under the names of a BERT checkpoint, sized by SHAPE."""
    import torch

    rng = np.random.default_rng(seed)
    sizes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (SHAPE.vocabulary, SHAPE.width),
        "embeddings.position_embeddings.weight": (SHAPE.positions, SHAPE.width),
        "embeddings.token_type_embeddings.weight": (2, SHAPE.width),
        "embeddings.LayerNorm": (SHAPE.width,),
    }
    for layer in (f"encoder.layer.{index}" for index in range(SHAPE.layers)):
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            sizes[f"{layer}.{name}"] = (SHAPE.width, SHAPE.width)
        sizes[f"{layer}.intermediate.dense"] = (SHAPE.inner_width, SHAPE.width)
        sizes[f"{layer}.output.dense"] = (SHAPE.width, SHAPE.inner_width)
        sizes[f"{layer}.attention.output.LayerNorm"] = (SHAPE.width,)
        sizes[f"{layer}.output.LayerNorm"] = (SHAPE.width,)
    tensors = {}
    for name, size in sizes.items():
        key = name if name.endswith("weight") else f"{name}.weight"
        tensors[key] = rng.normal(size=size)
        if key != name:
            tensors[f"{name}.bias"] = rng.normal(size=size[:1])
    return {name: torch.from_numpy(array.astype(np.float32)) for name, array in tensors.items()}


def reference(weights: dict[str, Floats], ids: NDArray[np.int64]) -> Floats:
    """BERT as its paper has it, for one text without padding, in float64: int64 [tokens] to [width]."""

    def dense(x: Floats, name: str) -> Floats:
        return np.asarray(x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"])

    def norm(x: Floats, name: str) -> Floats:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + SHAPE.layer_norm_epsilon)
        return np.asarray(scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"])

    x = weights["embeddings.word_embeddings.weight"][ids]
    x = x + weights["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    head_width = SHAPE.width // SHAPE.heads
    for layer in (f"encoder.layer.{index}" for index in range(SHAPE.layers)):
        query, key, value = (dense(x, f"{layer}.attention.self.{name}") for name in ("query", "key", "value"))
        heads = []
        for start in range(0, SHAPE.width, head_width):
            columns = slice(start, start + head_width)
            scores = query[:, columns] @ key[:, columns].T / np.sqrt(head_width)
            heads.append(softmax(scores, axis=-1) @ value[:, columns])
        attended = dense(np.concatenate(heads, axis=-1), f"{layer}.attention.output.dense")
        x = norm(attended + x, f"{layer}.attention.output.LayerNorm")
        inner = dense(x, f"{layer}.intermediate.dense")
        inner = inner * (1 + erf(inner / np.sqrt(2))) / 2
        x = norm(dense(inner, f"{layer}.output.dense") + x, f"{layer}.output.LayerNorm")
    return np.asarray(x.mean(axis=0))


def samples(lengths: tuple[int, ...], width: int, seed: int = 5) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    mask = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int64)
    return {"input_ids": rng.integers(1, SHAPE.vocabulary, mask.shape) * mask, "attention_mask": mask}


@pytest.fixture(scope="module")
def classifier() -> TextClassifier:
    return TextClassifier(encoder_from(checkpoint(), SHAPE), Dense(SHAPE.width, 2)).eval()


@pytest.fixture(scope="module")
def proto(classifier: TextClassifier) -> onnx.ModelProto:
    return text.exported(classifier)


def test_the_encoder_is_bert_and_does_not_see_padding(classifier: TextClassifier) -> None:
    import torch

    weights = {name: tensor.numpy().astype(np.float64) for name, tensor in checkpoint().items()}
    batch = samples((3, 7, 10), 12)
    with torch.inference_mode():
        got = classifier.encoder(*(torch.from_numpy(array) for array in batch.values())).numpy()
    expected = [reference(weights, ids[ids > 0]) for ids in batch["input_ids"]]
    np.testing.assert_allclose(got, expected, atol=2e-5)


def test_a_checkpoint_of_another_size_is_refused() -> None:
    import torch

    tensors = checkpoint() | {"embeddings.position_embeddings.weight": torch.zeros(19, SHAPE.width)}
    with pytest.raises(RuntimeError, match="positions"):
        encoder_from(tensors, SHAPE)
    del tensors["encoder.layer.1.output.LayerNorm.bias"]
    with pytest.raises(KeyError, match=r"layer\.1\.output\.LayerNorm\.bias"):
        encoder_from(tensors, SHAPE)
    assert isinstance(encoder_from(checkpoint(), SHAPE), BertEncoder)


def test_the_export_has_dynamic_axes_and_plain_weights(proto: onnx.ModelProto) -> None:
    assert (proto.ir_version, proto.opset_import[0].version) == (10, 21)
    axes = {
        item.name: [d.dim_param or d.dim_value for d in item.type.tensor_type.shape.dim] for item in proto.graph.input
    }
    assert axes == {"input_ids": ["batch", "sequence"], "attention_mask": ["batch", "sequence"]}
    assert [item.name for item in proto.graph.output] == ["logits"]
    weights = {initializer.name for initializer in proto.graph.initializer}
    linear = [node for node in proto.graph.node if node.op_type == "MatMul" and node.input[1] in weights]
    assert len(linear) == 6 * SHAPE.layers + 1
    assert all(f"{node.name}.weight" == node.input[1] for node in linear)
    assert not any(node.op_type == "Transpose" and node.input[0] in weights for node in proto.graph.node)
    assert str(Path(__file__).parents[2]).encode() not in proto.SerializeToString()


def test_onnx_runtime_fuses_the_export(proto: onnx.ModelProto, tmp_path: Path) -> None:
    from onnxruntime.transformers.optimizer import optimize_model

    onnx.save(proto, tmp_path / "model.onnx")
    fused = optimize_model(
        str(tmp_path / "model.onnx"), model_type="bert", num_heads=SHAPE.heads, hidden_size=SHAPE.width
    )
    counts = fused.get_fused_operator_statistics()
    assert counts["Attention"] == SHAPE.layers
    assert counts["SkipLayerNormalization"] == 2 * SHAPE.layers
    assert counts["BiasGelu"] == SHAPE.layers


def test_embeddings_come_in_the_order_of_the_samples(classifier: TextClassifier, proto: onnx.ModelProto) -> None:
    import torch

    batch = samples(tuple(np.random.default_rng(2).integers(1, 13, 70)), 12)
    with torch.inference_mode():
        expected = classifier.encoder(*(torch.from_numpy(array) for array in batch.values())).numpy()
    np.testing.assert_allclose(text.embed(proto, batch), expected, atol=2e-5)


def test_the_head_of_both_models_is_the_fitted_regression(proto: onnx.ModelProto) -> None:
    from sklearn.linear_model import LogisticRegression

    model = TextClassifier(encoder_from(checkpoint(), SHAPE), Dense(SHAPE.width, 2)).eval()
    trained = onnx.ModelProto()
    trained.CopyFrom(proto)
    batch = samples(tuple(np.random.default_rng(2).integers(1, 13, 40)), 12)
    embeddings = text.embed(trained, batch)
    label = (embeddings[:, 0] > np.median(embeddings[:, 0])).astype(np.int64)
    text.train_head(embeddings, label, model, trained)
    logits = text._run(trained.SerializeToString(), batch)
    fitted = LogisticRegression(C=text.HEAD_C, max_iter=1000).fit(embeddings, label)
    np.testing.assert_allclose(softmax(logits, axis=1), fitted.predict_proba(embeddings), atol=1e-5)
    np.testing.assert_allclose(
        embeddings @ model.head.weight.detach().numpy() + model.head.bias.detach().numpy(), logits, atol=1e-5
    )


def review_archive(folder: Path, lines: list[str]) -> Path:
    """An archive in an archive, as the reviews come."""

    def pack(name: str, content: bytes) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        return buffer.getvalue()

    inner = pack("hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt", "\n".join(lines).encode())
    path = folder / "reviews.tar.gz"
    path.write_bytes(pack("vaderSentiment-2.5/additional_resources/hutto_ICWSM_2014.tar.gz", inner))
    return path


def test_reviews_are_distinct_and_rated(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 1, "good": 2, "bad": 3, "clichés": 4}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    long = " ".join(["bad"] * 60)
    lines = ["1\t2.5\tgood", "2\t-1.0\tbad clichés", "3\t0.0\tgood bad", "4\t-3.0\tgood", f"5\t-0.1\t{long}", ""]
    lines += [f"6\t4.0\t{long} good"]  # the same as number 5 as far as the model reads
    reviews, truncated_share = text.read_reviews(review_archive(tmp_path, lines), tokenizer.to_str().encode())
    assert reviews["label"].tolist() == [1, 0, 0]
    assert reviews["input_ids"].shape == reviews["attention_mask"].shape == (3, 48)
    assert reviews["input_ids"][:, :3].tolist() == [[2, 0, 0], [3, 4, 0], [3, 3, 3]]
    assert reviews["attention_mask"].sum(axis=1).tolist() == [1, 2, 48]
    assert truncated_share == pytest.approx(1 / 3)


@pytest.mark.slow
def test_the_text_demo(tmp_path: Path) -> None:
    from onnxruntime.transformers.optimizer import optimize_model

    built = text.build(tmp_path)
    assert text.build(tmp_path) == built
    assert built.notes["fp32_accuracy"] == pytest.approx(0.7725, abs=0.01)
    assert float(built.notes["parity_max_abs"]) < 1e-4
    with np.load(built.calibration_path) as file:
        calibration = dict(file)
    with np.load(built.evaluation_path) as file:
        evaluation = dict(file)
    assert calibration["input_ids"].shape == (128, 48) and evaluation["input_ids"].shape == (2000, 48)
    assert all(array.dtype == np.int64 for array in (*calibration.values(), *evaluation.values()))
    rows = [row.tobytes() for part in (calibration, evaluation) for row in part["input_ids"]]
    assert len(set(rows)) == len(rows)
    assert abs(calibration["label"].mean() - evaluation["label"].mean()) < 0.05
    counts = optimize_model(
        str(built.model_path), model_type="bert", num_heads=12, hidden_size=384
    ).get_fused_operator_statistics()
    assert (counts["Attention"], counts["SkipLayerNormalization"], counts["BiasGelu"]) == (6, 12, 6)
