"""The job's settings for watching a champion after promotion, and the actions when its traffic or its answers change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from validators.job.job_data import DataPlace
from validators.job.settings_base import Settings

Action = Literal["report", "requantize", "rollback"]


class Watch(Settings):
    """Traffic that the watch reads, and bounds for its alarms; see docs/watch.md. `calibration` has the bounds on drift."""

    traffic: DataPlace
    """Path of recent traffic: a folder, a file, or `s3://bucket/prefix`; files of the types of `data`; relative to the
    job file. A look reads only files written since the last one."""
    newest_hours: Annotated[float, Field(gt=0, le=8760)] = 24.0
    """Greatest age of a file, in hours; older files are skipped."""
    max_samples: Annotated[int, Field(ge=16, le=100_000)] = 1000
    """Most samples of a look, from the newest files."""
    min_samples: Annotated[int, Field(ge=16)] = 64
    """Fewest samples of a look; with fewer, it is postponed."""
    max_saturation: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """Largest share of a tensor's values outside the champion's range, in excess of the share at promotion."""
    min_agreement: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Smallest share of samples on which champion and source agree: on the class if the metric reads class scores, else by
    `min_sample_sqnr_db`."""
    min_sample_sqnr_db: float = 10.0
    """Signal-to-noise ratio, in decibels, from which the answers to a sample agree, for outputs that are not class scores."""
    looks_between_false_alarms: Annotated[int, Field(ge=10, le=100_000_000)] = 10_000
    """Fewest looks, on average, before a false alarm."""
    looks: Annotated[int, Field(ge=1, le=24)] = 2
    """Fewest looks before an alarm, however bad the first of them is."""
    on_drift: Action = "report"
    """Action when the traffic drifts from the calibration data, or leaves the champion's ranges."""
    on_disagreement: Action = "report"
    """Action when the champion no longer answers like its source."""

    @model_validator(mode="after")
    def _samples_fit(self) -> Watch:
        if self.min_samples > self.max_samples:
            raise ValueError("`min_samples` is larger than `max_samples`")
        return self

    def below(self, base: Path) -> Watch:
        """Return a copy whose traffic path is resolved against the folder `base`.

        >>> str(Watch(traffic="requests").below(Path("/jobs")).traffic)
        '/jobs/requests'
        """
        return self.model_copy(update={"traffic": base / self.traffic}) if isinstance(self.traffic, Path) else self
