"""Samples drawn from traffic."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tasks.watch.traffic import _draw, newest_files
from validators.records.run import DataFile
from validators.samples.datasets import Samples


def test_samples_too_few_for_one_batch_are_still_counted() -> None:
    """Three requests of a model with batches of four: none is drawn, and the look says that three were found."""
    arrays = {"x": np.arange(6, dtype=np.float32).reshape(3, 2)}
    read = [Samples(DataFile(Path("a.npz"), "d", 3), arrays, None)]
    assert _draw(read, 100, 4, 0) == (None, 3)
    drawn, found = _draw(read, 100, None, 0)
    assert drawn is not None and found == len(drawn.inputs["x"]) == 3


def test_every_type_of_data_file_is_listed(tmp_path: Path) -> None:
    names = {"a.npz", "b.parquet", "c.csv", "d.arrow"}
    for name in (*names, "notes.txt", ".hidden.npz", "_part.csv"):
        (tmp_path / name).write_bytes(b"x")
    assert {file.name for file in newest_files(tmp_path, 1.0)} == names
