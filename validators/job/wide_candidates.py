"""The list `candidates: wide`: every sensible recipe of each engine that a target's own list names."""

from __future__ import annotations

from validators.job.candidate_name import FUSED, decode
from validators.targets import facts_of

_RANGES = ("mse", "minmax", "entropy", "percentile", "p99.9")
_BLOCKS = (32, 64, 128)
# By the words that a kind of name begins with.
_RECIPES: dict[str, tuple[str, ...]] = {
    "fp32-fused": ("fp32-fused",),
    "fp16": ("fp16",),
    "int8-static": (
        *(f"int8-static-{ranges}-pc{operators}" for ranges in _RANGES for operators in ("", "-all")),
        *(
            f"int8-static-mse-pc{rest}"
            for rest in (
                "-smooth",
                "-bc",
                "-learned",
                "-smooth-learned",
                "-all-smooth",
                "-all-learned",
                "-all-fast",
            )
        ),
    ),
    "int8-dynamic": (
        *("int8-dynamic-pc", "int8-dynamic-pt", "int8-dynamic-pc-smooth"),
        *("int8-dynamic-pc+fused", "int8-dynamic-pc-smooth+fused"),
    ),
    # Weights alone in INT8, which targets of decoders take.
    "int8-g": (
        *(f"int8-g{size}-rtn" for size in _BLOCKS),
        *("int4-g32-gptq-asym-mix10", "int4-g32-gptq-asym-mix25", "int4-g32-gptq-asym-mix50"),
        *("int4-g32-gptq-asym-rot", "int4-g64-gptq-asym-rot"),
        *("int8-g32-rtn+kv8", "int8-g32-rtn+kv4", "int4-g32-gptq-asym+kv8", "int4-g32-gptq-asym+kv4"),
    ),
    "int4": (
        *(f"int4-g{size}-{method}" for size in _BLOCKS for method in ("rtn", "gptq", "awq")),
        *(f"int4-g32-{method}-asym" for method in ("rtn", "hqq", "gptq", "learned")),
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
    recipe, _, engine = name.partition("@")
    words, facts = recipe.replace(FUSED, f"-{FUSED}").split("-"), facts_of(engine)
    return words[0] not in facts.simulated and facts.without.isdisjoint(words)
