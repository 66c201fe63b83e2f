"""The job's gates: what a variant must satisfy to be promoted."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from validators.frozen import Settings


class Gates(Settings):
    """What a variant must satisfy to be promoted. A gate that is null is not applied."""

    max_drop: Annotated[float, Field(ge=0)] = 0.02
    """Largest drop of the metric against the baseline, in the metric's own units (0.02 of accuracy is 2 points). For perplexity
    it is a rise of the loss in nats a token: 0.02 allows exp(0.02), 2 % more perplexity."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """One-sided confidence of every gate that rests on samples."""
    min_speedup: Annotated[float, Field(gt=0)] | None = 1.05
    """Smallest ratio of the baseline's p50 latency to the variant's, at the first batch size."""
    min_coverage: Annotated[float, Field(ge=0, le=1)] | None = 0.5
    """Smallest share of multiply-accumulates in low-precision kernels, for candidates below 16-bit."""
    max_size_ratio: Annotated[float, Field(gt=0)] | None = 1.05
    """Largest ratio of the variant's bytes to the baseline's."""
