"""The job's settings for measuring speed and memory."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from validators.job.settings_base import FunctionName, Settings


def _listed(value: Any) -> Any:
    """Return a list as it is, a number as a tuple of it. A union of both types would name both in every error."""
    if isinstance(value, (list, tuple)):
        if not value:
            raise ValueError("expected a number, or a list of at least one")
        return value
    return (value,)


Size = Annotated[int, Field(ge=1)]
Threads = Annotated[int, Field(ge=0)]
# The second argument is the type that the JSON Schema publishes.
Sizes = Annotated[tuple[Size, ...], BeforeValidator(_listed, Size | Annotated[tuple[Size, ...], Field(min_length=1)])]
ThreadCounts = Annotated[
    tuple[Threads, ...], BeforeValidator(_listed, Threads | Annotated[tuple[Threads, ...], Field(min_length=1)])
]


@dataclass(frozen=True)
class OperatingPoint:
    """Conditions of one latency: samples per request, sizes of the other dynamic axes, threads inside an operator."""

    batch_size: int
    dims: dict[str, int]
    threads: int


class Measurement(Settings):
    """Settings of the latency measurement: baseline and variant in turn, each alone in its process."""

    batch_sizes: Annotated[tuple[Annotated[int, Field(ge=1, le=1024)], ...], Field(min_length=1)] = (1,)
    """Batch sizes; gates and objective use the first."""
    dims: dict[str, Sizes] = Field(default_factory=dict)
    """Sizes of the model's other dynamic axes by name, such as `sequence: 16` or `sequence: [16, 128]`; any other axis keeps
    the data's size. All combinations with batch sizes and threads are measured; gates and objective use the first. For
    decoders, `new_tokens` counts the tokens that a request adds to its prompt; `[64, 1]` also measures the first one."""
    prompts: Annotated[int, Field(ge=0, le=10000)] = 32
    """For targets of decoders: evaluation windows, drawn across `data.groups`, that are cut to prompts and answered greedily by
    baseline and variant; for a gate on agreement a winner answers as many kept ones. 0 skips the comparison."""
    threads: ThreadCounts = (0,)
    """Threads inside an operator, one number or a list; 0 takes the cores that the process may use, by affinity and CPU quota.
    Variants are made and judged for the first."""
    launches: Annotated[int, Field(ge=1, le=20)] = 6
    """Number of times that both processes are started anew. The interval is over launches; with one, it describes that launch
    alone."""
    blocks: Annotated[int, Field(ge=1, le=100)] = 3
    """Pairs of blocks in each launch."""
    block_seconds: Annotated[float, Field(gt=0, le=60)] = 0.12
    """Shortest duration of a block, in seconds."""
    block_count: Annotated[int, Field(ge=1)] = 10
    """Fewest requests in a block, and fewest distinct requests if the evaluation data has so many; see docs/latency.md."""
    warmup_seconds: Annotated[float, Field(ge=0, le=60)] = 0.1
    """Shortest duration of the warm-up before the first block of a launch, in seconds."""
    warmup_limit_seconds: Annotated[float, Field(ge=0, le=600)] = 0.6
    """Longest duration of the warm-up, in seconds; it ends earlier once latency is stable."""
    max_other_load: Annotated[float, Field(gt=0)] | None = 0.15
    """Share of the usable cores that other processes and the hypervisor may take during a block. A pair of blocks that was
    disturbed, by such load or a cause that docs/latency.md lists, is measured again while `patience_seconds` lasts. Then the
    measurement is inconclusive. null allows any load."""
    patience_seconds: Annotated[float, Field(ge=0, le=86400)] = 300.0
    """Seconds that a run may spend in total on waiting for other processes and on repeating disturbed blocks."""
    clients: Annotated[int, Field(ge=0, le=1024)] = 0
    """Concurrent callers of one session for the throughput measurement; 0 skips it."""
    price_per_hour: Annotated[float, Field(gt=0)] | None = None
    """Price of an hour of what the session occupies, a machine or its share, in any currency. The result then has the cost of a
    million requests at full use, see docs/latency.md."""
    preprocess: FunctionName | None = None
    """`module:function`, see `code`, that takes a request's arrays by name and returns the model's inputs. It counts towards
    the end-to-end time."""
    postprocess: FunctionName | None = None
    """`module:function` that takes the list of the model's outputs. It counts towards the end-to-end time too."""

    @property
    def expected_seconds(self) -> float:
        """Estimated duration of one comparison of a model of a few milliseconds, in seconds, at all operating points."""
        # 0.7 s to start both processes was measured on two cores.
        launch = 2 * self.blocks * self.block_seconds + 2 * self.warmup_seconds + 0.7
        return len(self.points) * self.launches * launch

    @property
    def points(self) -> tuple[OperatingPoint, ...]:
        """All combinations; gates and objective use the first.

        >>> [point.dims for point in Measurement(dims={"sequence": [16, 128]}).points]
        [{'sequence': 16}, {'sequence': 128}]
        """
        return tuple(
            OperatingPoint(batch, dict(zip(self.dims, sizes, strict=True)), threads)
            for threads, batch, *sizes in itertools.product(self.threads, self.batch_sizes, *self.dims.values())
        )

    @model_validator(mode="after")
    def _enough_pairs_for_an_interval(self) -> Measurement:
        if self.launches * self.blocks < 3:
            raise ValueError("launches * blocks must be at least 3: fewer pairs give no interval")
        return self
