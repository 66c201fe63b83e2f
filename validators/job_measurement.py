"""How the job has speed and memory measured."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from validators.frozen import Settings


class Measurement(Settings):
    """How latency is measured: baseline and variant in turn, each alone in its process."""

    batch_sizes: Annotated[tuple[Annotated[int, Field(ge=1, le=1024)], ...], Field(min_length=1)] = (1,)
    """Batch sizes; gates and objective look at the first."""
    dims: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """Sizes of the model's other dynamic axes by name, such as `sequence: 16`; an axis not named keeps the data's size."""
    launches: Annotated[int, Field(ge=1, le=20)] = 2
    """How many times both processes are started afresh."""
    blocks: Annotated[int, Field(ge=1, le=100)] = 4
    """Pairs of blocks in each launch; `launches * blocks` pairs give the ratio and its interval."""
    block_seconds: Annotated[float, Field(gt=0, le=60)] = 0.25
    """Shortest duration of a block, in seconds."""
    block_count: Annotated[int, Field(ge=1)] = 20
    """Fewest requests in a block."""
    warmup_seconds: Annotated[float, Field(ge=0, le=60)] = 0.3
    """Requests before the first block of a launch, in seconds, not counted."""
    max_other_load: Annotated[float, Field(gt=0)] | None = 0.15
    """Share of the usable cores that other processes may keep busy during a block; beyond it the block is measured again,
    and after three tries the candidate's latency is refused. null measures whatever else runs."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads inside an operator; 0 takes the cores that the process may use."""

    @model_validator(mode="after")
    def _enough_pairs_for_an_interval(self) -> Measurement:
        if self.launches * self.blocks < 3:
            raise ValueError("launches * blocks must be at least 3: fewer pairs give no interval")
        return self
