"""Samples of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from validators.records.run import DataFile
from validators.samples.datasets import Samples, TensorSpec


@dataclass(frozen=True)
class Evidence:
    """Samples of a run, with its inputs as data files hold them and the judged output as the graph describes it.

    `batch_axis` is the fixed size of the inputs' axis 0, or None when it is dynamic. `confirmation`, shape `(rows,)`, marks the
    evaluation rows that are not used to choose a winner. `sample_bytes` is the size of one sample's inputs and judged output,
    0 if unknown. `other_outputs` are the outputs that the metric reads beside `output`, in the order of the job. `clusters`,
    shape `(rows,)`, has the cluster of each evaluation row, of the job's groups and of copies; None if all are independent.
    `copies` counts evaluation samples that repeat another's inputs. `calibration` is None where no candidate needs any.
    """

    inputs: tuple[TensorSpec, ...]
    output: TensorSpec
    calibration: Samples | None
    evaluation: Samples
    traffic: Samples | None
    batch_axis: int | None
    confirmation: NDArray[np.bool_]
    sample_bytes: int = 0
    other_outputs: tuple[TensorSpec, ...] = ()
    clusters: NDArray[np.intp] | None = None
    copies: int = 0

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs that the metric reads, in order."""
        return [self.output.name, *(output.name for output in self.other_outputs)]

    @property
    def model_inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs as the graph describes them: with constants, and with the batch where the model has it."""
        return self.evaluation.feeds.model if self.evaluation.feeds else self.inputs

    @property
    def files(self) -> dict[str, DataFile]:
        """The data files by role."""
        roles = {"calibration": self.calibration, "evaluation": self.evaluation, "traffic": self.traffic}
        return {role: samples.file for role, samples in roles.items() if samples is not None}

    @property
    def reference(self) -> Samples:
        """Samples that the calibration data should resemble: the traffic, or else the evaluation inputs."""
        return self.traffic or self.evaluation
