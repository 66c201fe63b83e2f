"""Folders of decoders as MLflow logs them, and the context that windows and requests must fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.evidence.hugging_face import CONFIG, DECODERS, check_context, decoder_folder
from validators.errors import DataError, JobError, QuantgateError, SourceError
from validators.job.read_job import parse_job
from validators.records.run import DataFile
from validators.samples.datasets import Samples

TOLD = {"model_binary": "model"}
# A file of safetensors without any: the length of its header, and the header.
NO_TENSORS = (8).to_bytes(8, "little") + b"{}      "


def logged(folder: Path, *, architecture: str = DECODERS[0], weights: str = "model.safetensors") -> Path:
    """Return the folder of a logged model: weights in one folder, the tokenizer in another."""
    for place in ("model", "components/tokenizer"):
        (folder / place).mkdir(parents=True)
    (folder / "model" / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    (folder / "model" / weights).write_bytes(NO_TENSORS)
    (folder / "components/tokenizer/tokenizer.json").write_text("{}")
    return folder


def test_the_tokenizer_is_put_beside_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.evidence.hugging_face.need_libraries", lambda *_: None)
    folder = decoder_folder(logged(tmp_path), TOLD, "models:/lm/1")
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}


@pytest.mark.parametrize(
    ("changes", "told", "words"),
    [
        ({"architecture": "GPT2LMHeadModel"}, TOLD, "is a GPT2LMHeadModel"),
        ({"weights": "pytorch_model.bin"}, TOLD, "pytorch_model.bin"),
        ({}, TOLD | {"peft_adaptor": "adapter"}, "an adapter"),
        ({}, {}, "no weights"),
    ],
)
def test_what_is_no_decoder_is_refused(
    tmp_path: Path, changes: dict[str, str], told: dict[str, Any], words: str
) -> None:
    with pytest.raises(SourceError) as caught:
        decoder_folder(logged(tmp_path, **changes), told, "models:/lm/1")  # type: ignore[arg-type]  # keywords of texts alone
    assert words in caught.value.found


def test_a_missing_tokenizer_is_refused(tmp_path: Path) -> None:
    (logged(tmp_path) / "components/tokenizer/tokenizer.json").unlink()
    with pytest.raises(SourceError) as caught:
        decoder_folder(tmp_path, TOLD, "models:/lm/1")
    assert "no tokenizer.json" in caught.value.found


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.evidence.flavors.find_spec", lambda _: None)
    with pytest.raises(SourceError) as caught:
        decoder_folder(logged(tmp_path), TOLD, "models:/lm/1")
    assert "onnxruntime-genai" in caught.value.found and "quantgate[genai]" in caught.value.fix


@pytest.mark.parametrize(
    ("window", "dims", "kind", "words"),
    [
        (100, {}, None, ""),
        (100, {"sequence_length": 64, "new_tokens": [64, 1]}, None, ""),
        (129, {"sequence_length": 8}, DataError, "windows of 129 tokens"),
        (100, {"sequence_length": 65, "new_tokens": 64}, JobError, "65 tokens and 64 that follow"),
        (100, {"sequence_length": 65}, JobError, "65 tokens and 64 that follow"),
        # Without a size the prompt is a window.
        (65, {}, JobError, "65 tokens and 64 that follow"),
    ],
)
def test_windows_and_requests_fit_the_context(
    tmp_path: Path, window: int, dims: dict[str, Any], kind: type[QuantgateError] | None, words: str
) -> None:
    (tmp_path / CONFIG).write_text(json.dumps({"model": {"context_length": 164 if not dims and not kind else 128}}))
    job = parse_job(
        {
            "source": "models:/lm/1",
            "target": "ort-genai",
            "data": {"calibration": "c.npz", "evaluation": "e.npz"},
            "measurement": {"dims": dims},
        },
        base=tmp_path,
    )
    windows = Samples(DataFile(tmp_path / "e.npz", "a" * 64, 4), {"input_ids": np.ones((4, window), np.int64)}, None)
    if kind is None:
        check_context(job, tmp_path, windows, "models:/lm/1")
        return
    with pytest.raises(kind) as caught:
        check_context(job, tmp_path, windows, "models:/lm/1")
    assert words in caught.value.found
