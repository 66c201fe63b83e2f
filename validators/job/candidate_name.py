"""Candidates and their names: `<precision>-<method>...[+fused][+kv<bits>]@<target>` decodes mechanically, both ways.

fp32-fused@ort-cpu                    the float graph after the runtime's transformer fusions
fp16@tensorrt                         float16 weights and activations; on ort-cuda too
bf16@openvino                         the float graph computed in bfloat16
int8-static-mse-pc-all@openvino       by OpenVINO: its own placement, activations with zero points of 0
int8-static-mse-pc-all-bf16@openvino  the same, and what stays in float is computed in bfloat16
int8-static-percentile-pc@ort-cpu     calibrated; per channel; UINT8 activations; MatMul, Gemm and Conv only
int8-static-p99.9-pc@ort-cpu          the same with another percentile: `percentile` is the 99.99th
int8-static-minmax-pt-all-s8s8@ort-cpu    per tensor, every operator, INT8 activations
int8-static-mse-pc-smooth@ort-cpu     large channels of activations handed to the weights first (SmoothQuant)
int8-static-mse-pc-learned@ort-cpu    weights rounded so that each layer's output has the least error
int8-static-mse-pc-bc@ort-cpu         biases shifted by what quantization moves the mean of a channel by
int8-static-mse-pc-all-fast@ort-cpu   products that a profile shows to be slower in INT8 are left in float
fp8-amax-pc-fast@tensorrt             products that engines show to gain nothing in FP8 are left in float
int8-static-minmax-pc-all-40db@ort-cpu    parts left in float, at the least cost, until noise is 40 dB below the output
int8-dynamic-pc+fused@ort-cpu         ranges at run time, on the fused graph
int8-dynamic-pc-smooth-35db@ort-cpu   the same after SmoothQuant, with parts in float until noise is 35 dB below
int8-g32-rtn@ort-genai                weight only, INT8 in blocks of 32
int8-g32-rtn+kv8@ort-genai            the same, with a decoder's cache of keys and values in INT8 (or INT4: +kv4)
int4-g32-rtn@ort-cpu                  weight only, blocks of 32, round to nearest, symmetric
int4-g64-gptq-asym@ort-cpu            by GPTQ (or awq, hqq, learned), with a zero point for each block
int4-g64-gptq-30db@ort-genai          blocks of other sizes and INT8 for some weights: the fewest bytes for 30 dB
int4-g64-gptq-asym-rot@ort-genai      of a decoder: its residual stream is rotated first, which spreads outlier channels
int4-g128-awq@ort-cuda                over the graph in float16, as on every target with a GPU
fp8-amax-pc@ort-cpu                   E4M3, scale = amax / 448
int8-given-nncf@openvino              a file of another tool, which the job calls `nncf`
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args

from pydantic_core import PydanticKnownError, core_schema

from validators.errors import JobError
from validators.job import methods
from validators.job.methods import FLAGS, MINMAX, NEAREST, RANGES, ROUNDINGS, Flag, RangeMethod, Rounding
from validators.targets import facts_of, target_names

# `int8` quantizes weights and activations, `int8-weights` the weights alone, as `int4` does.
Precision = Literal["fp32", "bf16", "fp16", "int8", "int8-weights", "int4", "fp8"]
# Precisions of 16-bit floats, and the candidates of which the coverage counts kernels in 16 bits.
HALF_PRECISIONS = frozenset({"bf16", "fp16"})
Granularity = Literal["pt", "pc"]
CacheBits = Literal[8, 4]
# Name of a given file: part of a candidate's name, of names in MLflow and of files.
GIVEN_NAME = r"[a-z0-9][a-z0-9_.-]{0,39}"
_GIVEN = re.compile(rf"({'|'.join(get_args(Precision))})-given-({GIVEN_NAME})")
# Block sizes that MatMulNBits supports.
BLOCK_SIZES = (16, 32, 64, 128, 256)


class _KnownTarget:
    """Validation of a target's name: one of ours, or of an installed package, both of which the JSON Schema lists."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, _schema: Any, _handler: Any) -> dict[str, Any]:
        return {"enum": list(target_names()), "type": "string"}

    @staticmethod
    def _check(name: str) -> str:
        if name in target_names():
            return name
        *others, last = map(repr, target_names())
        # The error of a Literal, which a list that is fixed on import cannot be.
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(others)} or {last}"})


TargetName = Annotated[str, _KnownTarget()]


@dataclass(frozen=True)
class Candidate:
    """A recipe for one target.

    `range_method` is set for INT8 static, `granularity` for INT8 and FP8, `block_size` (weights along K) and
    `weight_method` for INT4 and INT8 weights (and, of INT8 static, for learned rounding), `asymmetric` if blocks of INT4 have
    a zero point.
    `every_operator` quantizes all operators that the runtime can, not just MatMul, Gemm and Conv with weights;
    `signed_activations` takes INT8 in place of UINT8 activations; `fused` starts from the transformer-fused graph. Of INT8,
    `smooth` starts from the graph after SmoothQuant; `bias_corrected`, of INT8 static, shifts biases. With `sqnr_db`, parts of
    INT8 stay in float, and weights of INT4 get other blocks or INT8, at the least cost for which the predicted noise in the
    judged output is so many decibels below it (`tasks.ptq.search`); 0 leaves all as they are. `fast`, of INT8 static and FP8,
    leaves products in float that gain nothing (`tasks.ptq.slow_parts`). `rotated` starts from the graph of a decoder after a
    rotation (`tasks.ptq.graph.rotate`). With `bf16_floats` the rest is computed in bfloat16. `cache_bits` is the width of the
    keys and values that a decoder caches; None leaves them in float. `given` is the job's name of a file that is judged as it
    is; of the other fields only `precision` and `target` are set then.
    """

    precision: Precision
    target: str
    dynamic: bool = False
    range_method: str | None = None
    granularity: Granularity | None = None
    every_operator: bool = False
    signed_activations: bool = False
    smooth: bool = False
    rotated: bool = False
    bias_corrected: bool = False
    fast: bool = False
    sqnr_db: int = 0
    # A word of earlier versions, whose champions have it in their names; no such candidate is made any more.
    retired: str = ""
    block_size: int | None = None
    weight_method: str | None = None
    asymmetric: bool = False
    fused: bool = False
    bf16_floats: bool = False
    cache_bits: CacheBits | None = None
    given: str = ""

    @property
    def name(self) -> str:
        """The name that `decode` turns back into this candidate.

        Raises:
            ValueError: a field has a value that no name has a word for.

        >>> Candidate("int4", "ort-cpu", block_size=32, weight_method="rtn").name
        'int4-g32-rtn@ort-cpu'
        """
        if self.given:
            return f"{self.precision}-given-{self.given}@{self.target}"
        recipe = next(one for one in RECIPES if one.makes(self))
        words = [recipe.head, *filter(None, (word.write(self) for word in recipe.words))]
        free = {text: on for text, on in SUFFIXES.items() if on[0] not in recipe.fixed}
        suffixes = [text for text, (field, value) in free.items() if getattr(self, field) == value]
        return "-".join(words) + "".join(suffixes) + "@" + self.target

    @property
    def rounding(self) -> Rounding:
        """The method that rounds the weights; to nearest where the name has none."""
        return ROUNDINGS[self.weight_method] if self.weight_method else NEAREST

    @property
    def ranges(self) -> RangeMethod:
        """The method that finds the ranges; FP8, whose name has none, takes the extremes."""
        return RANGES[self.range_method] if self.range_method else MINMAX

    @property
    def in_bf16(self) -> bool:
        """True if the runtime is asked for bfloat16 where the file says float32."""
        return self.precision == "bf16" or self.bf16_floats

    @property
    def is_calibrated(self) -> bool:
        """True if calibration samples influence the variant: by ranges, Gram matrices, smoothing, or the noise of parts.

        >>> [decode(f"{one}@ort-cpu").is_calibrated for one in ("int8-dynamic-pc", "int8-dynamic-pc-30db", "int4-g32-gptq")]
        [False, True, True]
        """
        has_ranges = self.range_method is not None or self.precision == "fp8" or self.cache_bits is not None
        by_step = any(flag.is_calibrated for flag in FLAGS if getattr(self, flag.field))
        return has_ranges or self.rounding.needs_grams or by_step or self.sqnr_db > 0

    @property
    def is_seeded(self) -> bool:
        """True if the job's seed influences the variant."""
        return any(flag.is_seeded for flag in FLAGS if getattr(self, flag.field))

    @property
    def is_simulated(self) -> bool:
        """True if the target has no kernels for the precision, so that only its numerics can be reproduced there."""
        return self.precision in facts_of(self.target).simulated

    @property
    def kernels(self) -> Candidate:
        """The candidate without what changes values alone: those with equal `kernels` run the same ones, and are equally fast.

        >>> decode("int8-static-mse-pc-bc@ort-cpu").kernels == decode("int8-static-minmax-pc@ort-cpu").kernels
        True
        """
        plain = None if self.precision == "int8" else NEAREST.word
        method = plain if self.weight_method and self.rounding.keeps_kernels else self.weight_method
        return replace(self, range_method=None, weight_method=method, bias_corrected=False)


FUSED = "+fused"
# Suffixes of any recipe, in the order of names: the field that each sets, and its value.
SUFFIXES: Mapping[str, tuple[str, Any]] = {
    FUSED: ("fused", True),
    "+kv8": ("cache_bits", 8),
    "+kv4": ("cache_bits", 4),
}


@dataclass(frozen=True)
class NameWord:
    """A word of a name: the field of `Candidate` that it sets, and its texts with their values.

    An optional word is left out of the name where the field has its default.
    """

    field: str
    values: Mapping[str, Any]
    optional: bool = False

    def write(self, candidate: Candidate) -> str:
        """Return the text of the candidate's value, empty if the word is left out.

        Raises:
            ValueError: no text stands for this value.
        """
        value = getattr(candidate, self.field)
        text = next((text for text, one in self.values.items() if one == value), "")
        if not text and (value or not self.optional):
            raise ValueError(f"{self.field} is {value!r}, expected one of {list(self.values.values())}")
        return text


@dataclass(frozen=True)
class Recipe:
    """A kind of candidate: the head of its name, the fields that the head sets, and the words that follow in this order."""

    head: str
    fixed: Mapping[str, Any]
    words: tuple[NameWord, ...] = ()

    def makes(self, candidate: Candidate) -> bool:
        """Return True if the candidate is of this kind."""
        return all(getattr(candidate, field) == value for field, value in self.fixed.items())

    def read(self, text: str) -> dict[str, Any] | None:
        """Return the fields that a name without its target and suffix sets; None if it is no name of this kind."""
        if text != self.head and not text.startswith(f"{self.head}-"):
            return None
        left = text.removeprefix(self.head).split("-")[1:]
        fields = dict(self.fixed)
        for word in self.words:
            if left and left[0] in word.values:
                fields[word.field] = word.values[left.pop(0)]
            elif not word.optional:
                return None
        return None if left else fields


def _one_of(field: str, texts: Iterable[str], optional: bool = False) -> NameWord:
    return NameWord(field, {text: text for text in texts}, optional)


def _rounded(precision: Precision, optional: bool = False) -> NameWord:
    return _one_of("weight_method", (word for word, row in ROUNDINGS.items() if precision in row.precisions), optional)


def _if(flag: Flag) -> NameWord:
    return NameWord(flag.field, {flag.word: True}, optional=True)


_GRANULARITY = _one_of("granularity", get_args(Granularity))
_BLOCK = NameWord("block_size", {f"g{size}": size for size in BLOCK_SIZES})
_SMOOTH, _ROTATED = _if(methods.SMOOTH), _if(methods.ROTATED)
_KEEP = _one_of("retired", (f"keep{count}" for count in range(1, 1000)), optional=True)
_MIX = _one_of("retired", (f"mix{percent}" for percent in range(1, 100)), optional=True)
_SEARCHED = NameWord("sqnr_db", {f"{level}db": level for level in range(1, 100)}, optional=True)

# To add a word, add its field to `Candidate`, its row to `methods.py`, and the word here and in `recipe_words.py`.
RECIPES: tuple[Recipe, ...] = (
    Recipe("fp32-fused", {"precision": "fp32", "fused": True}),
    Recipe("bf16", {"precision": "bf16"}),
    Recipe("fp16", {"precision": "fp16"}),
    Recipe(
        "int8-static",
        {"precision": "int8", "dynamic": False},
        (
            _one_of("range_method", RANGES),
            _GRANULARITY,
            _if(methods.EVERY_OPERATOR),
            _if(methods.SIGNED),
            _SMOOTH,
            _rounded("int8", optional=True),
            _if(methods.CORRECTED),
            _if(methods.FAST),
            _KEEP,
            _SEARCHED,
            _if(methods.BF16_REST),
        ),
    ),
    Recipe("int8-dynamic", {"precision": "int8", "dynamic": True}, (_GRANULARITY, _SMOOTH, _ROTATED, _KEEP, _SEARCHED)),
    Recipe("int8", {"precision": "int8-weights"}, (_BLOCK, _rounded("int8-weights"), _ROTATED)),
    Recipe(
        "int4",
        {"precision": "int4"},
        (
            _BLOCK,
            _rounded("int4"),
            _if(methods.ASYMMETRIC),
            _MIX,
            _SEARCHED,
            _ROTATED,
            _if(methods.BF16_REST),
        ),
    ),
    Recipe("fp8-amax", {"precision": "fp8"}, (_GRANULARITY, _if(methods.FAST))),
)


def decode(name: str) -> Candidate:
    """Turn a candidate's name into the candidate.

    Raises:
        JobError: the name does not follow the grammar at the top of this file.

    >>> decode("int8-static-entropy-pc@ort-cpu").range_method
    'entropy'
    >>> decode("int8-dynamic-pc+fused@ort-cpu").name
    'int8-dynamic-pc+fused@ort-cpu'
    >>> decode("int8-g32-rtn+kv8@ort-genai").cache_bits
    8
    >>> decode("int8-given-nncf@openvino").given
    'nncf'
    """
    recipe, _, target = name.partition("@")
    text, suffixes = recipe, dict[str, Any]()
    given = _GIVEN.fullmatch(recipe)
    for suffix, (field, value) in reversed([*SUFFIXES.items()]):
        if field not in suffixes and text.endswith(suffix):
            text, suffixes[field] = text.removesuffix(suffix), value
    fields = next((found for one in RECIPES if (found := one.read(text)) is not None), None)
    if given:
        fields = {"precision": given[1], "given": given[2]}
    if fields is None or target not in target_names():
        raise JobError(
            found=f"candidate {name!r}",
            expected="<precision>-<method>...@<target>, such as int8-static-percentile-pc@ort-cpu, "
            "int8-dynamic-pc@ort-cpu, int4-g32-rtn@ort-cpu, fp8-amax-pc@ort-cpu, fp32-fused@ort-cpu, fp16@tensorrt",
            fix="correct the name, or write `candidates: default`",
        )
    if engines := facts_of(target).engines:
        raise JobError(
            found=f"candidate {name!r}, for a class of devices",
            expected=f"a candidate for one of its engines: {', '.join(engines)}",
            fix=f"write {recipe}@{engines[0]}, or `candidates: default`",
        )
    if "fused" in fields and "fused" in suffixes:
        raise JobError(found=f"candidate {name!r}", expected=text, fix=f"leave out {FUSED}")
    return Candidate(target=target, **fields | suffixes)
