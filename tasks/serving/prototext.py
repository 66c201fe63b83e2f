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
    return "".join(_field(name, value, "  " * depth, depth) for name, value in fields)


def _field(name: str, value: str | int | Word | list[int] | Fields, indent: str, depth: int) -> str:
    match value:
        case tuple():
            return f"{indent}{name} {{\n{prototext(value, depth + 1)}{indent}}}\n"
        case str():
            return f"{indent}{name}: {quoted(value)}\n"
        case list():
            return f"{indent}{name}: [{', '.join(map(str, value))}]\n"
        case Word(text):
            return f"{indent}{name}: {text}\n"
        case _:
            return f"{indent}{name}: {value}\n"


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
