"""Plain facts of a target, which jobs and records need, and names of providers; each engine has its own in `tasks/engines`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from validators.processors import Processor

# Providers: what runs a model, by the names that ONNX Runtime gives its own.
CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"
TENSORRT = "TensorRT"
OPENVINO = "OpenVINO"
INDUCTOR = "TorchInductor"
INDUCTOR_CUDA = "TorchInductorCUDA"
# ONNX Runtime's library for decoders, with the cache, the sampling and the tokenizer.
GENAI = "OnnxRuntimeGenAI"
OPENVINO_DECODER = "OpenVINODecoder"


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

    `provider` runs its variants, on an NVIDIA GPU if `on_gpu`, as engines built before if `builds_engines`. An approval is tied
    to the versions of `libraries`, distributions by their name in the inventory. Precisions in `simulated` have no kernels
    there: only their numerics are reproduced, and they are never promoted. `without` has words of names, after the precision,
    that the target refuses, with the reasons. `fused_words` and `int8_words` describe the candidate `fp32-fused` and the type
    of INT8 activations for people. A class of devices has `engines`, the targets whose candidates its jobs hold, and none of
    its own. `runs_sources`: it opens a source's ONNX file as it is, as a baseline; an engine that does not takes PyTorch
    programs alone. `generates`: it takes decoders alone, with their tokenizers, and a request is a prompt with the tokens that
    follow. `needs` are instructions of the processor that some candidates need. `loads_anywhere`: a version approved on another
    device of the same kind loads here too; `compiles`: its files are code for the instructions of one processor. `rewrites`: it
    rewrites graphs when it loads them, may get one wrong, and may compute in bfloat16 unasked. `classes` maps classes of
    devices that the engine belongs to to its candidates in their jobs. `distributions` are the packages of which one runs
    its models, and `beside` those that consumers need as well. `runtime`, `hub_library` and `coverage_source` are for
    people: its name, the Hugging Face Hub's name of its library, and what tells its kernels. `room` is the folder
    of `tasks/engines` with its module `exports`: exporters, and what a version's README says of the engine.

    `shipped` names a package that goes with each version, and opens it where it is loaded: consumers get it under the name
    `package`. `session` names a module whose `open_model` returns a `tasks.runtimes.runner.Runner` for a file; without it, a
    session of ONNX Runtime is opened. `coverage` names one whose `measure` reads the coverage of a file under a request, and
    writes its kernels into a folder; without it, ONNX Runtime's profile is read. There, `low_precision` are kernels that
    multiply 8-bit or 4-bit operands, or weights of such; `without_form` are kernels of operators that have no such kernel.
    """

    name: str
    provider: str
    default_candidates: tuple[str, ...]
    libraries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    simulated: frozenset[str] = frozenset()
    without: Mapping[str, str] = field(default_factory=dict)
    fused_words: str = "the float model after the runtime's transformer fusions"
    int8_words: str = "UINT8"
    engines: tuple[str, ...] = ()
    runs_sources: bool = True
    generates: bool = False
    needs: tuple[Need, ...] = ()
    loads_anywhere: bool = False
    compiles: bool = False
    rewrites: bool = False
    on_gpu: bool = False
    builds_engines: bool = False
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    distributions: tuple[str, ...] = ("onnxruntime", "onnxruntime-gpu")
    beside: tuple[str, ...] = ()
    runtime: str = "ONNX Runtime"
    hub_library: str = "onnx"
    coverage_source: str = "the runtime's profile"
    room: str = "ort"
    session: str = ""
    coverage: str = ""
    shipped: str = "tasks.runtimes.shipped"
    low_precision: frozenset[str] = frozenset()
    without_form: frozenset[str] = frozenset()

    @property
    def loader(self) -> str:
        """The module of the package `shipped` whose `load` opens a file on the processor, of numpy and the runtime alone."""
        return f"{self.shipped}.model"

    @property
    def package(self) -> str:
        """The name of the package `shipped` at consumers, who may load versions of several engines.

        >>> TargetFacts(name="x", provider="X", default_candidates=(), shipped="tasks.engines.tensorrt.shipped").package
        'quantgate_tensorrt'
        """
        return f"quantgate_{self.shipped.split('.')[-2]}"

    def refused_words(self, candidate: str) -> str:
        """Return the first words in `without` that a candidate's name has; empty if it has none.

        >>> TargetFacts(name="x", provider="X", default_candidates=(), without={"+fused": "why"}).refused_words("fp16+fused@x")
        '+fused'
        """
        words = candidate.partition("@")[0].replace("+", "-+").partition("-")[2]
        return next((some for some in self.without if f"-{some}-" in f"-{words}-"), "")

    def unmet_need(self, candidate: str, processor: Processor) -> Need | None:
        """Return the first need of a candidate, by its name, that a processor does not meet; None if it meets all.

        >>> facts = TargetFacts(name="x", provider="X", default_candidates=(), needs=(bfloat16(("amx_bf16",), "by a list"),))
        >>> facts.unmet_need("bf16@x", Processor(("avx2",))).word
        'bf16'
        >>> facts.unmet_need("int8-static-mse-pc@x", Processor(("avx2",)))
        """
        words = re.split("[-+@]", candidate)
        unmet = (need for need in self.needs if need.word in words and not processor.has_any(need.instructions))
        return next(unmet, None)


def bfloat16(instructions: tuple[str, ...], why: str) -> Need:
    """Return the need of candidates that compute in bfloat16."""
    fix = "take the candidate without bf16"
    return Need(word="bf16", name="bfloat16", instructions=instructions, why=why, fix=fix)
