"""The challenger beside the champion: under which conditions both are compared."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.champion import compare_champion as measure_champion
from tasks.champion.compare_champion import contestants
from tasks.measure.inventory import usable_cores
from validators.job.job_measurement import Measurement
from validators.providers import CPU_PROVIDER
from validators.records.run import Champion, SessionSettings, Variant

CHAMPION = Champion("m-quantized", "3", "champion-ort-cpu", "d", "s", "int8-dynamic-pc@ort-cpu")


def variant(threads: int) -> Variant:
    return Variant("int8-dynamic-pc@ort-cpu", Path("model.onnx"), "d", 1, SessionSettings(CPU_PROVIDER, threads))


@pytest.mark.parametrize(("asked", "expected"), [(1, 1), (0, usable_cores())])
def test_champion_is_timed_with_the_threads_of_the_job(
    monkeypatch: pytest.MonkeyPatch, asked: int, expected: int
) -> None:
    """A champion that was approved with 16 threads elsewhere gets as many as its challenger here; 0 takes all cores."""
    monkeypatch.setattr(measure_champion, "variant_of", lambda *_: variant(16))
    run: Any = SimpleNamespace(job=SimpleNamespace(measurement=Measurement(threads=(asked,))))
    both = contestants(run, CHAMPION, variant(5))
    assert [one.session.threads for one in both] == [expected, expected]
