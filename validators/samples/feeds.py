"""Conversion of samples, which data files hold along axis 0, to the inputs of a model, which may have them elsewhere.

A model with a state takes a sequence of calls for a sample. Its data files hold the other inputs of all steps,
`[samples, steps, ...]`. A run makes single calls of them, with the states that the source had at each step
(`tasks.evidence.sequences`); only accuracy is measured over whole sequences, in which each variant carries its own state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from validators.errors import JobError
from validators.job.job_data import InputSettings
from validators.samples.data_advice import yaml_line
from validators.samples.datasets import Arrays, Feed, TensorSpec


@dataclass(frozen=True)
class Feeds:
    """Inputs of a model in its order, those that are the same in every request, and the batch axes other than 0.

    A constant is an array of the input's dtype: a scalar, which fills the input's shape, or as many values as the input has.
    `states` maps an input to the output that is its value in the next call.
    """

    model: tuple[TensorSpec, ...]
    constants: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    batch_axes: Mapping[str, int] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)

    @property
    def in_files(self) -> tuple[TensorSpec, ...]:
        """Arrays that a data file must have: those of samples or, if the model has a state, of sequences without it."""
        if not self.states:
            return self.samples
        return tuple(
            TensorSpec(spec.name, spec.dtype, (spec.shape[0], "steps", *spec.shape[1:]))
            for spec in self.samples
            if spec.name not in self.states
        )

    @property
    def samples(self) -> tuple[TensorSpec, ...]:
        """Arrays of samples, each of which is one call: samples along axis 0, no constants."""
        return tuple(
            TensorSpec(spec.name, spec.dtype, _moved(spec.shape, self.batch_axes.get(spec.name, 0)))
            for spec in self.model
            if spec.name not in self.constants
        )

    @property
    def is_plain(self) -> bool:
        """True if the arrays of a data file are the model's inputs as they are."""
        return not self.constants and not self.batch_axes and not self.states

    @property
    def key(self) -> list[object]:
        """Values that tell the model's inputs apart from those of other settings, for digests."""
        constants = [(name, str(array.dtype), array.tolist()) for name, array in sorted(self.constants.items())]
        return [constants, sorted(self.batch_axes.items()), sorted(self.states.items())]

    def feed(self, rows: Arrays) -> Feed:
        """Return the inputs of the model for rows of samples, each array of shape `(rows, ...)`."""
        count = len(next(iter(rows.values())))
        made: Arrays = {}
        axes: dict[str, int | None] = {}
        for spec in self.model:
            axis = self.batch_axes.get(spec.name, 0)
            axes[spec.name] = axis
            if spec.name in self.constants:
                made[spec.name] = _filled(self.constants[spec.name], spec.shape, count)
                axes[spec.name] = None if not spec.shape or isinstance(spec.shape[0], int) else 0
            else:
                array = rows[spec.name]
                made[spec.name] = np.ascontiguousarray(np.moveaxis(array, 0, axis)) if axis else array
        return Feed(made, rows=count, axes=axes)

    def first_states(self, rows: int) -> Arrays:
        """Return the states of the first call of sequences, each of shape `(rows, ...)`: zeros."""
        specs = [spec for spec in self.samples if spec.name in self.states]
        sizes = {spec.name: [size for size in spec.shape[1:] if isinstance(size, int)] for spec in specs}
        return {spec.name: np.zeros((rows, *sizes[spec.name]), spec.dtype) for spec in specs}

    def next_states(self, outputs: Sequence[NDArray[Any]]) -> Arrays:
        """Return the states of the next call, each of shape `(rows, ...)`, given the outputs that `states` names, in order."""
        return {
            name: np.moveaxis(output, self.batch_axes.get(name, 0), 0)
            for name, output in zip(self.states, outputs, strict=True)
        }


def feeds_of(
    settings: Mapping[str, InputSettings],
    inputs: tuple[TensorSpec, ...],
    model: str,
    outputs: tuple[TensorSpec, ...] | None = None,
) -> Feeds:
    """Return how samples are fed to a model with these inputs and outputs (None if unknown); `model` names it in errors.

    Raises:
        JobError: the settings do not fit the model, or inputs have no common batch along axis 0.
    """
    known = {spec.name: spec for spec in inputs}
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise JobError(
            found=f"`inputs` names {unknown}",
            expected=f"inputs of {model}: {'; '.join(map(str, inputs))}",
            fix="correct the names",
        )
    feeds = unchecked_feeds({name: _checked(known[name], one) for name, one in settings.items()}, inputs)
    if not feeds.in_files:
        raise JobError(
            found="`inputs` makes every input a constant or a state",
            expected="at least one input with samples",
            fix="remove the settings of the inputs that differ from sample to sample",
        )
    _check_batch(feeds.samples, model)
    _check_states(feeds, outputs)
    return feeds


def unchecked_feeds(settings: Mapping[str, InputSettings], inputs: tuple[TensorSpec, ...]) -> Feeds:
    """Return the feeds of settings that fit the inputs."""
    dtypes = {spec.name: spec.dtype.replace("string", "str") for spec in inputs}
    return Feeds(
        inputs,
        {name: np.array(one.constant, dtypes[name]) for name, one in settings.items() if one.constant is not None},
        {name: one.batch_axis for name, one in settings.items() if one.batch_axis},
        {name: one.state_from for name, one in settings.items() if one.state_from},
    )


def _check_states(feeds: Feeds, outputs: tuple[TensorSpec, ...] | None) -> None:
    """Refuse a state of unknown size, or from no output of the model."""
    for spec in feeds.samples:
        if spec.name not in feeds.states:
            continue
        source = feeds.states[spec.name]
        if not all(isinstance(size, int) for size in spec.shape[1:]):
            raise JobError(
                found=f"`inputs.{spec.name}.state_from: {source}` for {spec}, samples along axis 0",
                expected="fixed sizes of all other axes, since the first call gets zeros",
                fix="export the model with fixed sizes of its state, or write recorded states into the data files",
            )
        if outputs is not None and source not in [output.name for output in outputs]:
            raise JobError(
                found=f"`inputs.{spec.name}.state_from: {source}`",
                expected=f"one of the outputs {[output.name for output in outputs]}",
                fix="correct the name",
            )


def _moved(shape: tuple[int | str | None, ...], axis: int) -> tuple[int | str | None, ...]:
    """Return a shape with one of its axes moved to the front.

    >>> _moved((2, "batch", 64), 1)
    ('batch', 2, 64)
    """
    return (shape[axis], *shape[:axis], *shape[axis + 1 :]) if shape else shape


def _filled(constant: NDArray[Any], shape: tuple[int | str | None, ...], rows: int) -> NDArray[Any]:
    """Return a constant with the shape of its input, where a dynamic axis 0 has one entry per sample.

    >>> _filled(np.array(3), ("batch", 2), 1)
    array([[3, 3]])
    """
    sizes = tuple(axis if isinstance(axis, int) else rows for axis in shape)
    return np.full(sizes, constant) if constant.ndim == 0 and shape else constant.reshape(sizes)


def _checked(spec: TensorSpec, setting: InputSettings) -> InputSettings:
    """Return the setting if it fits its input."""
    if setting.constant is not None:
        _check_constant(spec, np.array(setting.constant))
    if setting.batch_axis and setting.batch_axis >= len(spec.shape):
        raise JobError(
            found=f"`inputs.{spec.name}.batch_axis: {setting.batch_axis}` for {spec}",
            expected=f"an axis from 0 to {len(spec.shape) - 1}",
            fix="correct the axis",
        )
    return setting


def _check_constant(spec: TensorSpec, array: NDArray[Any]) -> None:
    fixed = [axis for axis in spec.shape if isinstance(axis, int)]
    later_are_fixed = all(isinstance(axis, int) for axis in spec.shape[1:])
    is_whole = len(fixed) == len(spec.shape) and array.size == np.prod(fixed, dtype=np.int64)
    if not (later_are_fixed if array.ndim == 0 else is_whole):
        raise JobError(
            found=f"`inputs.{spec.name}.constant` with {array.size} {'value' if array.size == 1 else 'values'} for {spec}",
            expected="one value for an input of fixed sizes, except axis 0, or as many values as a fixed shape has",
            fix="correct the values, or write the input into the data files",
        )
    wanted = np.dtype(spec.dtype)
    # Of the numbers, only those that the input's type represents: 0.5 is no int64.
    if wanted.kind == "U":
        fits = array.dtype.kind == "U"
    else:
        fits = array.dtype.kind in "biuf" and np.allclose(array.astype(wanted).astype(float), array.astype(float))
    if not fits:
        raise JobError(
            found=f"`inputs.{spec.name}.constant: {array.tolist()}` for {spec}",
            expected=f"values of the type {spec.dtype}",
            fix="correct the constant",
        )


def _check_batch(inputs: tuple[TensorSpec, ...], model: str) -> None:
    """Refuse inputs that cannot be cut into samples along axis 0."""
    for spec in inputs:
        if not spec.shape:
            raise JobError(
                found=f"{model}: input {spec} is a scalar, which no data file can hold for each sample",
                expected="an array with the samples along axis 0, or a constant",
                fix=f"add to the job `{_setting({spec.name: {'constant': 'VALUE'}})}` with the value of production",
            )
    shared = _shared_elsewhere(inputs)
    if shared:
        raise _no_common_batch(f"{model}: {shared[0]}", shared[1])
    first = {spec.shape[0] if isinstance(spec.shape[0], int) else None for spec in inputs}
    if len(first) > 1:
        found = f"{model}: inputs of different sizes along axis 0: {'; '.join(map(str, inputs))}"
        raise _no_common_batch(found, {"NAME": {"batch_axis": 1}})


def _shared_elsewhere(inputs: tuple[TensorSpec, ...]) -> tuple[str, dict[str, Any]] | None:
    """Describe an input that has axis 0 of another on a later axis, by the names of dynamic axes, with the setting it needs."""
    names = [axis for spec in inputs for axis in set(spec.shape) if isinstance(axis, str)]
    # If an exporter gives several axes of one input the same name, the names carry no information.
    if len(names) < sum(isinstance(axis, str) for spec in inputs for axis in spec.shape):
        return None
    for spec in inputs:
        for other in inputs:
            if isinstance(spec.shape[0], str) and spec.shape[0] in other.shape[1:]:
                axis = other.shape.index(spec.shape[0])
                return (
                    f"axis 0 of input {spec} is axis {axis} of input {other}",
                    {other.name: {"batch_axis": axis}},
                )
    return None


def _setting(inputs: dict[str, Any]) -> str:
    return yaml_line({"inputs": inputs})


def _no_common_batch(found: str, setting: dict[str, Any]) -> JobError:
    return JobError(
        found=f"{found}; the inputs have no common batch axis",
        expected="samples along axis 0 of every input, or `inputs` in the job that says where they are",
        fix=f"add to the job `{_setting(setting)}` for an input with the samples on another axis, or"
        " `inputs: {NAME: {constant: VALUE}}` for one that is the same in every request",
    )
