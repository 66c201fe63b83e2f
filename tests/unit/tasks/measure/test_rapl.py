"""Energy of processor packages, on folders as the kernel lays them out."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tasks.measure.latency import disturbance
from tasks.measure.latency.disturbance import DisturbanceWatch
from tasks.measure.latency.rapl import PackageEnergy, read_packages


def write_zone(root: Path, zone: str, name: str, energy_uj: int | str, most: int = 262_143_328_850) -> None:
    folder = root / zone
    folder.mkdir(parents=True, exist_ok=True)
    for file, value in (("name", name), ("energy_uj", energy_uj), ("max_energy_range_uj", most)):
        (folder / file).write_text(f"{value}\n", encoding="ascii")


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Two sockets, whose cores and memory have zones of their own, and the platform."""
    write_zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    write_zone(tmp_path, "intel-rapl:0:0", "core", 400_000)
    write_zone(tmp_path, "intel-rapl:0:1", "dram", 300_000)
    write_zone(tmp_path, "intel-rapl:1", "package-1", 262_143_000_000)
    write_zone(tmp_path, "intel-rapl:2", "psys", 9_000_000)
    return tmp_path


def test_packages_alone_count_across_a_counter_that_starts_again(powercap: Path) -> None:
    before = read_packages(powercap)
    assert before == PackageEnergy((1_000_000, 262_143_000_000), (262_143_328_850,) * 2)
    write_zone(powercap, "intel-rapl:0", "package-0", 1_250_000)
    # 328,850 to the end of the range, one to start again, and 171,149 more: half a joule.
    write_zone(powercap, "intel-rapl:1", "package-1", 171_149)
    after = read_packages(powercap)
    assert after is not None and before is not None
    assert after - before == pytest.approx(0.25 + 0.5)


def test_without_readable_counters_there_is_no_energy(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder, an empty one, and a counter that another user may not read."""
    assert read_packages(powercap / "absent") is None
    (powercap / "empty").mkdir()
    assert read_packages(powercap / "empty") is None

    def denied(*_: object, **__: object) -> str:
        raise PermissionError("energy_uj")

    monkeypatch.setattr(Path, "read_text", denied)
    assert read_packages(powercap) is None


def test_block_has_the_energy_between_its_readings(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disturbance, "read_packages", lambda: read_packages(powercap))
    watch = DisturbanceWatch(os.getpid())
    write_zone(powercap, "intel-rapl:0", "package-0", 3_500_000)
    time.sleep(0.01)
    assert watch.conditions().growths["energy_j"] == pytest.approx(2.5)
