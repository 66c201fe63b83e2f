"""Candidates and their names: `<precision>-<method>...[+fused]@<target>` decodes mechanically, both ways.

fp32-fused@ort-cpu                    the float graph after the runtime's transformer fusions
fp16@tensorrt                         float16 weights and activations; on ort-cuda and ort-tensorrt too
int8-static-mse-pc-all@ort-openvino   by the OpenVINO provider: its own placement, activations with zero points of 0
int8-static-percentile-pc@ort-cpu     calibrated; per channel; UINT8 activations; MatMul, Gemm and Conv only
int8-static-p99.9-pc@ort-cpu          the same with another percentile: `percentile` is the 99.99th
int8-static-minmax-pt-all-s8s8@ort-cpu    per tensor, every operator, INT8 activations
int8-static-mse-pc-smooth@ort-cpu     large channels of activations handed to the weights first (SmoothQuant)
int8-static-mse-pc-bc@ort-cpu         biases shifted by what quantization moves the mean of a channel by
int8-static-minmax-pc-all-keep2@ort-cpu   the two parts of the model that lose most are left in float
int8-dynamic-pc+fused@ort-cpu         ranges at run time, on the fused graph
int8-dynamic-pc-smooth-keep4@ort-cpu  the same after SmoothQuant, with the four parts that lose most in float
int4-g32-rtn@ort-cpu                  weight only, blocks of 32, round to nearest, symmetric
int4-g64-gptq-asym@ort-cpu            by GPTQ (or awq, or hqq), with a zero point for each block
int4-g128-awq@ort-cuda                over the graph in float16, as on every target with a GPU
fp8-amax-pc@ort-cpu                   E4M3, scale = amax / 448
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic_core import PydanticKnownError, core_schema

from validators.errors import JobError
from validators.targets import facts_of, target_names

Precision = Literal["fp32", "fp16", "int8", "int4", "fp8"]
RangeMethod = Literal["minmax", "p99.9", "percentile", "p99.999", "entropy", "mse"]
WeightMethod = Literal["rtn", "hqq", "gptq", "awq"]
Granularity = Literal["pt", "pc"]


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
    `weight_method` for INT4, `asymmetric` if its blocks have a zero point.
    `every_operator` quantizes all operators that the runtime can, not just MatMul, Gemm and Conv with weights;
    `signed_activations` takes INT8 in place of UINT8 activations; `fused` starts from the transformer-fused graph. Of INT8,
    `smooth` starts from the graph after SmoothQuant, and the `kept_parts` most sensitive parts (`tasks.ptq.sensitivity`) stay
    in float; `bias_corrected`, of INT8 static, shifts biases.
    """

    precision: Precision
    target: str
    dynamic: bool = False
    range_method: RangeMethod | None = None
    granularity: Granularity | None = None
    every_operator: bool = False
    signed_activations: bool = False
    smooth: bool = False
    bias_corrected: bool = False
    kept_parts: int = 0
    block_size: int | None = None
    weight_method: WeightMethod | None = None
    asymmetric: bool = False
    fused: bool = False

    @property
    def name(self) -> str:
        """The name that `decode` turns back into this candidate.

        >>> Candidate("int4", "ort-cpu", block_size=32, weight_method="rtn").name
        'int4-g32-rtn@ort-cpu'
        """
        parts: list[str] = [self.precision]
        match self.precision:
            case "int8" if self.dynamic:
                parts += ["dynamic", self.granularity or "pt"]
                parts += ["smooth"] * self.smooth + [f"keep{self.kept_parts}"] * (self.kept_parts > 0)
            case "int8":
                parts += ["static", self.range_method or "minmax", self.granularity or "pt"]
                parts += ["all"] * self.every_operator + ["s8s8"] * self.signed_activations
                parts += ["smooth"] * self.smooth + ["bc"] * self.bias_corrected
                parts += [f"keep{self.kept_parts}"] * (self.kept_parts > 0)
            case "int4":
                parts += [f"g{self.block_size}", self.weight_method or "rtn"] + ["asym"] * self.asymmetric
            case "fp8":
                parts += ["amax", self.granularity or "pc"]
            case "fp32":
                parts += ["fused"]
            case "fp16":
                pass
        suffix = "+fused" if self.fused and self.precision != "fp32" else ""
        return "-".join(parts) + suffix + "@" + self.target

    @property
    def is_simulated(self) -> bool:
        """Whether the target has no kernels for the precision, so that only its numerics can be reproduced there."""
        return self.precision in facts_of(self.target).simulated


_GRAMMAR = re.compile(
    r"(?:(?P<fp32>fp32-fused)"
    r"|(?P<fp16>fp16)"
    r"|int8-static-(?P<range_method>"
    + "|".join(map(re.escape, get_args(RangeMethod)))
    + r")-(?P<static_granularity>pt|pc)(?P<all>-all)?(?P<s8s8>-s8s8)?"
    r"(?P<smooth>-smooth)?(?P<bc>-bc)?(?:-keep(?P<keep>[1-9][0-9]{0,2}))?"
    r"|int8-dynamic-(?P<dynamic_granularity>pt|pc)(?P<dynamic_smooth>-smooth)?"
    r"(?:-keep(?P<dynamic_keep>[1-9][0-9]{0,2}))?"
    r"|int4-g(?P<block_size>16|32|64|128|256)-(?P<weight_method>rtn|hqq|gptq|awq)(?P<asym>-asym)?"
    r"|fp8-amax-(?P<fp8_granularity>pt|pc))"
    r"(?P<fused>\+fused)?"
    r"@(?P<target>[a-z0-9-]+)"
)


def decode(name: str) -> Candidate:
    """Turn a candidate's name into the candidate.

    Raises:
        JobError: the name does not follow the grammar at the top of this file.

    >>> decode("int8-static-entropy-pc@ort-cpu").range_method
    'entropy'
    >>> decode("int8-dynamic-pc+fused@ort-cpu").name
    'int8-dynamic-pc+fused@ort-cpu'
    """
    match = _GRAMMAR.fullmatch(name)
    if match is None or match["target"] not in target_names():
        raise JobError(
            found=f"candidate {name!r}",
            expected="<precision>-<method>...@<target>, such as int8-static-percentile-pc@ort-cpu, "
            "int8-dynamic-pc@ort-cpu, int4-g32-rtn@ort-cpu, fp8-amax-pc@ort-cpu, fp32-fused@ort-cpu, fp16@tensorrt",
            fix="correct the name, or write `candidates: default`",
        )
    part = match.groupdict()
    target = part["target"]
    fused = part["fused"] is not None
    if part["fp32"]:
        if fused:
            raise JobError(found=f"candidate {name!r}", expected="fp32-fused", fix="leave out +fused")
        return Candidate("fp32", target, fused=True)
    if part["fp16"]:
        return Candidate("fp16", target, fused=fused)
    if part["block_size"]:
        return Candidate(
            "int4",
            target,
            block_size=int(part["block_size"]),
            weight_method=next(method for method in get_args(WeightMethod) if method == part["weight_method"]),
            asymmetric=part["asym"] is not None,
            fused=fused,
        )
    if part["fp8_granularity"]:
        return Candidate("fp8", target, granularity=_granularity(part["fp8_granularity"]), fused=fused)
    if part["dynamic_granularity"]:
        granularity = _granularity(part["dynamic_granularity"])
        return Candidate(
            "int8",
            target,
            dynamic=True,
            granularity=granularity,
            smooth=part["dynamic_smooth"] is not None,
            kept_parts=int(part["dynamic_keep"] or 0),
            fused=fused,
        )
    return Candidate(
        "int8",
        target,
        range_method=next(method for method in get_args(RangeMethod) if method == part["range_method"]),
        granularity=_granularity(part["static_granularity"]),
        every_operator=part["all"] is not None,
        signed_activations=part["s8s8"] is not None,
        smooth=part["smooth"] is not None,
        bias_corrected=part["bc"] is not None,
        kept_parts=int(part["keep"] or 0),
        fused=fused,
    )


def _granularity(text: str) -> Granularity:
    return "pc" if text == "pc" else "pt"
