"""The table of integer products: what it holds of each kind of processor, and that its script tells saturating sums."""

from __future__ import annotations

from pathlib import Path

import pytest
from figures import earlier
from integer_products import Row, Source, rows_of, table
from integer_products_models import MODELS
from other_processor import KINDS
from processors import HERE

from tasks.ptq.build_variant import weight_bits
from validators.job.candidate_name import decode
from validators.processors import Processor

ROOT = Path(__file__).parents[3]
MEASURED = earlier("integer_products")


def rows(kind: str) -> list[Row]:
    return [Row(**line) for line in MEASURED[kind]["rows"]]


def test_every_kind_was_measured() -> None:
    assert list(MEASURED) == list(KINDS)
    assert len({len(rows(kind)) for kind in MEASURED}) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_no_sum_saturates_with_the_bits_of_a_run(kind: str) -> None:
    """Weights in blocks have bits of their own; all others those that a run takes on such a processor."""
    processor = Processor(tuple(MEASURED[kind]["isa"]))
    for row in rows(kind):
        candidate = decode(row.candidate)
        if candidate.block_size or row.weight_bits == weight_bits(candidate, processor):
            assert row.verdict != "saturates", row


@pytest.mark.parametrize("kind", KINDS)
def test_sums_of_8_bits_saturate_where_the_processor_adds_pairs(kind: str) -> None:
    """Reduced weights are no precaution alone, and are taken nowhere else."""
    saturating = {row.candidate.partition("@")[2] for row in rows(kind) if row.verdict == "saturates"}
    adds_pairs = Processor(tuple(MEASURED[kind]["isa"])).adds_pairs_in_16_bits
    assert saturating == ({"ort-cpu", "openvino", "torch-inductor"} if adds_pairs else set())


def test_the_page_has_the_table() -> None:
    page = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    assert table(MEASURED) in page
    assert MEASURED["amx"]["processor"] in page


def test_the_script_tells_sums_that_saturate_here(tmp_path: Path) -> None:
    model = MODELS["MatMul"]()
    model.save(tmp_path / "source.onnx")
    source = Source(tmp_path, dict(model.shapes), signed=False)
    found = {row.weight_bits: row.verdict for row in rows_of(["MatMul"], ["int8-static-minmax-pc@ort-cpu"], [source])}
    assert found == {8: "saturates" if HERE.adds_pairs_in_16_bits else "exact", 7: "exact"}
