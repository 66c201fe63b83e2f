"""Safe YAML: no tags that create objects, no duplicate keys, no sexagesimal numbers, bounded size, aliases and integers."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from validators.untrusted.paths import read_regular_file

# A job or an MLmodel file has a few hundred nodes; each repetition by an alias counts.
MOST_NODES = 20_000
MOST_CHARACTERS = 1_000_000
# UTF-8 needs at most 4 bytes a character.
MOST_BYTES = 4 * MOST_CHARACTERS
# Binary digits of a 64-bit integer, its prefix and its sign.
MOST_DIGITS = 67
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
# Plain numbers of YAML 1.1 without base 60, which YAML 1.2 dropped: `1:30` is text.
_NUMBERS = {
    _INT: re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)\Z"),
    _FLOAT: re.compile(
        r"([-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(e[-+][0-9]+)?|[-+]?\.inf|\.nan)\Z", re.IGNORECASE
    ),
}


class _Loader(yaml.SafeLoader):
    """Loader that refuses duplicate keys, of which PyYAML silently keeps the last, and stops at too many values."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._composed = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._composed += 1
        if self._composed > MOST_NODES:
            raise yaml.YAMLError(f"more than {MOST_NODES} values")
        node: yaml.Node | None = super().compose_node(parent, index)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[Any] = set()
        for part, _ in node.value:
            key = None if part.tag.endswith(":merge") else self.construct_object(part, deep=True)
            # PyYAML itself refuses a key that is a list or a mapping.
            if key is None or not isinstance(key, Hashable):
                continue
            if key in keys:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} occurs twice", part.start_mark)
            keys.add(key)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        text = str(self.construct_scalar(node))
        if len(text) > MOST_DIGITS or ":" in text:
            found = f"found {text[:MOST_DIGITS]!r}, {len(text)} characters"
            reason = f"{found}; expected a number of at most {MOST_DIGITS}, without colons"
            raise yaml.constructor.ConstructorError(None, None, reason, node.start_mark)
        number: int | float = self.construct_yaml_int(node) if node.tag == _INT else self.construct_yaml_float(node)
        return number


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file.

    Raises:
        OSError: the file is missing, not a regular file, or larger than 4,000,000 bytes.
        yaml.YAMLError: the content is not UTF-8 text, or `load_yaml` refuses it.
    """
    try:
        return load_yaml(read_regular_file(path, MOST_BYTES).decode())
    except UnicodeDecodeError as error:
        raise yaml.YAMLError("not UTF-8 text") from error


def load_yaml(text: str) -> Any:
    """Return the content of a YAML document.

    Raises:
        yaml.YAMLError: the text is not YAML, a value does not fit its tag, the text is longer than 1,000,000 characters,
            nested too deeply, or has more than 20,000 values with all aliases expanded.
    """
    try:
        return _load(text)
    except yaml.YAMLError:
        raise
    except RecursionError as error:
        raise yaml.YAMLError("the document is nested too deeply") from error
    except Exception as error:  # PyYAML raises many classes for a value that its tag does not fit
        raise yaml.YAMLError(f"a value does not fit its tag: {type(error).__name__}: {error}") from error


def _load(text: str) -> Any:
    if len(text) > MOST_CHARACTERS:
        raise yaml.YAMLError(f"{len(text)} characters; expected at most {MOST_CHARACTERS}")
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        # Aliases share one object in memory, but any traversal expands them.
        if (nodes := _written_out(node, {})) > MOST_NODES:
            raise yaml.YAMLError(f"{nodes:.3g} values with all aliases expanded; expected at most {MOST_NODES}")
        return loader.construct_document(node)
    finally:
        loader.dispose()


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rows if tag not in _NUMBERS]
    for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))
    _Loader.add_constructor(_tag, _Loader.construct_number)


def _written_out(node: yaml.Node, known: dict[int, float]) -> float:
    """Count this node and those below it, each as often as aliases repeat it; infinite if a node contains itself."""
    if id(node) not in known:
        known[id(node)] = float("inf")
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        flat = [part for pair in parts for part in pair] if isinstance(node, yaml.MappingNode) else parts
        known[id(node)] = 1 + sum(_written_out(part, known) for part in flat)
    return known[id(node)]
