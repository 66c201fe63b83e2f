"""A machine that moves entries of the store: `python scaling_store.py NAME COUNT BYTES` with QUANTGATE_STATE, QUANTGATE_STORE.

It makes its entries, then forgets them and fetches them, and prints the seconds of both. Each part waits for a line on standard
input, so that several processes begin together.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tasks.run.settings import state_folder, store_place
from tasks.storage.product import Product
from tasks.storage.store import Store, open_store


@dataclass(frozen=True)
class Blob:
    """A record with one file."""

    file: Path


def _all(store: Store, name: str, content: bytes, count: int) -> float:
    """Ask for the entries, which are made where they are not there."""

    def maker(folder: Path) -> Blob:
        (folder / "blob").write_bytes(content)
        return Blob(folder / "blob")

    print("ready", flush=True)
    sys.stdin.readline()
    started = time.monotonic()
    for number in range(count):
        store.make(Product("scaling", (name, number), Blob, maker))
    return time.monotonic() - started


def main(name: str, count: int, size: int) -> None:
    state, content = state_folder(), os.urandom(size)
    for part in ("put", "fetched"):
        seconds = _all(open_store(state, store_place()), name, content, count)
        print(f"{part} {seconds:.3f}", flush=True)
        shutil.rmtree(state)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
