"""CPU quotas: read from fabricated trees of both versions of control groups, and from a real group where one can be made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cgroup_trees import CPU_V1, USAGE_V1, plant, v2

from tasks.measure import inventory
from tasks.measure.inventory import usable_cores
from tasks.measure.latency.cgroup import CpuLimit, cpu_limits, quota_cores


def test_v2_quota_with_its_accounts(tmp_path: Path) -> None:
    """2.5 cores; accounts in microseconds. A container sees its own group as the root of the tree."""
    stat = "usage_usec 3000000\nuser_usec 2000000\nnr_periods 9\nnr_throttled 4\nthrottled_usec 250000\n"
    root = v2(tmp_path, **{"cpu.max": "250000 100000\n", "cpu.stat": stat})
    assert cpu_limits(root) == (CpuLimit(2.5, 3.0, 0.25),)


def test_every_ancestor_limits(tmp_path: Path) -> None:
    """A pod of 2 cores that holds a container of 4; the group above has none."""
    files = {
        "pods/pod/box/cpu.max": "400000 100000",
        "pods/pod/cpu.max": "100000 50000",
        "pods/cpu.max": "max 100000",
        "other/cpu.max": "1000 100000",
    }
    root = v2(tmp_path, "0::/pods/pod/box\n", **files)
    assert [limit.quota_cores for limit in cpu_limits(root)] == [4.0, 2.0]
    assert quota_cores(root) == 2.0


@pytest.mark.parametrize(
    ("cgroup", "start"),
    [
        ("0::/\n", "/"),  # a namespace of its own
        ("0::/docker/box\n", "/docker/box"),  # the host's namespace, of which its own group alone is mounted
        ("0::/../other\n", "/"),  # moved out of the group that its namespace starts at
        ("0::/docker/box\n", "/"),  # a path of the host, where only the own group can be seen
    ],
)
def test_container_sees_its_quota_at_the_mount(cgroup: str, start: str, tmp_path: Path) -> None:
    assert quota_cores(v2(tmp_path, cgroup, start, **{"cpu.max": "150000 100000"})) == 1.5


@pytest.mark.parametrize("joined", [True, False])
def test_v1_quota_with_its_accounts(joined: bool, tmp_path: Path) -> None:
    """Accounts in nanoseconds; usage is in the same hierarchy, or in one of its own."""
    stat = "nr_periods 20\nnr_throttled 3\nthrottled_time 500000000\n"
    files = {
        "cpu/box/cpu.cfs_quota_us": "100000\n",
        "cpu/box/cpu.cfs_period_us": "100000\n",
        "cpu/box/cpu.stat": stat,
        "cpu/cpu.cfs_quota_us": "-1\n",
        "cpu/cpu.cfs_period_us": "100000\n",
        f"{'cpu' if joined else 'cpuacct'}/box/cpuacct.usage": "7000000000\n",
    }
    mounts = CPU_V1.format(start="/").replace("rw,cpu", "rw,cpu,cpuacct" if joined else "rw,cpu")
    mounts += "" if joined else USAGE_V1.format(start="/")
    cgroup = "5:memory:/m\n4:cpu,cpuacct:/box\n0::/\n" if joined else "4:cpu:/box\n3:cpuacct:/box\n0::/\n"
    assert cpu_limits(plant(tmp_path, cgroup, mounts, **files)) == (CpuLimit(1.0, 7.0, 0.5),)


@pytest.mark.parametrize("files", [{}, {"cpu.max": "max 100000\n"}, {"cpu.max": "\n"}, {"cpu.stat": "usage_usec 1\n"}])
def test_no_quota_is_none(files: dict[str, str], tmp_path: Path) -> None:
    assert cpu_limits(v2(tmp_path, **files)) == () and quota_cores(tmp_path) is None


def test_no_control_groups_is_no_quota(tmp_path: Path) -> None:
    assert cpu_limits(tmp_path) == ()


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (0.4, 1), (1.0, 1), (2.9, 2), (8.0, 8), (64.0, 8)])
def test_usable_cores_are_the_whole_cores_of_the_quota(
    quota: float | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounded down, one at least, and never more than the affinity mask has."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(inventory, "quota_cores", lambda: quota)
    assert usable_cores() == cores


# A real group


V1 = Path("/sys/fs/cgroup")
UNIFIED_HERE = (V1 / "cgroup.controllers").exists()
INSIDE = """
import json, os, sys
from pathlib import Path
from tasks.measure.latency.cgroup import cpu_limits, quota_cores
from tasks.measure.latency.disturbance import DisturbanceWatch
from tasks.measure.inventory import usable_cores
quota, text, *groups = sys.argv[1:]
for group in groups:
    Path(group, "cgroup.procs").write_text(str(os.getpid()))
found = {"quota": quota_cores(), "cores": usable_cores()}
Path(quota).write_text(text)
watch, (before,) = DisturbanceWatch(os.getpid()), cpu_limits()
while cpu_limits()[0].used_seconds - before.used_seconds < 0.1:
    sum(range(1000))
found["throttled"] = cpu_limits()[0].throttled_seconds - before.throttled_seconds
found["block"] = watch.conditions().quota_throttled_cores
print(json.dumps(found))
"""
TENTH = "10000"


@pytest.fixture
def groups() -> Iterator[list[Path]]:
    """Folders of a new control group with a quota of one core; skipped where none can be made."""
    name = f"quantgate-test-{os.getpid()}"
    made = [V1 / name] if UNIFIED_HERE else [V1 / "cpu" / name, V1 / "cpuacct" / name]
    try:
        if UNIFIED_HERE:
            (V1 / "cgroup.subtree_control").write_text("+cpu", encoding="ascii")
        for folder in made:
            folder.mkdir()
        quota_file(made).write_text(f"100000{' 100000' * UNIFIED_HERE}", encoding="ascii")
    except OSError as error:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        pytest.skip(f"no control group with a CPU quota can be made here: {error}")
    yield made
    for folder in made:
        folder.rmdir()


def quota_file(groups: list[Path]) -> Path:
    return groups[0] / ("cpu.max" if UNIFIED_HERE else "cpu.cfs_quota_us")


def test_process_in_a_real_group_has_its_quota(groups: list[Path]) -> None:
    """One core is one thread; at a tenth of a core a loop is throttled, and the watch of a block sees it."""
    command = [sys.executable, "-c", INSIDE, str(quota_file(groups)), TENTH, *map(str, groups)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["quota"], found["cores"]) == (1.0, 1)
    assert found["throttled"] > 0 and found["block"] > 0
