"""Some rows of a data file, or of a folder of them, in the same format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from validators.samples.readers import arrays_of, read_arrays, shards_of
from validators.samples.tables import arrow_table, csv_table


def copy_rows(path: Path, kept: NDArray[np.bool_], folder: Path) -> Path:
    """Write the rows that `kept`, shape `(rows,)`, marks into a folder under the same name; return the new file or folder."""
    target = folder / path.name
    if path.is_dir():
        target.mkdir()
        for file in arrays_of(path):
            np.save(target / file.name, np.load(file, mmap_mode="r", allow_pickle=False)[kept])
        if arrays_of(path):
            return target
        start = 0
        for file in shards_of(path, "the"):
            rows = len(next(iter(read_arrays(file, "the").values())))
            copy_rows(file, kept[start : start + rows], target)
            start += rows
    elif path.suffix == ".parquet":
        from pyarrow import parquet

        parquet.write_table(parquet.read_table(path).filter(kept), target)
    elif path.suffix == ".arrow":
        import pyarrow

        table = arrow_table(path).filter(pyarrow.array(kept))
        with pyarrow.ipc.new_file(target, table.schema) as written:
            written.write_table(table)
    elif path.suffix == ".csv":
        from pyarrow import csv

        csv.write_csv(csv_table(path).filter(kept), target)
    else:
        with np.load(path, allow_pickle=False) as archive:
            np.savez(target, **{name: archive[name][kept] for name in archive.files})
    return target
