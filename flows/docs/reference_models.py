"""Reference pages of records, from their JSON Schema: one section per record, one row per key."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from validators.plain_text import markdown_table

Schema = dict[str, Any]

_BOUNDS = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table of Markdown cells in which `|` is text.

    >>> table(("a", "b"), [("1", "x | y")])
    '| a | b |\\n| --- | --- |\\n| 1 | x \\\\| y |'
    """
    return markdown_table(header, [tuple(cell.replace("|", "\\|") for cell in row) for row in rows])


def model_page(title: str, lead: str, schema: Schema) -> str:
    """Return the page on a record's schema: its own keys first, then each nested record under the path of its key."""
    waiting: list[tuple[str, Schema]] = [("", schema)]
    parts, seen = [f"# {title}\n\n{lead}\n"], {""}
    while waiting:
        path, part = waiting.pop(0)
        heading = (
            f"## `{path}` {{ #{anchor(path)} }}\n\n{unwrapped(part.get('description', ''))}\n" if path else "## Keys\n"
        )
        rows = []
        for key, field in part.get("properties", {}).items():
            below = _below(f"{path}.{key}" if path else key, field, schema)
            rows.append(
                (
                    f"`{key}`",
                    _type(field, schema, dict(below)),
                    _default(field, key, part),
                    unwrapped(field.get("description", "")),
                )
            )
            waiting += [(where, schema["$defs"][name]) for name, where in below if where not in seen]
            seen |= {where for _, where in below}
        parts.append("\n".join([heading, table(("key", "type", "default", "meaning"), rows), ""]))
    return "\n".join(parts)


def anchor(path: str) -> str:
    """Return the id of a record's section.

    >>> anchor("candidates[].speedup_p50")
    'candidates-speedup_p50'
    """
    return path.replace("[]", "").replace(".", "-")


def _below(path: str, field: Schema, schema: Schema) -> list[tuple[str, str]]:
    """Return the records that a field holds, as (name of the definition, path)."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return [(name, path)] if "properties" in schema["$defs"][name] else []
    found = [pair for part in field.get("anyOf", ()) for pair in _below(path, part, schema)]
    if isinstance(field.get("items"), dict):
        found += _below(f"{path}[]", field["items"], schema)
    if isinstance(field.get("additionalProperties"), dict):
        found += _below(f"{path}.*", field["additionalProperties"], schema)
    return found


def _type(field: Schema, schema: Schema, below: dict[str, str]) -> str:
    """Return the type of a field in words; records link to their sections."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return (
            f"[{below[name]}](#{anchor(below[name])})" if name in below else _type(schema["$defs"][name], schema, below)
        )
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(part, schema, below) for part in field["anyOf"]))
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    kind = field.get("type")
    if kind == "array":
        return f"list of {_type(field.get('items', {}), schema, below)}"
    if kind == "object":
        values = field.get("additionalProperties")
        return f"mapping to {_type(values, schema, below)}" if isinstance(values, dict) else "mapping"
    if kind == "string" and ":" in field.get("pattern", ""):
        return "`module:function`"
    words = {
        "string": "text",
        "integer": "whole number",
        "boolean": "`true`, `false`",
        "null": "`null`",
        None: "anything",
    }
    bounds = ", ".join(f"{sign} {field[key]:,}" for key, sign in _BOUNDS if key in field)
    return " ".join(filter(None, (words.get(kind, str(kind)), bounds)))


def _default(field: Schema, key: str, part: Schema) -> str:
    if key in part.get("required", ()):
        return "**required**"
    default = field.get("default")
    # The section of the record lists the defaults of its keys.
    if isinstance(default, dict) and default:
        return "its own"
    return f"`{default if isinstance(default, str) and default else json.dumps(default, ensure_ascii=False)}`"


def unwrapped(text: str | None) -> str:
    """Return a text on one line; empty for None."""
    return " ".join((text or "").split())
