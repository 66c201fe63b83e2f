"""The three real models of the check, from the demos' assets: a sentence encoder, an image network, a language model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from gpu.answers import rows_of
from gpu.bundle import Bundle, Notes, arrays_of, narrow, pack, unpack
from tasks.measure.inventory import usable_cores
from validators.records.run import SessionSettings
from validators.target_facts import CPU_PROVIDER

Arrays = Mapping[str, NDArray[Any]]
IMAGES = 500
CALIBRATION_WINDOWS, WINDOWS, REQUEST_TOKENS = 16, 16, 128


def write(name: str, state: Path, folder: Path) -> Path:
    """Write `folder/<name>.zip` from the assets under `state`, with what rounding its weights cost in its notes."""
    with tempfile.TemporaryDirectory(prefix="quantgate-bundle-") as scratch:
        notes, model, calibration, evaluation, arrays = MODELS[name](state, Path(scratch))
        source = Path(scratch, "source.onnx")
        onnx.save_model(model, source)
        notes = replace(notes, rounded=narrow(model))
        path = pack(folder, notes, model, calibration, evaluation, arrays)
        rounded = unpack(path, Path(scratch, "unpacked"))
        before, after = (_value(replace(rounded, source=one)) for one in (source, rounded.source))
        notes = replace(notes, rounding={"before": before, "after": after, "samples": len(rounded.evaluation)})
        return pack(folder, notes, model, calibration, evaluation, arrays)


def _value(bundle: Bundle) -> float:
    """The metric of the bundle's source on ONNX Runtime's CPU provider."""
    return rows_of(bundle.source, SessionSettings(CPU_PROVIDER, usable_cores()), bundle)[1]


Packed = tuple[Notes, onnx.ModelProto, Arrays, Arrays, Arrays]


def _text(state: Path, _: Path) -> Packed:
    from tasks.demo.text import build

    demo = build(state)
    notes = Notes("text", "accuracy", "logits", (1, 8, 32), 32, module={"kind": "bert", "shape": {}, "classes": 2})
    return notes, onnx.load(demo.model_path), arrays_of(demo.calibration_path), arrays_of(demo.evaluation_path), {}


def _image(state: Path, _: Path) -> Packed:
    import torch

    from tasks.demo.image import CLASSES, build, load_model
    from tasks.demo.text import to_onnx

    demo = build(state)
    module = load_model(demo.model_path)
    calibration, evaluation = arrays_of(demo.calibration_path), arrays_of(demo.evaluation_path)
    model = to_onnx(module, (torch.from_numpy(evaluation["image"][:2]),), {"image": {0: "batch"}})
    notes = Notes("image", "accuracy", "logits", (1, 8, 32), 32, module={"kind": "efficientnet", "classes": CLASSES})
    # Batch norms are folded into the convolutions of the program, so that it lacks the module's own weights.
    arrays = {name: _half(tensor.numpy()) for name, tensor in module.state_dict().items()}
    return notes, model, calibration, {name: array[:IMAGES] for name, array in evaluation.items()}, arrays


def _language(state: Path, scratch: Path) -> Packed:
    from models.language import language_pool
    from models.llama import shape_of

    from tasks.demo.language import read_gguf

    pool = language_pool(scratch, state)
    shape = shape_of(read_gguf(state)[0])
    notes = Notes(
        "language",
        "perplexity",
        "logits",
        (1, 4, 16),
        4,
        dims={"input_ids": REQUEST_TOKENS},
        module={"kind": "llama", "shape": asdict(shape)},
    )
    calibration = {"input_ids": pool.calibration[:CALIBRATION_WINDOWS]}
    return notes, onnx.load(pool.model), calibration, {"input_ids": pool.evaluation[:WINDOWS]}, {}


def _half(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.float16) if array.dtype == np.float32 else array


MODELS: dict[str, Callable[[Path, Path], Packed]] = {"text": _text, "image": _image, "language": _language}
