"""Six real models with data, each as the fields of a job: the demos' two, and four from packages or made from the demos'."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from flows.cli.demo import prepare_demo
from tasks.demo.assets import Asset, fetch, read_wheel


def wheel(distribution: str, version: str, sha256: str, tag: str = "py3-none-any") -> Asset:
    """A wheel under the name that it has on a package index."""
    return Asset(distribution, version, f"{distribution.replace('-', '_')}-{version}-{tag}.whl", sha256)


# All three Apache-2.0 or MIT by their own metadata.
OCR = wheel("rapidocr-onnxruntime", "1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf")
FILE_TYPES = wheel(
    "magika",
    "1.0.3",
    "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
    "py3-none-manylinux_2_28_x86_64",
)
SPEECH = wheel("speechmos", "0.0.1.1", "31c4c9d3234f6ee10102edff74333014c50006a3f389daf7ecacae34e68ebbf7")
CALIBRATION = 100
EVALUATION = 600
SPACE = "\u2581"
SEED = 7

Arrays = dict[str, NDArray[Any]]
Fields = dict[str, Any]


def demo_fields(state: Path, *, image: bool) -> Fields:
    """A demo: the sentiment classifier (MiniLM-L6, 48 tokens, 2,000 reviews), or EfficientNet-Lite0 with its digits head."""
    import yaml

    fields: Fields = yaml.safe_load(prepare_demo(state, "image" if image else "text").read_text(encoding="utf-8"))
    return {key: value for key, value in fields.items() if key not in ("target", "candidates", "gates")}


def embedding(state: Path) -> Fields:
    """The encoder of the text demo: one embedding per review, compared with the source's by cosine."""
    demo = Path(demo_fields(state, image=False)["data"]["calibration"]).parent
    folder = _folder(state, "embedding")
    if not (folder / "model.onnx").exists():
        model = onnx.load(demo / "model.onnx")
        head = next(node for node in reversed(model.graph.node) if node.op_type in ("Gemm", "MatMul"))
        names = [one.name for one in model.graph.input]
        onnx.utils.extract_model(str(demo / "model.onnx"), str(folder / "model.onnx"), names, [head.input[0]])
    data = {name: str(demo / f"{name}.npz") for name in ("calibration", "evaluation")}
    return {
        "source": str(folder / "model.onnx"),
        "data": data | {"label": "none", "ignore": ["label"]},
        "metric": "cosine",
    }


def ocr(state: Path) -> Fields:
    """PP-OCRv4 text recognition on drawn lines of text, 48 x 320 pixels: character error rate."""
    folder = _folder(state, "ocr")
    return {
        "source": text_lines(state, folder),
        "data": _data(folder) | {"label": "label"},
        "metric": "cer",
        "text": {"vocabulary": str(folder / "vocabulary.txt"), "decoding": "ctc", "separator": "", "space": SPACE},
    }


def file_types(state: Path) -> Fields:
    """Magika: the type of a file by its first and last 1,024 bytes, on the files of this Python installation."""
    folder = _folder(state, "file-types")
    return {"source": types_of_files(state, folder), "data": _data(folder), "metric": "agreement"}


def speech(state: Path) -> Fields:
    """DNSMOS: the quality of 9 seconds of speech-like sound at many noise levels, compared with the source's answers."""
    folder = _folder(state, "speech")
    return {"source": speech_quality(state, folder, evaluation=120), "data": _data(folder), "metric": "cosine"}


MODELS: dict[str, Callable[[Path], Fields]] = {
    "text": partial(demo_fields, image=False),
    "image": partial(demo_fields, image=True),
    "embedding": embedding,
    "ocr": ocr,
    "file types": file_types,
    "speech": speech,
}


def _folder(state: Path, name: str) -> Path:
    folder = state / "benchmark-models" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _data(folder: Path) -> dict[str, str]:
    return {name: str(folder / f"{name}.npz") for name in ("calibration", "evaluation")}


def shipped(state: Path, folder: Path, asset: Asset, member: str) -> Path:
    """Return the path of a model as the package ships it."""
    path = folder / Path(member).name
    if not path.exists():
        path.write_bytes(read_wheel(fetch(asset, state), member))
    return path


def text_lines(state: Path, folder: Path, **counts: int) -> str:
    """Write PP-OCRv4 with its vocabulary and samples of lines into a folder; return the model's path."""
    path = shipped(state, folder, OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx")
    found = onnx.load(path)
    characters = next(one.value for one in found.metadata_props if one.key == "character").splitlines()
    # Id 0 is the blank of CTC, and the last one the space.
    vocabulary = ["<blank>", *characters, SPACE]
    (folder / "vocabulary.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    ids = {token: number for number, token in enumerate(vocabulary)}
    write_samples(folder, lambda count, rng: lines(count, rng, ids, found.graph.input[0].name), **counts)
    return str(path)


def types_of_files(state: Path, folder: Path) -> str:
    """Write Magika with the ends of files into a folder; return the model's path."""
    path = shipped(state, folder, FILE_TYPES, "magika/models/standard_v3_3/model.onnx")
    remaining = file_ends()
    write_samples(folder, lambda count, _: {"bytes": np.stack([next(remaining) for _ in range(count)])})
    return str(path)


def speech_quality(state: Path, folder: Path, **counts: int) -> str:
    """Write DNSMOS with sounds into a folder; return the model's path."""
    path = shipped(state, folder, SPEECH, "speechmos/dnsmos_models/sig_bak_ovr.onnx")
    write_samples(folder, lambda count, rng: {"input_1": np.stack([sound(rng) for _ in range(count)])}, **counts)
    return str(path)


def write_samples(
    folder: Path,
    draw: Callable[[int, np.random.Generator], Arrays],
    *,
    calibration: int = CALIBRATION,
    evaluation: int = EVALUATION,
) -> None:
    rng = np.random.default_rng(SEED)
    for name, count in (("calibration", calibration), ("evaluation", evaluation)):
        arrays = draw(count, rng)
        if not (folder / f"{name}.npz").exists():
            np.savez(folder / f"{name}.npz", **arrays)


def lines(count: int, rng: np.random.Generator, ids: dict[str, int], name: str) -> Arrays:
    """Lines of up to 20 small letters, digits and spaces, grey on grey, in many sizes; labels are padded with -100."""
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz0123456789"))
    pixels = np.empty((count, 3, 48, 320), np.float32)
    labels = np.full((count, 24), -100, np.int64)
    for row in range(count):
        words = ["".join(rng.choice(letters, rng.integers(3, 8))) for _ in range(rng.integers(2, 4))]
        line = " ".join(words)[:20].strip()
        ink, paper = int(rng.integers(0, 90)), int(rng.integers(150, 256))
        drawn = Image.new("L", (320, 48), paper)
        font = ImageFont.load_default(float(rng.integers(18, 27)))
        ImageDraw.Draw(drawn).text((int(rng.integers(2, 12)), int(rng.integers(4, 16))), line, fill=ink, font=font)
        noisy = np.asarray(drawn, np.float32) + rng.normal(0, 6, (48, 320)).astype(np.float32)
        pixels[row] = noisy.clip(0, 255) / 127.5 - 1
        labels[row, : len(line)] = [ids[SPACE if letter == " " else letter] for letter in line]
    return {name: pixels, "label": labels}


def file_ends() -> Iterator[NDArray[np.int32]]:
    """Yield the first and last 1,024 bytes of different files of this Python installation."""
    files = [path for path in sorted(Path(sys.prefix).rglob("*")) if path.is_file() and path.stat().st_size > 2048]
    shuffled = (files[index] for index in np.random.default_rng(SEED).permutation(len(files)))
    # Some files are there twice, and a calibration sample must not be an evaluation sample, too.
    yield from {ends.tobytes(): ends for ends in map(_ends, islice(shuffled, 4 * EVALUATION))}.values()


def _ends(path: Path) -> NDArray[np.int32]:
    with path.open("rb") as file:
        first = file.read(1024)
        file.seek(-1024, 2)
        last = file.read(1024)
    return np.frombuffer(first + last, np.uint8).astype(np.int32)


def sound(rng: np.random.Generator) -> NDArray[np.float32]:
    """Nine seconds of syllables, harmonics of a gliding pitch with pauses, in noise of -5 to 40 dB below it."""
    rate, length = 16_000, 144_160
    times = np.arange(length) / rate
    pitch = rng.uniform(90, 240) * (1 + 0.1 * np.sin(2 * np.pi * rng.uniform(0.3, 1) * times))
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    voice = sum(np.sin(order * phase) / order ** rng.uniform(0.8, 1.6) for order in range(1, 20))
    syllables = np.clip(np.sin(2 * np.pi * rng.uniform(2, 5) * times) + rng.uniform(-0.3, 0.6), 0, None)
    voice = voice * syllables
    noise = rng.normal(0, 1, length) * np.std(voice) * 10 ** (-rng.uniform(-5, 40) / 20)
    mixed = voice + noise
    return np.asarray(mixed / np.abs(mixed).max() * rng.uniform(0.1, 0.9), np.float32)
