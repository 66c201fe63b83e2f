"""Writes the JSON Schemas of job and result: `python -m flows.schemas docs`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from validators.job import Job
from validators.result import Result

SCHEMAS: dict[str, type[BaseModel]] = {"job.schema.json": Job, "result.schema.json": Result}


def schema_text(name: str) -> str:
    """The content of one schema file."""
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    mode: Literal["serialization", "validation"] = "serialization" if name.startswith("result") else "validation"
    return json.dumps(schema | SCHEMAS[name].model_json_schema(mode=mode), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in SCHEMAS:
        Path(sys.argv[1], name).write_text(schema_text(name), encoding="utf-8")
