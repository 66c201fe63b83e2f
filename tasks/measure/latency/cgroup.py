"""CPU quotas of the control groups of this process: cgroup v2 (`cpu.max`) and v1 (`cpu.cfs_quota_us`).

A container with `--cpus=4` or a Kubernetes limit may run on all processors of its node, but only for a limited time per
period. Then the kernel stops all its threads until the next period. The affinity mask does not show this.

Sources: Linux kernel documentation, "Control Group v2", section CPU, and "CFS Bandwidth Control".
`tasks/champion/consumer/consumer.py` has its own copy of the code that reads the quota, since it is shipped alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Key of the v2 hierarchy; v1 hierarchies have the names of their controllers.
_UNIFIED = ""


@dataclass(frozen=True)
class CpuLimit:
    """One control group with a CPU quota: the quota in cores, and its counters in seconds since the group was created.

    `throttled_seconds` is the time for which the quota stopped its threads, summed over processors. A counter is None where
    the kernel keeps none.
    """

    quota_cores: float
    used_seconds: float | None = None
    throttled_seconds: float | None = None


def cpu_limits(root: Path = Path("/")) -> tuple[CpuLimit, ...]:
    """Return every quota that applies to this process: its own group's first, then those of the visible ancestors.

    `root` is the folder that contains `proc` and `sys`.
    """
    found = (_limit(folder, accounts) for folder, accounts in _groups(root))
    return tuple(limit for limit in found if limit is not None)


def quota_cores(root: Path = Path("/")) -> float | None:
    """Return the smallest quota that applies to this process, in cores; None without a quota."""
    return min((limit.quota_cores for limit in cpu_limits(root)), default=None)


def _limit(folder: Path, accounts: Path) -> CpuLimit | None:
    quota, period, *_ = [*_read(folder / "cpu.max").split(), "", ""]
    if not quota:  # v1
        quota, period = _read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()
    # "max" in v2 and -1 in v1 mean no quota.
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
    """Yield the folders of this process's groups in each hierarchy with a CPU controller, each with its v1 usage folder."""
    paths = _memberships(root)
    mounts = _mounts(root)
    for hierarchy in (_UNIFIED, "cpu"):
        for mounted, top in mounts.get(hierarchy, ()):
            leaf = _below(top, mounted, paths.get(hierarchy, "/"))
            # v1 may mount the usage counters as a separate hierarchy.
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
    """Return the root group and the mount point of each mounted hierarchy, by controller (proc_pid_mountinfo(5))."""
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

    A container may see only its own group. Its mount then starts there, or the path leads out of the mount.
    """
    inside = f"{path.rstrip('/')}/".removeprefix(f"{mounted.rstrip('/')}/").strip("/")
    folder = top / inside
    return folder if ".." not in Path(inside).parts and folder.is_dir() else top


def _read(path: Path) -> str:
    """Return the text of a kernel file; empty if it is absent, or its group no longer exists."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
