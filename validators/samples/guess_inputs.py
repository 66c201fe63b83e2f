"""Likely settings of a model's inputs that are no arrays with the samples along axis 0, from names and shapes alone."""

from __future__ import annotations

from collections.abc import Sequence

from validators.job.job_data import InputSettings
from validators.samples.datasets import TensorSpec

# Usual values of constants by the name of the input. Another number is 1, and a float array with several axes, which is most
# likely a state, 0.
USUAL = {"sr": 16000, "sample_rate": 16000, "sampling_rate": 16000}


def guess_inputs(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> dict[str, InputSettings]:
    """Return the settings by input, of those that need one.

    >>> x, state = TensorSpec("x", "float32", ("n", 512)), TensorSpec("state", "float32", (2, "n", 128))
    >>> outputs = [TensorSpec("output", "float32", ("n", 1)), TensorSpec("stateN", "float32", (2, "n", 128))]
    >>> found = guess_inputs([x, state, TensorSpec("sr", "int64", ())], outputs)
    >>> {name: one.model_dump(exclude_none=True) for name, one in found.items()}
    {'state': {'batch_axis': 1, 'state_from': 'stateN'}, 'sr': {'constant': 16000}}
    """
    settings = {}
    for spec in inputs:
        axis = _batch_axis(spec, inputs)
        source = _state_source(spec, outputs)
        if axis is None:
            settings[spec.name] = InputSettings(constant=_usual_constant(spec))
        elif axis or source:
            settings[spec.name] = InputSettings(batch_axis=axis or None, state_from=source or None)
    return settings


def _batch_axis(spec: TensorSpec, inputs: Sequence[TensorSpec]) -> int | None:
    """Return the axis with the size or name of axis 0 of most inputs; None for an input without samples."""
    firsts = [other.shape[0] for other in inputs if other.shape]
    batch = max(firsts, key=firsts.count) if firsts else None
    found = [axis for axis, size in enumerate(spec.shape) if size == batch]
    if found and (found[0] == 0 or len(found) == 1):
        return found[0]
    return None if all(isinstance(size, int) for size in spec.shape) else 0


def _state_source(spec: TensorSpec, outputs: Sequence[TensorSpec]) -> str:
    """Return the output of the same type, shape and similar name; empty if there is not exactly one."""
    stem = spec.name.lower().removesuffix("_in").removesuffix("0")
    alike = [
        output.name
        for output in outputs
        if output.dtype == spec.dtype and _same_sizes(output, spec) and stem in output.name.lower()
    ]
    return alike[0] if len(alike) == 1 and all(isinstance(size, int) for size in spec.shape[2:]) else ""


def _same_sizes(output: TensorSpec, spec: TensorSpec) -> bool:
    pairs = zip(output.shape, spec.shape, strict=False)
    return len(output.shape) == len(spec.shape) > 1 and all(
        ours == theirs for ours, theirs in pairs if isinstance(ours, int) and isinstance(theirs, int)
    )


def _usual_constant(spec: TensorSpec) -> bool | int | str:
    if spec.dtype == "bool":
        return False
    if spec.dtype in ("str", "string"):
        return ""
    is_state = spec.dtype.startswith("float") and len(spec.shape) > 1
    return USUAL.get(spec.name.lower(), 0 if is_state else 1)
