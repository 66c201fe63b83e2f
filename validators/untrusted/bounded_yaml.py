"""YAML from people and registries: no tags that make objects, no key twice, and no aliases that multiply."""

from __future__ import annotations

from typing import Any

import yaml

# A job or an MLmodel file has some hundred; what aliases repeat counts each time.
MOST_NODES = 20_000
MOST_CHARACTERS = 1_000_000


class _Loader(yaml.SafeLoader):
    """YAML that refuses a key which is there twice: PyYAML keeps the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if not key.tag.endswith(":merge")]
        twice = next((key for index, key in enumerate(keys) if key in keys[:index]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"key {twice!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """The content of a YAML document.

    Raises:
        yaml.YAMLError: it is none, is longer than 1,000,000 characters, or has more than 20,000 values with all aliases written
            out.
        ValueError, KeyError, AttributeError: a scalar that its tag does not fit.
        RecursionError: it is nested too deeply.
    """
    if len(text) > MOST_CHARACTERS:
        raise yaml.YAMLError(f"{len(text)} characters; expected at most {MOST_CHARACTERS}")
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        # Aliases are one object in memory, and become many in whoever walks through them.
        if (nodes := _written_out(node, {})) > MOST_NODES:
            raise yaml.YAMLError(f"{nodes:.3g} values with all aliases written out; expected at most {MOST_NODES}")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _written_out(node: yaml.Node, known: dict[int, float]) -> float:
    """Nodes below and with this one, each counted as often as aliases repeat it; infinite where one holds itself."""
    if id(node) not in known:
        known[id(node)] = float("inf")
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        flat = [part for pair in parts for part in pair] if isinstance(node, yaml.MappingNode) else parts
        known[id(node)] = 1 + sum(_written_out(part, known) for part in flat)
    return known[id(node)]
