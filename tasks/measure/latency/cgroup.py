"""CPU quotas of the control groups that this process is in: cgroup v2 (`cpu.max`) and v1 (`cpu.cfs_quota_us`).

A container with `--cpus=4` or a Kubernetes limit may run on all processors of its node, but only for so long in each period;
then the kernel stops all its threads until the next period. The affinity mask shows nothing of this.

Sources: Linux kernel documentation, "Control Group v2", section CPU, and "CFS Bandwidth Control".
`tasks/champion/consumer/consumer.py` has its own copy of what reads the quota, since it is shipped alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Name of the v2 hierarchy, where v1 has the names of controllers.
_UNIFIED = ""


@dataclass(frozen=True)
class CpuLimit:
    """One control group with a CPU quota: the quota in cores, and its accounts in seconds since the group was made.

    `throttled_seconds` sums the time for which the quota stopped its threads over the processors. The accounts are None where
    the kernel keeps none.
    """

    quota_cores: float
    used_seconds: float | None = None
    throttled_seconds: float | None = None


def cpu_limits(root: Path = Path("/")) -> tuple[CpuLimit, ...]:
    """Return every quota that holds for this process, its own group's first, then those of the ancestors that it can see.

    `root` is the folder that has `proc` and `sys`.
    """
    found = (_limit(folder, accounts) for folder, accounts in _groups(root))
    return tuple(limit for limit in found if limit is not None)


def quota_cores(root: Path = Path("/")) -> float | None:
    """Return the smallest quota that holds for this process, in cores; None without one."""
    return min((limit.quota_cores for limit in cpu_limits(root)), default=None)


def _limit(folder: Path, accounts: Path) -> CpuLimit | None:
    quota, period, *_ = [*_read(folder / "cpu.max").split(), "", ""]
    if not quota:  # v1
        quota, period = _read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()
    # "max" in v2 and -1 in v1 stand for no quota.
    if not (quota.isdigit() and period.isdigit() and int(quota) and int(period)):
        return None
    stat = dict(line.split() for line in _read(folder / "cpu.stat").splitlines() if len(line.split()) == 2)
    usage = _read(accounts / "cpuacct.usage").strip()
    used = _seconds(stat, "usage_usec", 1e6) if "usage_usec" in stat else int(usage) / 1e9 if usage else None
    throttled = _seconds(stat, "throttled_usec", 1e6)
    return CpuLimit(
        int(quota) / int(period), used, _seconds(stat, "throttled_time", 1e9) if throttled is None else throttled
    )


def _seconds(stat: dict[str, str], key: str, unit: float) -> float | None:
    return int(stat[key]) / unit if key in stat else None


def _groups(root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the folders of this process's groups in each hierarchy with a CPU controller, with those of v1's usage."""
    paths = _memberships(root)
    mounts = _mounts(root)
    for hierarchy in (_UNIFIED, "cpu"):
        for mounted, top in mounts.get(hierarchy, ()):
            leaf = _below(top, mounted, paths.get(hierarchy, "/"))
            # v1 may mount the usage accounts as a hierarchy of their own.
            usage = next((other for _, other in mounts.get("cpuacct", ())), top)
            folder = leaf
            while True:
                yield folder, usage / folder.relative_to(top)
                if folder == top:
                    break
                folder = folder.parent


def _memberships(root: Path) -> dict[str, str]:
    """Return the path of this process's group by controller, from /proc/self/cgroup: `4:cpu,cpuacct:/a/b`, v2 `0::/a/b`."""
    found = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        found.update(dict.fromkeys(controllers.split(","), path))
    return found


def _mounts(root: Path) -> dict[str, list[tuple[str, Path]]]:
    """Return which group each mounted hierarchy starts at, and where it is mounted, by controller (proc_pid_mountinfo(5))."""
    found: dict[str, list[tuple[str, Path]]] = {}
    for line in _read(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, _, options) = left.split(), right.split(" ", 2)
        names = {"cgroup2": [_UNIFIED], "cgroup": options.split(",")}.get(kind, [])
        for name in names:
            found.setdefault(name, []).append((fields[3], root / fields[4].lstrip("/")))
    return found


def _below(top: Path, mounted: str, path: str) -> Path:
    """Return the folder of the group `path` in a hierarchy whose mount starts at the group `mounted`.

    A container may see its own group alone: its mount then starts there, or the path leads out of what is mounted.
    """
    inside = f"{path.rstrip('/')}/".removeprefix(f"{mounted.rstrip('/')}/").strip("/")
    folder = top / inside
    return folder if ".." not in Path(inside).parts and folder.is_dir() else top


def _read(path: Path) -> str:
    """Return the text of a file of the kernel; empty where it is absent, or its group has gone."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
