"""Safe YAML: no tags that create objects, no duplicate keys, bounded alias expansion."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

# A job or an MLmodel file has a few hundred nodes; each repetition by an alias counts.
MOST_NODES = 20_000
MOST_CHARACTERS = 1_000_000


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


def load_yaml(text: str) -> Any:
    """Return the content of a YAML document.

    Raises:
        yaml.YAMLError: the text is not YAML, is longer than 1,000,000 characters, or has more than 20,000 values with all
            aliases expanded.
        ValueError, KeyError, AttributeError: a scalar does not fit its tag.
        RecursionError: the document is nested too deeply.
    """
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


def _written_out(node: yaml.Node, known: dict[int, float]) -> float:
    """Count this node and those below it, each as often as aliases repeat it; infinite if a node contains itself."""
    if id(node) not in known:
        known[id(node)] = float("inf")
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        flat = [part for pair in parts for part in pair] if isinstance(node, yaml.MappingNode) else parts
        known[id(node)] = 1 + sum(_written_out(part, known) for part in flat)
    return known[id(node)]
