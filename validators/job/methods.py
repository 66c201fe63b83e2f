"""The catalogue of methods: how weights are rounded, how ranges are found, and the steps that words of a name turn on.

A row owns every fact about its method but its function, which is under the same word in `tasks/ptq`: of roundings in
`weight_only/roundings.py` (INT4) and `eight_bit/int8_weights.py` (INT8), of ranges in `calibrate/range_methods.py`. All other
code asks the row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Needs of methods; engines have those that they lack in `TargetFacts.without`.
GRAMS = "Gram matrices"
SCALED_INPUTS = "activations multiplied by factors"
FRACTIONS = "zero points that are fractions"
OUR_ROUNDING = "weights rounded by quantgate"
OUR_RANGES = "ranges found by quantgate"


@dataclass(frozen=True)
class Method:
    """A row: its word in names, its description, and what it asks for. Engines that lack one of its needs refuse it."""

    word: str
    words: str
    asks: frozenset[str] = frozenset()

    @property
    def needs(self) -> frozenset[str]:
        """What an engine must have for it, some of which is the same for all methods of a kind."""
        return self.asks


@dataclass(frozen=True, kw_only=True)
class Rounding(Method):
    """A method that rounds weights of some precisions; of INT4, the list `wide` has it with the endings `wide`.

    Engines that round weights themselves do what `is_common` does.
    """

    precisions: frozenset[str] = frozenset({"int4"})
    wide: frozenset[str] = frozenset()
    is_common: bool = False

    @property
    def needs(self) -> frozenset[str]:
        """With OUR_ROUNDING, if an engine that rounds weights itself would ignore the method."""
        return self.asks if self.is_common else self.asks | {OUR_ROUNDING}

    @property
    def needs_grams(self) -> bool:
        """True if it reads Gram matrices of the activations, and so calibration samples."""
        return GRAMS in self.asks

    @property
    def scales_inputs(self) -> bool:
        """True if channels of the activations are scaled first, for which the graph is rewritten."""
        return SCALED_INPUTS in self.asks

    @property
    def has_fractions(self) -> bool:
        """True if its zero points are fractions: symmetric blocks have none to choose, and integer kernels take none."""
        return FRACTIONS in self.asks

    @property
    def keeps_kernels(self) -> bool:
        """True if it changes values alone: its variants run the kernels of those rounded to nearest."""
        return not self.scales_inputs and not self.has_fractions


@dataclass(frozen=True, kw_only=True)
class RangeMethod(Method):
    """A method that finds clipping ranges; `observer` is torchao's class that finds the same ones."""

    observer: str = ""
    is_wide: bool = False

    @property
    def needs(self) -> frozenset[str]:
        """With OUR_RANGES, if torchao's quantizer cannot find them."""
        return self.asks if self.observer else self.asks | {OUR_RANGES}


@dataclass(frozen=True, kw_only=True)
class Flag(Method):
    """A step or an option that sets a field of `Candidate`.

    It `is_calibrated` if samples decide what it does, and `is_seeded` if the job's seed does. One that `keeps_kernels` changes
    values alone.
    """

    field: str
    is_calibrated: bool = False
    is_seeded: bool = False
    keeps_kernels: bool = False


def words_of(methods: Iterable[Method]) -> str:
    """Return the words of methods for a text.

    >>> words_of(row for row in ROUNDINGS.values() if row.needs_grams)
    'gptq, awq or learned'
    """
    *others, last = (method.word for method in methods)
    return f"{', '.join(others)} or {last}" if others else last


NEAREST = Rounding(
    "rtn",
    "rounded to nearest",
    precisions=frozenset({"int4", "int8-weights"}),
    wide=frozenset({"", "-asym"}),
    is_common=True,
)
# By their words, in the order of the list `wide`.
ROUNDINGS = {
    row.word: row
    for row in (
        NEAREST,
        Rounding("hqq", "by half-quadratic splitting", frozenset({FRACTIONS}), wide=frozenset({"-asym"})),
        Rounding("gptq", "by GPTQ", frozenset({GRAMS}), wide=frozenset({"", "-asym"})),
        Rounding("awq", "by AWQ", frozenset({GRAMS, SCALED_INPUTS}), wide=frozenset({""})),
        Rounding(
            "learned",
            "with learned rounding",
            frozenset({GRAMS}),
            precisions=frozenset({"int4", "int8"}),
            wide=frozenset({"-asym"}),
        ),
    )
}
# Those that change values alone.
VALUES_ALONE = tuple(row for row in ROUNDINGS.values() if row.keeps_kernels)

MINMAX = RangeMethod("minmax", "ranges of the extremes", observer="MinMaxObserver", is_wide=True)
RANGES = {
    row.word: row
    for row in (
        RangeMethod("mse", "ranges of the least squared error", observer="HistogramObserver", is_wide=True),
        MINMAX,
        RangeMethod("entropy", "ranges of the least divergence", is_wide=True),
        RangeMethod("percentile", "ranges of 99.99 % of the values", is_wide=True),
        RangeMethod("p99.9", "ranges of 99.9 % of the values", is_wide=True),
        RangeMethod("p99.999", "ranges of 99.999 % of the values"),
    )
}

EVERY_OPERATOR = Flag("all", "every operator", field="every_operator")
SIGNED = Flag("s8s8", "signed activations", field="signed_activations")
SMOOTH = Flag("smooth", "smoothed", field="smooth", is_calibrated=True, is_seeded=True)
CORRECTED = Flag("bc", "biases corrected", field="bias_corrected", keeps_kernels=True)
FAST = Flag("fast", "products that it makes slower left in float", field="fast")
ASYMMETRIC = Flag("asym", "asymmetric", field="asymmetric")
ROTATED = Flag("rot", "rotated", field="rotated", is_seeded=True)
BF16_REST = Flag("bf16", "the rest in bfloat16", field="bf16_floats")
FLAGS = (EVERY_OPERATOR, SIGNED, SMOOTH, CORRECTED, FAST, ASYMMETRIC, ROTATED, BF16_REST)
