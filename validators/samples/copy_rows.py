"""Some rows of a data file as a file of the same format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def copy_rows(path: Path, kept: NDArray[np.bool_], folder: Path) -> Path:
    """Write the rows that `kept`, shape `(rows,)`, marks into a folder under the same file name; return the new file."""
    target = folder / path.name
    if path.suffix == ".parquet":
        from pyarrow import parquet

        parquet.write_table(parquet.read_table(path).filter(kept), target)
    else:
        with np.load(path, allow_pickle=False) as archive:
            np.savez(target, **{name: archive[name][kept] for name in archive.files})
    return target
