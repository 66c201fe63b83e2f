"""Copies: candidates whose artifacts, engines and sessions are equal are measured and judged once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.trials.gather import merge_copies
from validators.records.run import Refusal, SessionSettings, Trial, Variant

FIRST, SECOND, THIRD = "int8-static-minmax-pc@ort-cpu", "int8-static-minmax-pc-all@ort-cpu", "int4-g32-rtn@ort-cpu"


def trial(name: str, digest: str, **session: Any) -> Trial:
    """A trial of a variant with this digest, loaded with these settings."""
    settings = SessionSettings(**{"provider": "CPUExecutionProvider", "threads": 2} | session)
    return Trial(name, variant=Variant(name, Path(f"{name}.onnx"), digest, 10, settings), cached=True, seconds=1.5)


def test_first_candidate_keeps_the_variant_and_lists_its_copies() -> None:
    first, second, third = merge_copies((trial(FIRST, "1"), trial(SECOND, "1"), trial(THIRD, "1")))
    assert (first.copies, first.variant is not None, first.refusal) == ((SECOND, THIRD), True, None)
    for copy in (second, third):
        assert copy.is_copy and copy.variant is None and copy.outcome == "refused"
        assert copy.refusal == Refusal("copy", f"the same artifact as {FIRST}, which is judged for both")
        assert (copy.cached, copy.seconds) == (True, 1.5)


def test_same_file_in_other_sessions_is_no_copy() -> None:
    trials = (trial(FIRST, "1"), trial(SECOND, "1", threads=1), trial(THIRD, "1", optimization="basic"))
    assert merge_copies(trials) == trials


def test_other_files_and_refusals_are_no_copies() -> None:
    refused = Trial(SECOND, outcome="refused", refusal=Refusal("unsupported", "no kernel"))
    trials = (trial(FIRST, "1"), refused, replace(refused, candidate="fp16@ort-cpu"), trial(THIRD, "2"))
    assert merge_copies(trials) == trials


def test_copies_found_later_are_added_to_those_known() -> None:
    """Recovery adds trials to those that were merged before."""
    merged = merge_copies((trial(FIRST, "1"), trial(SECOND, "1")))
    assert merge_copies((*merged, trial(THIRD, "1")))[0].copies == (SECOND, THIRD)
    assert merge_copies(merged) == merged
