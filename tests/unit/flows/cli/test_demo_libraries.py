"""The demos name the libraries that an installation without their extra lacks, as the images do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.cli.demo import DemoKind, prepare_demo
from validators.errors import SourceError


@pytest.mark.parametrize(
    ("kind", "missing", "extra"),
    [
        ("text", "tokenizers and safetensors", "demo"),
        ("image", "safetensors", "demo"),
        ("llm", "transformers and onnxruntime-genai and gguf", "genai"),
    ],
)
def test_demo_without_its_libraries_names_the_extra(
    kind: DemoKind, missing: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(name: str, *_: Any) -> None:
        """Find no module."""

    monkeypatch.setattr("tasks.evidence.flavors.find_spec", nothing)
    with pytest.raises(SourceError, match=rf"needs {missing}, which(.|\n)*quantgate\[{extra}\]"):
        prepare_demo(tmp_path, kind)
    assert list(tmp_path.iterdir()) == []
