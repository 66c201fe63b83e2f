"""Files in parts that fit where little can be carried at once, and back together. Needs no more than Python itself and git."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from validators.errors import DataError

ROOT = Path(__file__).resolve().parents[2]
# A transfer to a borrowed machine, the working tree included; and what an archive of them adds.
CARRIED_BYTES, _MARGIN_BYTES = 64 << 20, 1 << 20
# A part's name ends in its number and how many there are, so that a missing one is noticed.
SEPARATOR = ".part-"


def part_bytes(root: Path = ROOT, limit: int = CARRIED_BYTES) -> int:
    """Return how large a part may be that is carried with the tree at `root`, so that both are below `limit` bytes.

    The tree is what git tracks, or would: files that it ignores stay behind.
    """
    listed = subprocess.run(
        [shutil.which("git") or "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    paths = [root / name for name in listed.stdout.decode().split("\0") if name]
    return limit - sum(path.stat().st_size for path in paths if path.is_file()) - _MARGIN_BYTES


def split(path: Path, part_bytes: int) -> list[Path]:
    """Cut a file that is larger than `part_bytes` into `<name>.part-<i>-of-<n>-<sha256 of the whole, 16 digits>`; remove it.

    Returns the parts, or the file itself where it is small enough.
    """
    size = path.stat().st_size
    if size <= part_bytes:
        return [path]
    count = -(-size // part_bytes)
    digest, parts = _digest(path), []
    with path.open("rb") as stream:
        for index in range(count):
            part = path.with_name(f"{path.name}{SEPARATOR}{index + 1:02d}-of-{count:02d}-{digest}")
            part.write_bytes(stream.read(part_bytes))
            parts.append(part)
    path.unlink()
    return parts


def join(folder: Path) -> list[Path]:
    """Put the parts in a folder back together, check each file by its digest, and remove the parts; returns the files.

    Raises:
        DataError: a part is missing, or the whole is not what was split; the other files are put together all the same.
    """
    whole: dict[str, list[Path]] = {}
    for part in sorted(folder.glob(f"*{SEPARATOR}*-of-*-*")):
        name, _, rest = part.name.partition(SEPARATOR)
        whole.setdefault(f"{name}{SEPARATOR}{rest.partition('-of-')[2]}", []).append(part)
    joined, failed = [], []
    for parts in whole.values():
        try:
            joined.append(_join(parts))
        except DataError as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return joined


def _join(parts: list[Path]) -> Path:
    name, _, rest = parts[0].name.partition(SEPARATOR)
    count, digest = rest.partition("-of-")[2].split("-")
    if len(parts) != int(count):
        raise DataError(
            found=f"{len(parts)} of {int(count)} parts of {name}",
            expected="all parts in one folder",
            fix="copy the missing ones, or split the file again",
        )
    path = parts[0].with_name(name)
    partial = path.with_name(f"{name}.partial")
    with partial.open("wb") as target:
        for part in parts:
            target.write(part.read_bytes())
    found = _digest(partial)
    if found != digest:
        partial.unlink()
        raise DataError(
            found=f"parts of {name} with the digest {found}", expected=digest, fix="copy the parts again, none is whole"
        )
    partial.rename(path)
    for part in parts:
        part.unlink()
    return path


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]
