"""What candidates are made from and judged on: the source, and the samples of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from validators.records.run import Source
from validators.samples.datasets import Samples, TensorSpec


@dataclass(frozen=True)
class Evidence:
    """The samples of a run and what the model's graph says of its inputs and the judged output.

    `batch_axis` is the fixed size of the inputs' axis 0, or None when it is dynamic. `confirmation`, shape `(rows,)`, marks the
    evaluation rows that have no say in choosing a winner. `sample_bytes` is the size of one sample's inputs and judged output,
    0 where it is not known.
    """

    inputs: tuple[TensorSpec, ...]
    output: TensorSpec
    calibration: Samples
    evaluation: Samples
    traffic: Samples | None
    batch_axis: int | None
    confirmation: NDArray[np.bool_]
    sample_bytes: int = 0

    @property
    def reference(self) -> Samples:
        """What calibration data should be like: the traffic, or the evaluation inputs in its place."""
        return self.traffic or self.evaluation


@dataclass(frozen=True)
class RunInputs:
    """What candidates are made from and judged on."""

    source: Source
    evidence: Evidence
