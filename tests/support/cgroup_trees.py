"""Fabricated files of the kernel about control groups, below a folder that stands for `/`."""

from __future__ import annotations

from pathlib import Path

UNIFIED = "31 23 0:28 {start} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate\n"
CPU_V1 = "32 31 0:29 {start} /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
USAGE_V1 = "33 31 0:30 {start} /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n"
OTHERS = "30 23 0:27 / / rw - ext4 /dev/vda rw\n34 31 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def plant(root: Path, cgroup: str, mounts: str, **files: str) -> Path:
    """The files of the kernel below `root`; names of `files` are paths below /sys/fs/cgroup."""
    texts = {"proc/self/cgroup": cgroup, "proc/self/mountinfo": OTHERS + mounts}
    for name, text in (texts | {f"sys/fs/cgroup/{path}": text for path, text in files.items()}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def v2(root: Path, cgroup: str = "0::/\n", start: str = "/", **files: str) -> Path:
    return plant(root, cgroup, UNIFIED.format(start=start), **files)
