"""Energy of the processor packages, from the kernel's power capping interface (RAPL: running average power limit)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Linux, Documentation/power/powercap/powercap.rst. Zones of AMD's processors have Intel's name there, too.
POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True)
class PackageEnergy:
    """The counters of all packages at one moment, in microjoules, and the values at which each starts again."""

    counters_uj: tuple[int, ...]
    ranges_uj: tuple[int, ...]

    def __sub__(self, before: PackageEnergy) -> float:
        """Return the joules that all packages took since an earlier reading, which was less than one whole range ago.

        >>> PackageEnergy((5, 2_000_000), (999, 9_000_000)) - PackageEnergy((995, 1_500_000), (999, 9_000_000))
        0.50001
        """
        pairs = zip(self.counters_uj, before.counters_uj, self.ranges_uj, strict=True)
        return sum((now - then) % (most + 1) for now, then, most in pairs) / 1e6


def read_packages(root: Path = POWERCAP) -> PackageEnergy | None:
    """Return the present counters; None where there are none, or where only root may read them.

    Zones inside of a package (cores, memory) and of the whole platform are left out: they would count twice.
    """
    try:
        zones = [zone for zone in sorted(root.glob("intel-rapl:*")) if _text(zone / "name").startswith("package-")]
        counters = tuple(int(_text(zone / "energy_uj")) for zone in zones)
        ranges = tuple(int(_text(zone / "max_energy_range_uj")) for zone in zones)
    except (OSError, ValueError):
        return None
    return PackageEnergy(counters, ranges) if zones else None


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()
