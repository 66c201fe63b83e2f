"""Plain facts of each target, which jobs and records need: built-in targets, and targets of installed packages.

The behaviour of a target (passes, sessions, availability) is in `tasks/targets`, one module each. A package adds a target by
an entry point of the group `quantgate.targets`; its name is the target's, its object a `tasks.targets.target.Target`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import Any, Literal

from validators.errors import JobError
from validators.processors import OPENVINO_BF16, TORCH_BF16, VNNI, Processor
from validators.providers import (
    CPU_PROVIDER,
    CUDA_PROVIDER,
    GENAI,
    GPU_PROVIDERS,
    INDUCTOR,
    INDUCTOR_CUDA,
    OPENVINO,
    OPENVINO_DECODER,
    TENSORRT,
)

GROUP = "quantgate.targets"
# Names end up in aliases, pools and file names.
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


@dataclass(frozen=True, kw_only=True)
class Need:
    """Instruction sets, one of which candidates with `word` in their name need; `name`, `why` and `fix` are for people."""

    word: str
    name: str
    instructions: tuple[str, ...]
    why: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """Plain facts of a target.

    `provider` runs its variants. An approval is tied to the versions of `libraries`, distributions by their name in the
    inventory. `pairs` selects the rules that place Q/DQ pairs (`tasks.ptq.eight_bit.placement`). Precisions in `simulated` have
    no kernels there: only their numerics are reproduced, and they are never promoted. `candidates: wide` leaves out
    recipes with a word in `without` (or `+fused`), which the target refuses. `fused_words` and `int8_words` describe the
    candidate `fp32-fused` and the type of INT8 activations for people. A class of devices has `engines`, the targets whose
    candidates its jobs hold, and none of its own. `runs_sources`: it opens a source's ONNX file as it is, as a baseline; an
    engine that does not takes PyTorch programs alone. `generates`: it takes decoders alone, with their tokenizers, and a
    request is a prompt with the tokens that follow. `needs` are instructions of the processor that some candidates need.
    `loads_anywhere`: a version approved on another device of the same kind loads here too.
    """

    name: str
    provider: str
    default_candidates: tuple[str, ...]
    libraries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pairs: Literal["ort-cpu", "openvino", "tensorrt"] = "ort-cpu"
    simulated: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    fused_words: str = "the float model after the runtime's transformer fusions"
    int8_words: str = "UINT8"
    engines: tuple[str, ...] = ()
    runs_sources: bool = True
    generates: bool = False
    needs: tuple[Need, ...] = ()
    loads_anywhere: bool = False

    def unmet_need(self, candidate: str, processor: Processor) -> Need | None:
        """Return the first need of a candidate, by its name, that a processor does not meet; None if it meets all.

        >>> facts = BUILT_IN["openvino"]
        >>> facts.unmet_need("bf16@openvino", Processor(("avx2",))).word
        'bf16'
        >>> facts.unmet_need("int8-static-mse-pc@openvino", Processor(("avx2",)))
        """
        words = re.split("[-+@]", candidate)
        unmet = (need for need in self.needs if need.word in words and not processor.has_any(need.instructions))
        return next(unmet, None)

    @property
    def on_gpu(self) -> bool:
        """True if variants run on an NVIDIA GPU."""
        return self.provider in GPU_PROVIDERS


def _openvino_needs(*, instead: str) -> tuple[Need, ...]:
    """Return the needs of OpenVINO; `instead` is the recipe to take for one with ranges at run time."""
    return (
        _bf16(OPENVINO_BF16, "by OpenVINO's own list"),
        Need(
            word="dynamic",
            name="VNNI",
            instructions=VNNI,
            why="OpenVINO quantizes activations at run time with them alone",
            fix=f"take {instead}",
        ),
    )


def _bf16(instructions: tuple[str, ...], why: str) -> Need:
    fix = "take the candidate without bf16"
    return Need(word="bf16", name="bfloat16", instructions=instructions, why=why, fix=fix)


# Ranges by squared error lost least on all real models tried; the others are for models that they do not suit.
BUILT_IN: dict[str, TargetFacts] = {
    facts.name: facts
    for facts in (
        TargetFacts(
            name="ort-cpu",
            provider=CPU_PROVIDER,
            simulated=frozenset({"fp8"}),
            loads_anywhere=True,
            default_candidates=(
                "fp32-fused@ort-cpu",
                "int8-static-minmax-pc@ort-cpu",
                "int8-static-mse-pc@ort-cpu",
                "int8-static-mse-pc-all@ort-cpu",
                "int8-static-mse-pc-smooth@ort-cpu",
                "int8-static-mse-pc-bc@ort-cpu",
                "int8-dynamic-pc@ort-cpu",
                "int8-dynamic-pc-smooth@ort-cpu",
                "int8-dynamic-pc+fused@ort-cpu",
                "int4-g32-rtn@ort-cpu",
                "int4-g32-gptq@ort-cpu",
                "fp8-amax-pc@ort-cpu",
            ),
        ),
        TargetFacts(
            name="cpu",
            provider=CPU_PROVIDER,
            engines=("ort-cpu", "openvino", "torch-inductor"),
            # Of each engine what won on the models tried, and its float form; `wide` has the rest.
            default_candidates=(
                "fp32-fused@ort-cpu",
                "int8-static-minmax-pc@ort-cpu",
                "int8-static-mse-pc-all@ort-cpu",
                "int8-static-mse-pc-bc@ort-cpu",
                "int8-dynamic-pc+fused@ort-cpu",
                "int4-g32-rtn@ort-cpu",
                "fp32-fused@openvino",
                "bf16@openvino",
                "int8-static-mse-pc@openvino",
                "int8-static-mse-pc-all@openvino",
                "int8-static-mse-pc-all-smooth@openvino",
                "int8-static-mse-pc-all-smooth-bf16@openvino",
                "int8-dynamic-pc@openvino",
                "fp32-fused@torch-inductor",
                "int8-static-mse-pc@torch-inductor",
            ),
        ),
        TargetFacts(
            name="openvino",
            provider=OPENVINO,
            libraries={"openvino": ("openvino",)},
            pairs="openvino",
            without=frozenset({"+fused", "fast"}),
            fused_words="the float model as OpenVINO fuses it when it loads, computed in float32",
            int8_words="INT8 or UINT8",
            needs=_openvino_needs(instead="int8-static"),
            loads_anywhere=True,
            default_candidates=(
                "fp32-fused@openvino",
                "bf16@openvino",
                "int8-static-minmax-pc@openvino",
                "int8-static-mse-pc@openvino",
                "int8-static-mse-pc-all@openvino",
                "int8-static-mse-pc-all-smooth-bf16@openvino",
                "int8-static-mse-pc-smooth@openvino",
                "int8-static-mse-pc-all-smooth@openvino",
                "int8-dynamic-pc@openvino",
                "int4-g32-gptq@openvino",
            ),
        ),
        TargetFacts(
            name="torch-inductor",
            provider=INDUCTOR,
            libraries={"torch": ("torch",), "torchao": ("torchao",)},
            without=frozenset({"pt", "p99.9", "percentile", "entropy", "all", "smooth", "bc", "fast", "+fused"}),
            fused_words="the float model as TorchInductor compiles it",
            runs_sources=False,
            needs=(_bf16(TORCH_BF16, "by torch's own list"),),
            default_candidates=(
                "fp32-fused@torch-inductor",
                "bf16@torch-inductor",
                "int8-static-minmax-pc@torch-inductor",
                "int8-static-mse-pc@torch-inductor",
                "int8-dynamic-pc@torch-inductor",
            ),
        ),
        TargetFacts(
            name="ort-genai",
            provider=GENAI,
            libraries={"onnxruntime-genai": ("onnxruntime-genai",)},
            without=frozenset({"+fused", "static"}),
            fused_words="the float decoder as the library's model builder writes it",
            generates=True,
            # Without INT8 dynamic: blocks of INT8 lose far less on decoders, in as many bytes.
            loads_anywhere=True,
            default_candidates=(
                "int8-g32-rtn@ort-genai",
                # Half as many scales to read, which shows where memory bounds the speed.
                "int8-g64-rtn@ort-genai",
                "int8-g64-rtn+kv8@ort-genai",
                "int4-g32-gptq-asym@ort-genai",
                "int4-g32-gptq-asym-mix25@ort-genai",
                "int4-g32-gptq-asym-mix50@ort-genai",
            ),
        ),
        TargetFacts(
            name="openvino-decoder",
            provider=OPENVINO_DECODER,
            libraries={"openvino": ("openvino",)},
            pairs="openvino",
            without=frozenset({"+fused", "static", "smooth", "bc"}),
            fused_words="the float decoder as OpenVINO fuses it when it loads, computed in float32",
            generates=True,
            needs=_openvino_needs(instead="int8-g64-rtn"),
            loads_anywhere=True,
            default_candidates=(
                "bf16@openvino-decoder",
                "int8-dynamic-pc@openvino-decoder",
                "int8-g32-rtn@openvino-decoder",
                "int8-g64-rtn@openvino-decoder",
                "int8-g64-rtn+kv8@openvino-decoder",
                "int4-g32-gptq-asym@openvino-decoder",
                "int4-g32-gptq-asym-mix50@openvino-decoder",
            ),
        ),
        TargetFacts(
            name="cpu-decoder",
            provider=GENAI,
            engines=("ort-genai", "openvino-decoder"),
            generates=True,
            default_candidates=(
                "int8-g32-rtn@ort-genai",
                "int8-g64-rtn@ort-genai",
                "int4-g32-gptq-asym@ort-genai",
                "int4-g32-gptq-asym-mix50@ort-genai",
                "bf16@openvino-decoder",
                "int8-dynamic-pc@openvino-decoder",
                "int8-g64-rtn@openvino-decoder",
                "int4-g32-gptq-asym-mix50@openvino-decoder",
            ),
        ),
        TargetFacts(
            name="ort-cuda",
            provider=CUDA_PROVIDER,
            libraries={"cublas": ("nvidia-cublas",), "cudnn": ("nvidia-cudnn-cu13",)},
            # The provider has no kernels for pairs of INT8 or FP8.
            default_candidates=(
                "fp32-fused@ort-cuda",
                "fp16@ort-cuda",
                "int4-g32-rtn@ort-cuda",
                "int4-g128-rtn@ort-cuda",
                "int4-g128-gptq@ort-cuda",
                "int4-g128-awq@ort-cuda",
            ),
        ),
        TargetFacts(
            name="tensorrt",
            provider=TENSORRT,
            libraries={"tensorrt": ("tensorrt", "tensorrt-cu13"), "tensorrt_rtx": ("tensorrt-rtx",)},
            pairs="tensorrt",
            without=frozenset({"bc", "g32", "gptq", "awq", "asym"}),
            default_candidates=(
                "fp16@tensorrt",
                "int8-static-minmax-pc@tensorrt",
                "int8-static-entropy-pc@tensorrt",
                "fp8-amax-pc@tensorrt",
                "int4-g128-rtn@tensorrt",
                # Blocks of 128 divide few widths of small models.
                "int4-g64-rtn@tensorrt",
            ),
        ),
        TargetFacts(
            name="torch-cuda",
            provider=INDUCTOR_CUDA,
            libraries={"torch": ("torch",)},
            without=frozenset({"static", "pt", "smooth", "awq", "fast", "+fused"}),
            fused_words="the float model as TorchInductor compiles it",
            int8_words="INT8",
            runs_sources=False,
            default_candidates=(
                "fp32-fused@torch-cuda",
                "fp16@torch-cuda",
                "bf16@torch-cuda",
                "int8-dynamic-pc@torch-cuda",
                "fp8-amax-pc@torch-cuda",
                "fp8-amax-pt@torch-cuda",
                "int4-g128-rtn@torch-cuda",
                "int4-g64-hqq-asym@torch-cuda",
                "int4-g128-gptq-asym@torch-cuda",
            ),
        ),
        TargetFacts(
            name="cuda",
            provider=CUDA_PROVIDER,
            engines=("ort-cuda", "tensorrt", "torch-cuda"),
            default_candidates=(
                "fp32-fused@ort-cuda",
                "fp16@ort-cuda",
                "int4-g128-rtn@ort-cuda",
                "fp16@tensorrt",
                "int8-static-minmax-pc@tensorrt",
                "int8-static-entropy-pc@tensorrt",
                "fp8-amax-pc@tensorrt",
                "int4-g128-rtn@tensorrt",
                "int4-g64-rtn@tensorrt",
                "fp16@torch-cuda",
                "int8-dynamic-pc@torch-cuda",
                "fp8-amax-pc@torch-cuda",
                "int4-g128-gptq-asym@torch-cuda",
            ),
        ),
    )
}


def target_names() -> tuple[str, ...]:
    """Return the names of all targets, built-in ones first, without importing other packages.

    Raises:
        JobError: two packages provide a target with the same name, or a name is not valid in an alias.

    >>> target_names()[:2]
    ('ort-cpu', 'cpu')
    """
    return *BUILT_IN, *installed_targets()


def built_in_engines() -> tuple[str, ...]:
    """Return the built-in targets that are no class of devices.

    >>> built_in_engines()[:2]
    ('ort-cpu', 'openvino')
    """
    return tuple(name for name, facts in BUILT_IN.items() if not facts.engines)


def facts_of(name: str) -> TargetFacts:
    """Return the facts of a target.

    Raises:
        JobError: no installed package provides a target with this name, or it fails to load.
    """
    return BUILT_IN[name] if name in BUILT_IN else _facts_in(load_target(name), name)


def engines_of(name: str) -> tuple[str, ...]:
    """Return the engines of a class of devices; any other target is its own engine.

    Raises:
        JobError: see `facts_of`.

    >>> engines_of("cuda"), engines_of("openvino")
    (('ort-cuda', 'tensorrt', 'torch-cuda'), ('openvino',))
    """
    return facts_of(name).engines or (name,)


def baselines_of(name: str) -> tuple[str, ...]:
    """Return the engines that can run the baseline of a target's jobs, the default first.

    Raises:
        JobError: see `facts_of`.

    >>> baselines_of("openvino"), baselines_of("cuda"), baselines_of("torch-cuda")
    (('ort-cpu', 'openvino'), ('ort-cuda', 'tensorrt'), ('ort-cuda',))
    """
    engines = tuple(engine for engine in engines_of(name) if facts_of(engine).runs_sources)
    if facts_of(name).generates:
        return engines  # no other one answers a prompt
    if is_on_gpu(name):
        return engines or ("ort-cuda",)
    return tuple(dict.fromkeys(("ort-cpu", *engines)))


def is_on_gpu(name: str) -> bool:
    """Return True if the target runs on an NVIDIA GPU.

    Raises:
        JobError: see `facts_of`.

    >>> is_on_gpu("ort-cuda"), is_on_gpu("ort-cpu")
    (True, False)
    """
    return facts_of(name).on_gpu


@cache
def load_target(name: str) -> Any:
    """Import and return the object of a package's entry point, for a target that is not built in.

    Raises:
        JobError: no installed package provides the target, its module fails, or the object is no target of that name.
    """
    entry = installed_targets().get(name)
    if entry is None:
        raise JobError(
            found=f"target {name!r}",
            expected=f"one of {', '.join(target_names())}",
            fix="correct the name, or install the package that provides this target",
        )
    try:
        loaded = entry.load()
    except Exception as error:  # a third-party package may raise anything
        raise JobError(
            found=f"the target {name} of {package_of(entry)} fails to load: {type(error).__name__}: {error}",
            expected=f"an object at {entry.value}",
            fix="update or uninstall that package",
        ) from error
    _facts_in(loaded, name)
    return loaded


def _facts_in(loaded: Any, name: str) -> TargetFacts:
    facts = getattr(loaded, "facts", None)
    if not isinstance(facts, TargetFacts) or facts.name != name:
        given = repr(facts.name) if isinstance(facts, TargetFacts) else type(loaded).__name__
        raise JobError(
            found=f"the entry point {name} of the group {GROUP} loads {given}",
            expected=f"a `tasks.targets.target.Target` whose facts have the name {name!r}",
            fix="correct the package that provides it",
        )
    return facts


@cache
def installed_targets() -> dict[str, metadata.EntryPoint]:
    """Return the entry points of third-party targets, by name.

    Raises:
        JobError: a name is already taken, or is not valid in an alias.
    """
    found: dict[str, metadata.EntryPoint] = {}
    for entry in metadata.entry_points(group=GROUP):
        if entry.name in BUILT_IN or entry.name in found:
            other = package_of(found[entry.name]) if entry.name in found else "quantgate"
            raise JobError(
                found=f"{package_of(entry)} provides the target {entry.name!r}, which {other} already provides",
                expected="one package per target",
                fix=f"rename the entry point of the group {GROUP}, or uninstall {package_of(entry)}",
            )
        if not _NAME.fullmatch(entry.name):
            raise JobError(
                found=f"{package_of(entry)} provides the target {entry.name!r}",
                expected="a name of lower-case letters and digits, with single hyphens between them",
                fix=f"rename the entry point of the group {GROUP}",
            )
        found[entry.name] = entry
    return found


def package_of(entry: metadata.EntryPoint) -> str:
    """Return the distribution of an entry point, with its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
