"""Number of threads to time with on a machine where other processes compute and have the same priority."""

from __future__ import annotations

import logging
import math
import os
import resource
import time

from tasks.measure.inventory import usable_cores
from tasks.measure.latency.disturbance import highest_priority
from tasks.measure.latency.patience import Processes, busiest, processor_use
from tasks.run.settings import hands_to_workers
from validators.job.job import Job
from validators.targets import is_on_gpu

log = logging.getLogger("quantgate")

# First a short look, which costs every run as much; only if others compute then, a longer one.
LOOKS_SECONDS = (0.25, 2.0)
# With this nice value and below, the kernel gives ordinary processes at most a tenth of a processor (sched(7)).
PRIOR = -10


def count_spare_threads(job: Job) -> int:
    """Return the number of threads to time with: as many as other processes leave cores; 0 if these do not disturb.

    They do not if measured processes may take priority over them, and where the job sets `measurement.threads`, measures
    whatever else runs, computes on a GPU, or is handed to workers.
    """
    measurement, cores = job.measurement, usable_cores()
    allowed = measurement.max_other_load
    if measurement.threads != (0,) or allowed is None or is_on_gpu(job.target) or hands_to_workers() or cores == 1:
        return 0
    if may_take_priority():
        return 0
    named = ""
    for seconds in LOOKS_SECONDS:
        before = processor_use()
        time.sleep(seconds)
        after = processor_use()
        others, named = cores_used(before, after, seconds), busiest(before, after, seconds)
        if others <= allowed * cores:
            return 0
    threads = max(1, math.floor(cores - others + allowed))
    if threads >= cores:
        return 0
    log.warning(
        "machine busy: %s. Measured processes may not take priority over others here, so everything is timed with %d instead "
        "of %d threads, on the processors that are least busy; `measurement.threads` sets their number",
        named or f"other processes use {others:.1f} cores",
        threads,
        cores,
    )
    return threads


def may_take_priority() -> bool:
    """Return True if a process of this user may take so high a priority that others hardly disturb it."""
    limit = resource.getrlimit(resource.RLIMIT_NICE)[0]
    if limit == resource.RLIM_INFINITY or 20 - limit <= PRIOR:
        return True
    with highest_priority():
        return os.getpriority(os.PRIO_PROCESS, 0) <= PRIOR


def cores_used(before: Processes, after: Processes, seconds: float) -> float:
    """Return the processor time of all processes in between, in cores.

    >>> cores_used({"1": ("a", 3.0)}, {"1": ("a", 4.0), "2": ("b", 0.5)}, 2.0)
    0.75
    """
    return sum(now - before.get(process, ("", 0.0))[1] for process, (_, now) in after.items()) / seconds
