"""How a job has TensorRT build its engines."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from validators.job.settings_base import Settings

Size = Annotated[int, Field(ge=1)]
ComputeCapability = Literal["7.5", "8.0", "8.6", "8.9", "12.0", "12.1"]


class AxisRange(Settings):
    """The sizes of a dynamic axis that an engine takes."""

    minimum: Size
    """The smallest."""
    optimum: Size
    """The one that its kernels are chosen for."""
    maximum: Size
    """The largest."""

    @model_validator(mode="after")
    def _in_order(self) -> AxisRange:
        if not self.minimum <= self.optimum <= self.maximum:
            raise ValueError("expected minimum <= optimum <= maximum")
        return self


class Engines(Settings):
    """How engines are built from the files for `tensorrt`."""

    axes: dict[str, AxisRange] = Field(default_factory=dict)
    """Sizes of the model's dynamic axes by name, axis 0 as `batch`. An axis not named takes all sizes that data and
    `measurement` have, and is fastest at the first operating point."""
    workspace_mb: Annotated[int, Field(ge=1)] | None = None
    """Scratch memory on the device that a layer may take; null for all there is."""
    tf32: bool = True
    """Whether products of float32 may be computed in TF32, as TensorRT does unless it is told otherwise; the baseline's too."""
    ahead_of_time: Annotated[tuple[ComputeCapability, ...], Field(min_length=1)] = ("8.9", "12.0")
    """Compute capabilities that engines are built for, and looked at, where there is no GPU (extra `tensorrt-aot`)."""
