"""The challenger beside the champion: under which conditions both are compared."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processors import KINDS

from tasks.champion import compare_champion as measure_champion
from tasks.champion.compare_champion import contestants, refuse_processor
from tasks.measure.inventory import usable_cores
from validators.errors import CandidateRefused
from validators.job.job_measurement import Measurement
from validators.records.run import Champion, SessionSettings, Variant
from validators.target_facts import CPU_PROVIDER

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


INT8 = {"saturates_without": ["avx512_vnni", "avx_vnni"], "session": {"provider": "CPUExecutionProvider"}}
COMPILED = {
    "session": {"provider": "TorchInductor"},
    "hardware": {"isa": {"avx2": True, "avx512f": True, "avx512_vnni": False}},
}


@pytest.mark.parametrize(
    ("manifest", "kind", "words"),
    [
        (INT8, "AVX2", "sums of the champion's INT8 products saturate"),
        (COMPILED, "AVX-VNNI", "without instructions that the champion was compiled for"),
    ],
    ids=["8-bit weights", "compiled"],
)
def test_a_champion_is_not_judged_where_it_answers_otherwise(manifest: dict[str, Any], kind: str, words: str) -> None:
    """By the watch, which would report a disagreement, or end with the process, and beside a challenger."""
    with pytest.raises(CandidateRefused, match=words) as caught:
        refuse_processor(manifest, KINDS[kind])
    assert caught.value.kind == "unsupported" and "avx512" in caught.value.expected


@pytest.mark.parametrize(
    ("manifest", "kind"),
    [
        (INT8, "AVX-VNNI"),
        (INT8, "ARM"),
        (INT8 | {"saturates_without": []}, "AVX2"),
        (COMPILED, "AVX512-VNNI"),
        (COMPILED | {"session": {"provider": "OpenVINO"}}, "AVX2"),
        ({"session": {"provider": "CPUExecutionProvider"}}, "AVX2"),
    ],
    ids=["VNNI", "ARM", "portable", "more instructions", "another engine", "an earlier release"],
)
def test_a_champion_that_answers_as_approved_is_judged(manifest: dict[str, Any], kind: str) -> None:
    refuse_processor(manifest, KINDS[kind])
