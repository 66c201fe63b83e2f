"""The subset of Protocol Buffers' text format that configurations need."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Word:
    """An unquoted word: an enumeration value or a boolean."""

    text: str


# The fields of a message, in order; a repeated field occurs several times.
Fields = tuple[tuple[str, "str | int | Word | list[int] | Fields"], ...]


def prototext(fields: Fields, depth: int = 0) -> str:
    r"""Return the message as text.

    >>> print(prototext((("name", "a\"b"), ("dims", [-1, 4]), ("kind", Word("KIND_CPU")), ("graph", (("level", 0),)))), end="")
    name: "a\"b"
    dims: [-1, 4]
    kind: KIND_CPU
    graph {
      level: 0
    }
    """
    indent = "  " * depth
    return "".join(f"{indent}{name}{_value(value, depth)}\n" for name, value in fields)


def _value(value: str | int | Word | list[int] | Fields, depth: int) -> str:
    match value:
        case tuple():
            return f" {{\n{prototext(value, depth + 1)}{'  ' * depth}}}"
        case str():
            return f": {quoted(value)}"
        case Word(text):
            return f": {text}"
    return f": {value}"


def quoted(text: str) -> str:
    r"""Quote a string as UTF-8: printable ASCII unchanged, every other byte as an octal escape.

    >>> print(quoted('a"\n\N{LATIN SMALL LETTER E WITH ACUTE}'))
    "a\"\012\303\251"
    """
    shown = {ord('"'): '\\"', ord("\\"): "\\\\"}
    return (
        '"'
        + "".join(shown.get(byte, chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in text.encode())
        + '"'
    )
