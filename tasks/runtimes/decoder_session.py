"""Sessions of a decoder with a cache of keys and values, seen from outside as a model of token ids alone.

The graph takes `past_key_values.*`, which grow from call to call, and returns `present.*`. Calibration, profiles and
comparisons run whole windows of tokens: their caches are empty, every token counts, and positions start at 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from validators.samples.datasets import Arrays, TensorSpec

if TYPE_CHECKING:
    import onnxruntime as ort

TOKENS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
PAST, PRESENT = "past_key_values.", "present."


class DecoderSession:
    """A session whose caches, mask and positions are filled in; everything else is the session's own."""

    def __init__(self, session: ort.InferenceSession, inputs: Sequence[TensorSpec]) -> None:
        self._session, self._inputs = session, inputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def get_inputs(self) -> list[Any]:
        """Return the input of token ids."""
        return [value for value in self._session.get_inputs() if value.name == TOKENS]

    def get_outputs(self) -> list[Any]:
        """Return the outputs without the caches."""
        return [value for value in self._session.get_outputs() if not value.name.startswith(PRESENT)]

    def run(self, outputs: Sequence[str] | None, batch: Mapping[str, NDArray[Any]], *options: Any) -> list[Any]:
        """Run the graph on token ids `(batch, sequence)`; without names, return all outputs but the caches."""
        names = [value.name for value in self.get_outputs()] if outputs is None else list(outputs)
        return list(self._session.run(names, fill_windows(batch, self._inputs), *options))


def decoder_specs(vocabulary: int | None) -> tuple[TensorSpec, TensorSpec]:
    """Return the input and the output of a decoder, as engines that generate have them."""
    axes = ("batch_size", "sequence_length")
    return TensorSpec(TOKENS, "int64", axes), TensorSpec(LOGITS, "float32", (*axes, vocabulary))


def has_caches(inputs: Iterable[TensorSpec]) -> bool:
    """Return True if a graph with these inputs takes token ids and caches of keys and values.

    A stage of a run (`StagedRun`) does not: it declares no shapes, and is given all that it reads.
    """
    return any(one.name == TOKENS for one in inputs) and any(one.name.startswith(PAST) and one.shape for one in inputs)


def fill_windows(batch: Mapping[str, NDArray[Any]], inputs: Sequence[TensorSpec]) -> Arrays:
    """Return a batch of whole windows of tokens, with what a decoder's other inputs hold; of other models as it is."""
    if not has_caches(inputs):
        return dict(batch)
    rows, length = batch[TOKENS].shape
    return {one.name: _filled(one, rows, length) for one in inputs if one.name != TOKENS} | dict(batch)


def _filled(spec: TensorSpec, rows: int, length: int) -> NDArray[Any]:
    if spec.name == MASK:
        return np.ones((rows, length), np.int64)
    if spec.name == POSITIONS:
        return np.tile(np.arange(length), (rows, 1))
    # Axes: batch, heads, tokens of the past, size of a head.
    sizes = [rows if axis == 0 else size if isinstance(size, int) else 0 for axis, size in enumerate(spec.shape)]
    return np.zeros(sizes, spec.dtype)
