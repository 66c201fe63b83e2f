"""Triton's `model_config.proto` as a class of messages, so that a configuration is read as the server reads it: strictly.

The reader of .proto knows what that file holds: messages and enumerations in one another, `repeated`, `map` and `oneof`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

PROTO = Path(__file__).parent / "protos" / "model_config.proto"
Field = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    name: getattr(Field, f"TYPE_{name.upper()}")
    for name in ("bool", "string", "bytes", "float", "double", "int32", "int64", "uint32", "uint64")
}


def read_config(text: str) -> Any:
    """A `config.pbtxt` as a message; unknown fields, enumeration values and types are errors."""
    return text_format.Parse(text, model_config()())


@cache
def model_config() -> type[Any]:
    """The class of `inference.ModelConfig`."""
    text = re.sub(r"//[^\n]*", "", PROTO.read_text(encoding="utf-8"))
    tokens = iter(re.findall(r'"[^"]*"|[\w.]+|[^\s\w]', text))
    file = descriptor_pb2.FileDescriptorProto(name=PROTO.name, syntax="proto3")
    for word in tokens:
        if word == "syntax":
            assert [next(tokens) for _ in range(3)] == ["=", '"proto3"', ";"]
        elif word == "package":
            file.package = next(tokens)
            assert next(tokens) == ";"
        elif word == "message":
            _read_message(tokens, file.message_type.add())
        else:
            assert word == "enum", word
            _read_enum(tokens, file.enum_type.add())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfig"))


def _read_enum(tokens: Iterator[str], enum: Any) -> None:
    enum.name = next(tokens)
    assert next(tokens) == "{"
    for word in tokens:
        if word == "}":
            return
        assert next(tokens) == "="
        enum.value.add(name=word, number=int(next(tokens)))
        assert next(tokens) == ";"


def _read_message(tokens: Iterator[str], message: Any) -> None:
    message.name = next(tokens)
    assert next(tokens) == "{"
    within = None
    for word in tokens:
        if word == "}":
            if within is None:
                return
            within = None
        elif word == "message":
            _read_message(tokens, message.nested_type.add())
        elif word == "enum":
            _read_enum(tokens, message.enum_type.add())
        elif word == "oneof":
            within = len(message.oneof_decl)
            message.oneof_decl.add(name=next(tokens))
            assert next(tokens) == "{"
        elif word == "map":
            _, key, _, value, _ = (next(tokens) for _ in range(5))
            field = _read_field(tokens, message, None, repeated=True)
            field.type, field.type_name = Field.TYPE_MESSAGE, f"{_camel(field.name)}Entry"
            entry = message.nested_type.add(name=field.type_name)
            entry.options.map_entry = True
            for number, (name, kind) in enumerate((("key", key), ("value", value)), start=1):
                _of_kind(entry.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL), kind)
        else:
            repeated = word == "repeated"
            field = _read_field(tokens, message, next(tokens) if repeated else word, repeated=repeated)
            if within is not None:
                field.oneof_index = within


def _read_field(tokens: Iterator[str], message: Any, kind: str | None, *, repeated: bool) -> Any:
    name, equals, number, end = (next(tokens) for _ in range(4))
    assert (equals, end) == ("=", ";"), name
    label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
    field = message.field.add(name=name, number=int(number), label=label)
    if kind:
        _of_kind(field, kind)
    return field


def _of_kind(field: Any, kind: str) -> None:
    if kind in SCALARS:
        field.type = SCALARS[kind]
    else:
        field.type_name = kind


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
