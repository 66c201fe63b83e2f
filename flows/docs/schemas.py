"""JSON Schemas of job and result; `python -m flows.docs.schemas docs` writes them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from validators.job.job import Job
from validators.records.result import Result

SCHEMAS: dict[str, type[BaseModel]] = {"job.schema.json": Job, "result.schema.json": Result}


def schema_of(name: str) -> dict[str, Any]:
    """Return one of the schemas."""
    mode: Literal["serialization", "validation"] = "serialization" if name.startswith("result") else "validation"
    return SCHEMAS[name].model_json_schema(mode=mode)


def schema_text(name: str) -> str:
    """Return the content of one schema file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema_of(name)
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in SCHEMAS:
        Path(sys.argv[1], name).write_text(schema_text(name), encoding="utf-8")
