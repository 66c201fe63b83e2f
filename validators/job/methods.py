"""The catalogue of methods: how weights are rounded, how ranges are found, and the steps that words of a name turn on.

A row owns every fact about its method but its function, which is under the same word in `tasks/ptq`: of roundings in
`weight_only/roundings.py` (INT4) and `eight_bit/int8_weights.py` (INT8), of ranges in `calibrate/range_methods.py`. All other
code asks the row.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """A row: its word in names, and what it does."""

    word: str
    words: str


@dataclass(frozen=True, kw_only=True)
class Rounding(Method):
    """A method that rounds weights of some precisions; the list `wide` has its INT4, symmetric or asymmetric.

    It `needs_grams`, Gram matrices of the activations and so samples; `scales_inputs` if it multiplies channels of the
    activations by factors first; its zero points may be `fractions`, which symmetric blocks do not have.
    """

    precisions: tuple[str, ...] = ("int4",)
    needs_grams: bool = False
    scales_inputs: bool = False
    fractions: bool = False
    wide: bool = False
    wide_asymmetric: bool = False

    @property
    def keeps_kernels(self) -> bool:
        """True if it changes values alone: its variants run the kernels of those rounded to nearest."""
        return not self.scales_inputs and not self.fractions


@dataclass(frozen=True, kw_only=True)
class RangeMethod(Method):
    """A method that finds clipping ranges; `observer` is torchao's class that finds the same ones."""

    observer: str = ""
    wide: bool = False


@dataclass(frozen=True, kw_only=True)
class Flag(Method):
    """A step or option that sets a field of `Candidate`; samples, or the job's seed, may decide what it does."""

    field: str
    is_calibrated: bool = False
    is_seeded: bool = False


# Both tables are by word, in the order of the list `wide`.
ROUNDINGS = {
    row.word: row
    for row in (
        Rounding("rtn", "rounded to nearest", precisions=("int4", "int8-weights"), wide=True, wide_asymmetric=True),
        Rounding("hqq", "by half-quadratic splitting", fractions=True, wide_asymmetric=True),
        Rounding("gptq", "by GPTQ", needs_grams=True, wide=True, wide_asymmetric=True),
        Rounding("awq", "by AWQ", needs_grams=True, scales_inputs=True, wide=True),
        Rounding(
            "learned", "with learned rounding", precisions=("int4", "int8"), needs_grams=True, wide_asymmetric=True
        ),
    )
}
RANGES = {
    row.word: row
    for row in (
        RangeMethod("mse", "the least squared error", observer="HistogramObserver", wide=True),
        RangeMethod("minmax", "the extremes", observer="MinMaxObserver", wide=True),
        RangeMethod("entropy", "the least divergence", wide=True),
        RangeMethod("percentile", "99.99 % of the values", wide=True),
        RangeMethod("p99.9", "99.9 % of the values", wide=True),
        RangeMethod("p99.999", "99.999 % of the values"),
    )
}
EVERY_OPERATOR = Flag("all", "every operator", field="every_operator")
SIGNED = Flag("s8s8", "signed activations", field="signed_activations")
SMOOTH = Flag("smooth", "smoothed", field="smooth", is_calibrated=True, is_seeded=True)
CORRECTED = Flag("bc", "biases corrected", field="bias_corrected")
FAST = Flag("fast", "products that it makes slower left in float", field="fast")
ASYMMETRIC = Flag("asym", "asymmetric", field="asymmetric")
ROTATED = Flag("rot", "rotated", field="rotated", is_seeded=True)
BF16_REST = Flag("bf16", "the rest in bfloat16", field="bf16_floats")
FLAGS = (EVERY_OPERATOR, SIGNED, SMOOTH, CORRECTED, FAST, ASYMMETRIC, ROTATED, BF16_REST)

# What a name without a word for it takes, and an engine that rounds weights by itself.
NEAREST, MINMAX = ROUNDINGS["rtn"], RANGES["minmax"]
# Words of roundings that change values alone, of all others than to nearest, and of those that rewrite the graph; of ranges
# that torchao does not find.
VALUES_ALONE = [row.word for row in ROUNDINGS.values() if row.keeps_kernels]
NOT_NEAREST = [row.word for row in ROUNDINGS.values() if row != NEAREST]
SCALING = [row.word for row in ROUNDINGS.values() if row.scales_inputs]
UNOBSERVED = [row.word for row in RANGES.values() if not row.observer]
