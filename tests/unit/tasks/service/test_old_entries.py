"""Entries of a store that an older version filled: nothing reads them any more, and retention deletes them."""

from __future__ import annotations

import os
import tarfile
import time
from pathlib import Path

from tasks.service.file_retention import delete_thing, find_things
from tasks.service.retention_policy import DAY_SECONDS, Policy, judge_things

PACKED = Path(__file__).parents[3] / "support" / "state_before_prefect_3_9.tar.xz"
POLICY = Policy(keep_versions=1, older_than_days=30)


def test_entries_of_an_older_version_age_and_go(tmp_path: Path) -> None:
    with tarfile.open(PACKED) as archive:
        archive.extractall(tmp_path, filter="data")
    records = list((tmp_path / "store").glob("*/*/record.json"))
    assert len({record.parents[1].name for record in records}) > 5
    entries = [thing for thing in find_things(tmp_path) if thing.kind == "entry"]
    assert len(entries) == len(records)
    old = time.time() - 60 * DAY_SECONDS
    for record in records:
        os.utime(record, (old, old))
    entries = [thing for thing in find_things(tmp_path) if thing.kind == "entry"]
    for fate in judge_things(entries, POLICY, time.time()):
        assert fate.goes and delete_thing(tmp_path, fate, POLICY) == ""
    assert list((tmp_path / "store").glob("*/*")) == []
