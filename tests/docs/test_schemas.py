"""The published schemas are those of the code, and they accept and refuse what the code does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from flows.docs.schemas import SCHEMAS, schema_text
from validators.errors import JobError
from validators.job.job import Job
from validators.job.read_job import parse_job

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(ROOT.glob("examples/*.yaml"))


def job_schema() -> Draft202012Validator:
    schema = json.loads((ROOT / "docs" / "job.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_published_schema_is_that_of_the_code(name: str) -> None:
    """`make schemas` writes it; a change of the code without it is seen here."""
    published = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert published == schema_text(name), "run `make schemas`"
    Draft202012Validator.check_schema(json.loads(published))


def test_every_schema_in_docs_is_of_the_code() -> None:
    """None is left behind that nothing writes any more."""
    assert {path.name for path in (ROOT / "docs").glob("*.schema.json")} == set(SCHEMAS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_valid_by_the_schema(path: Path) -> None:
    """An editor that checks a job by its schema accepts what the program does."""
    job_schema().validate(yaml.safe_load(path.read_text(encoding="utf-8")))


WHOLE: dict[str, Any] = {"source": "m.onnx", "data": {"calibration": "c.npz", "evaluation": "e.npz"}}


@pytest.mark.parametrize(
    "change",
    [
        {"speed": 1},
        {"gates": {"max_dorp": 1}},
        {"source": 3},
        {"target": "gpu"},
        {"data": {"calibration": "c.npz"}},
        {"gates": {"max_drop": -1}},
        {"gates": {"confidence": 0.5}},
        {"measurement": {"batch_sizes": []}},
        {"measurement": {"launches": 21}},
        {"objective": "beauty"},
    ],
)
def test_the_schema_refuses_what_the_program_refuses(change: dict[str, Any]) -> None:
    """Unknown and missing keys, wrong types, values out of bounds."""
    assert job_schema().is_valid(WHOLE)
    assert not job_schema().is_valid(WHOLE | change)
    with pytest.raises(JobError):
        parse_job(WHOLE | change, base=Path())


def test_every_setting_is_documented() -> None:
    """A key of the job without a description says nothing to who writes one."""
    schema = Job.model_json_schema()
    parts = {"Job": schema, **schema["$defs"]}
    bare = [
        f"{part}.{key}"
        for part, content in parts.items()
        for key, field in content.get("properties", {}).items()
        if not field.get("description")
    ]
    assert bare == []
