"""How a champion is watched once it is promoted, and what is done when its traffic or its answers change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from validators.job.job_data import Place
from validators.job.settings_base import Settings

Action = Literal["report", "requantize", "rollback"]


class Watch(Settings):
    """What the watch looks at, and when it raises an alarm; see docs/watch.md. `calibration` has the bounds on drift."""

    traffic: Place
    """Where recent traffic is written: a folder, a file, or `s3://bucket/prefix`; `.npz` or `.parquet`, as in `data`, relative
    to the job file. A look takes only what was written after the last one."""
    newest_hours: Annotated[float, Field(gt=0, le=8760)] = 24.0
    """Files that were written earlier are left out."""
    max_samples: Annotated[int, Field(ge=16, le=100_000)] = 1000
    """Most samples of a look, of the newest files."""
    min_samples: Annotated[int, Field(ge=16)] = 64
    """With fewer than these, the look is put off until there are more."""
    max_saturation: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """Largest share of a tensor's values outside the range that the champion fixes, beyond what was outside when promoted."""
    min_agreement: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Smallest share of samples that the champion answers like its source: with the same class, where the metric is of class
    scores, else with `min_sample_sqnr_db`."""
    min_sample_sqnr_db: float = 10.0
    """Where outputs are no class scores: signal-to-noise ratio, in decibels, from which a sample's answers are alike."""
    looks_between_false_alarms: Annotated[int, Field(ge=10, le=100_000_000)] = 10_000
    """While nothing is beyond its bounds, at least so many looks pass on average before an alarm."""
    looks: Annotated[int, Field(ge=1, le=24)] = 2
    """Fewest looks that an alarm rests on, however bad the first of them is."""
    on_drift: Action = "report"
    """What is done when the traffic drifts from the calibration data, or leaves the champion's ranges."""
    on_disagreement: Action = "report"
    """What is done when the champion no longer answers like its source."""

    @model_validator(mode="after")
    def _samples_fit(self) -> Watch:
        if self.min_samples > self.max_samples:
            raise ValueError("`min_samples` is larger than `max_samples`")
        return self

    def below(self, base: Path) -> Watch:
        """The same, with a path of traffic that is relative to a folder.

        >>> str(Watch(traffic="requests").below(Path("/jobs")).traffic)
        '/jobs/requests'
        """
        return self.model_copy(update={"traffic": base / self.traffic}) if isinstance(self.traffic, Path) else self
