"""Exported PyTorch programs whose weights one ONNX file cannot hold: two files, or a refusal that says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_models import export_program
from torch import nn

from tasks.evidence.original_models import write_program
from tasks.runtimes.ort import open_session
from validators.errors import SourceError
from validators.records.run import SessionSettings


def program() -> Any:
    """An exported program with a dynamic batch."""
    module = nn.Sequential(nn.Linear(40, 300), nn.ReLU()).eval()
    return torch.export.export(module, (torch.zeros(2, 40),), dynamic_shapes=({0: torch.export.Dim.AUTO},))


def test_weights_beyond_one_file_go_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of models of more than 2 GB; the limit is lowered, and the outputs are the program's."""
    monkeypatch.setattr("validators.graph.stored.EXTERNAL_DATA_BYTES", 1000)
    exported = program()
    path = tmp_path / "model.onnx"
    write_program(exported, str(path))
    assert (tmp_path / "model.onnx.data").stat().st_size >= 300 * 40 * 4 and path.stat().st_size < 300 * 40 * 4
    x = np.random.default_rng(0).normal(size=(3, 40)).astype(np.float32)
    with open_session(path, SessionSettings("CPUExecutionProvider", 1)) as session:
        (found,) = session.run(None, {session.get_inputs()[0].name: x})
    with torch.no_grad():
        np.testing.assert_allclose(found, exported.module()(torch.from_numpy(x)).numpy(), atol=1e-5)


class Wide(nn.Module):
    """A product with a weight of 2.2 GB, of which every value is the same one in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(1).expand(23_200, 23_200))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


@pytest.mark.filterwarnings("ignore:No complete tensor found")
def test_weight_too_large_for_a_tensor_is_refused(tmp_path: Path) -> None:
    """ONNX's library fails on it with "Failed to serialize proto" otherwise."""
    path = tmp_path / "wide.pt2"
    torch.export.save(torch.export.export(Wide(), (torch.zeros(2, 23_200),)), path)
    assert path.stat().st_size < 1e6
    with pytest.raises(SourceError) as seen:
        export_program(path, tmp_path / "model.onnx", lambda _: pytest.fail("nothing is compared"))
    assert "'weight' has 2.2 GB" in seen.value.found and "split the layer" in seen.value.fix
