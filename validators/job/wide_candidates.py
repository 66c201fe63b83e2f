"""The list `candidates: wide`: every sensible recipe of each engine that a target's own list names."""

from __future__ import annotations

from validators.job.candidate_name import decode
from validators.job.methods import ASYMMETRIC, EVERY_OPERATOR, NEAREST, RANGES, ROUNDINGS
from validators.targets import facts_of

_BLOCKS = (32, 64, 128)
_ALL = f"-{EVERY_OPERATOR.word}"
# By the words that a kind of name begins with.
_RECIPES: dict[str, tuple[str, ...]] = {
    "fp32-fused": ("fp32-fused",),
    "fp16": ("fp16",),
    "int8-static": (
        *(f"int8-static-{row.word}-pc{rest}" for row in RANGES.values() if row.wide for rest in ("", _ALL)),
        *("int8-static-mse-pc-smooth", "int8-static-mse-pc-bc", "int8-static-mse-pc-learned"),
        *("int8-static-mse-pc-smooth-learned", "int8-static-mse-pc-all-smooth"),
        *("int8-static-mse-pc-all-learned", "int8-static-mse-pc-all-fast"),
    ),
    "int8-dynamic": (
        *("int8-dynamic-pc", "int8-dynamic-pt", "int8-dynamic-pc-smooth"),
        *("int8-dynamic-pc+fused", "int8-dynamic-pc-smooth+fused"),
    ),
    # Weights alone in INT8, which targets of decoders take.
    "int8-g": (
        *(f"int8-g{size}-{NEAREST.word}" for size in _BLOCKS),
        *("int4-g32-gptq-asym-rot", "int4-g64-gptq-asym-rot"),
        *("int8-g32-rtn+kv8", "int8-g32-rtn+kv4", "int4-g32-gptq-asym+kv8", "int4-g32-gptq-asym+kv4"),
    ),
    "int4": (
        *(f"int4-g{size}-{row.word}" for size in _BLOCKS for row in ROUNDINGS.values() if row.wide),
        *(f"int4-g32-{row.word}-{ASYMMETRIC.word}" for row in ROUNDINGS.values() if row.wide_asymmetric),
    ),
    "fp8-amax": ("fp8-amax-pc", "fp8-amax-pc-fast"),
}


def wide_candidates(target: str) -> tuple[str, ...]:
    """Return the names of the wide list: the target's own list, then all others of the kinds that it holds, engine by engine.

    Kinds without kernels, which are never promoted, are left out.

    >>> len(wide_candidates("ort-cpu")), wide_candidates("ort-cpu")[-1]
    (36, 'int4-g32-learned-asym@ort-cpu')
    """
    own = facts_of(target).default_candidates
    engines = dict.fromkeys(name.partition("@")[2] for name in own)
    others = (
        f"{recipe}@{engine}"
        for engine in engines
        for kind, recipes in _RECIPES.items()
        if any(name.startswith(kind) and name.endswith(f"@{engine}") for name in own)
        for recipe in recipes
    )
    sensible = (*(name for name in own if not decode(name).is_simulated), *filter(_is_sensible, others))
    return tuple(dict.fromkeys(sensible))


def _is_sensible(name: str) -> bool:
    candidate = decode(name)
    return not candidate.is_simulated and not facts_of(candidate.target).refused_words(name)
