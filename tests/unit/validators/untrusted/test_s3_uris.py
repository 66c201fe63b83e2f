"""Addresses on S3, in jobs and as parts of paths; records that mean the same on two machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Tiny
from hypothesis import given
from hypothesis import strategies as st

from tasks.storage.portable import pack, references, unpack
from validators.errors import JobError
from validators.job.job import Job
from validators.job.read_job import parse_job
from validators.untrusted.s3_uris import S3Uri, parse_s3_uri

WRONG = [
    "",
    "s3:/b/k",
    "http://b/k",
    "s3://",
    "s3://buck",
    "s3://buck/",
    "s3:///k",
    "s3://B_ck/k",
    "s3://b..k/k",
    "s3://bu/k",
]
WRONG += [
    "s3://buck/../k",
    "s3://buck/a//k",
    "s3://buck//k",
    "s3://buck/k/",
    "s3://buck/.",
    "s3://buck/a\\..\\k",
    "s3://buck/k\n",
]
WRONG += [
    "s3://buck/k?versionId=1",
    "s3://buck/k#1",
    "s3://buck/" + "k" * 1025,
    "s3://user:secret@buck/k",
    "s3://buck/\u202ek",
]


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_address_is_refused(text: str) -> None:
    """Traversal, empty segments, what some readers take for a version, direction marks, names that are no bucket's."""
    with pytest.raises(JobError, match="s3://"):
        parse_s3_uri(text)


@given(st.text(max_size=40))
def test_an_address_that_is_taken_stays_below_any_folder(key: str) -> None:
    """Whatever the key: it reads back as it was, and as a path it goes nowhere else."""
    try:
        uri = parse_s3_uri(f"s3://bucket/{key}")
    except JobError:
        return
    assert parse_s3_uri(str(uri)) == uri and uri.key == key
    path = (Path("/folder") / uri.key).resolve()
    assert path.is_relative_to("/folder") and path != Path("/folder") and path.name == uri.name


def test_a_job_names_files_and_objects(tiny: Tiny, tmp_path: Path) -> None:
    """Paths are resolved, addresses are not; both survive the JSON in which a job crosses to a flow."""
    told = {"calibration": "s3://bucket/c.npz", "evaluation": "e.npz"}
    job = parse_job(tiny.job(data=told), base=tmp_path)
    assert job.data.calibration == S3Uri("bucket", "c.npz") and job.data.evaluation == tmp_path / "e.npz"
    assert job.data.traffic is None
    assert Job.model_validate_json(job.model_dump_json()) == job
    assert job.model_dump(mode="json")["data"]["calibration"] == "s3://bucket/c.npz"
    with pytest.raises(JobError, match=r"data.calibration.*empty segment, \. or \.\."):
        parse_job(tiny.job(data=told | {"calibration": "s3://bucket/../c.npz"}), base=tmp_path)


PIECES = st.sampled_from(
    ["/s/store", "/s", "{store}", "{state}", "{entry}", "\\", '"', "é", "/variant/" + "a" * 64, "x"]
)


@given(st.lists(st.lists(PIECES, max_size=6).map("".join), max_size=4))
def test_texts_come_back_as_they_were(texts: list[str]) -> None:
    """Whatever stands in them, placeholders included; elsewhere the folders alone are others."""
    here = {"store": Path("/s/store"), "state": Path("/s")}
    packed = pack(json.dumps(texts), here)
    assert json.loads(unpack(packed, here)) == texts
    assert "/s" not in packed
    for kind, digest in references(packed):
        assert any(f"/s/store/{kind}/{digest}" in text for text in texts)
