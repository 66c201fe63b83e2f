"""The target `torch-cuda` with its packages on the processor, for machines without a GPU; the entry point of a package."""

from __future__ import annotations

from dataclasses import replace

from tasks.engines.inductor.engine import make_engine
from validators.target_facts import INDUCTOR
from validators.targets import facts_of

NAME = "torch-cuda-twin"
_FACTS = facts_of("torch-cuda")
TARGET = make_engine(
    replace(
        _FACTS,
        name=NAME,
        provider=INDUCTOR,
        default_candidates=tuple(f"{name.partition('@')[0]}@{NAME}" for name in _FACTS.default_candidates),
    ),
    "cpu",
)
