"""The job's settings of TensorRT's engine builder."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from validators.job.settings_base import Settings

Size = Annotated[int, Field(ge=1)]
ComputeCapability = Literal["7.5", "8.0", "8.6", "8.9", "12.0", "12.1"]


class AxisRange(Settings):
    """Sizes of a dynamic axis that an engine accepts."""

    minimum: Size
    """Smallest size."""
    optimum: Size
    """Size for which TensorRT selects kernels."""
    maximum: Size
    """Largest size."""

    @model_validator(mode="after")
    def _in_order(self) -> AxisRange:
        if not self.minimum <= self.optimum <= self.maximum:
            raise ValueError("expected minimum <= optimum <= maximum")
        return self


class Engines(Settings):
    """Settings of the engines that TensorRT builds for the target `tensorrt`."""

    axes: dict[str, AxisRange] = Field(default_factory=dict)
    """Sizes of the model's dynamic axes by name, axis 0 as `batch`. Any other axis accepts all sizes of the data and of
    `measurement`, and is fastest at the first operating point."""
    workspace_mb: Annotated[int, Field(ge=1)] | None = None
    """Scratch memory on the device that a layer may take; null for all of it."""
    tf32: bool = True
    """Allow TF32 for products of float32, as TensorRT does by default; for the baseline too."""
    ahead_of_time: Annotated[tuple[ComputeCapability, ...], Field(min_length=1)] = ("8.9", "12.0")
    """Compute capabilities to build and inspect engines for on a machine without a GPU (extra `tensorrt-aot`)."""
