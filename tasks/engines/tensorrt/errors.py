"""Messages of TensorRT's parser and builder for failed builds, with the likely cause and the fix.

TensorRT-RTX 1.7.1 produced each message of the first table in a build ahead of time
(`tests/unit/tasks/runtimes/test_engine_errors.py`). Those of the second table need a GPU, and are quoted from NVIDIA's
documentation and samples.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tasks.engines.tensorrt.shipped.build import NodeError
from validators.errors import CandidateRefused, RefusalKind

Message = tuple[str, str]


class Cause(NamedTuple):
    """Meaning of a message: a pattern of its text, the kind of refusal, the likely cause, the expectation, the fix."""

    pattern: str
    kind: RefusalKind
    cause: str
    expected: str
    fix: str


_PLAIN_FILE = "remake the file with quantgate; `quantgate lint MODEL.onnx --target tensorrt` names every such node"
_OTHER = "use another candidate, or replace the operator in the source model"
_JOB_AXES = "correct `engines.axes` of the job, or remove it"

PROVOKED: tuple[Cause, ...] = (
    Cause(
        "shiftIsAllZeros",
        "invalid",
        "asymmetric quantization, or UINT8",
        "INT8 or FP8 with zero points of 0",
        _PLAIN_FILE,
    ),
    Cause("scaleAllPositive", "invalid", "a scale of zero or below", "scales above zero", _PLAIN_FILE),
    Cause(
        r"input has type Int32 but must have type",
        "invalid",
        "a bias stored as INT32, as ONNX Runtime's quantizer makes it",
        "biases in float",
        _PLAIN_FILE,
    ),
    Cause(
        r"must have same input types|must have the same type|must have the same types|same type as",
        "invalid",
        "an operator mixes float16 and float32, often by scales of one type with tensors of the other",
        "one type on all inputs: nothing is converted in a strongly typed network",
        _PLAIN_FILE,
    ),
    Cause(
        r"Failed to open file|external weights offset/length out of range",
        "invalid",
        "external data is missing beside the file, or truncated",
        "the model with all its external data",
        "copy `<name>.onnx.data` together with the file",
    ),
    Cause(
        r"cannot be imported into TensorRT|Found unsupported datatype",
        "unsupported",
        "weights in UINT4, INT16, UINT16 or FP8 E5M2",
        "INT8, INT4, FP8 E4M3, float16 or float32",
        _PLAIN_FILE,
    ),
    Cause(
        r"Failed to convert ONNX date type|Unsupported ONNX data type",
        "unsupported",
        "an input that is not numeric, such as text",
        "numeric inputs",
        "move the operators that read text out of the model",
    ),
    Cause(
        r"Plugin not found|plugin creator version .* was not found",
        "unsupported",
        "an operator that TensorRT does not have, such as a custom one",
        "standard operators",
        _OTHER,
    ),
    Cause(
        r"Failed to parse the ONNX model",
        "invalid",
        "not an ONNX file, or a truncated one",
        "an ONNX file",
        "make the file anew",
    ),
    Cause(
        r"Input file cannot be found",
        "invalid",
        "the file is missing, or is not a regular file",
        "an ONNX file",
        "make the file anew",
    ),
    Cause(
        r"Input and filter have to be the same type",
        "unsupported",
        "a product of FP8 with INT8 or INT4; the builder does not name its node",
        "both sides of a product in the same type",
        _PLAIN_FILE,
    ),
    Cause(
        r"contains HW-specific datatypes",
        "unsupported",
        "a type that this GPU has no kernels for: FP8 needs compute capability 8.9 or later",
        "a compute capability that supports the type",
        "remove the candidate for this GPU, or list other capabilities in `engines.ahead_of_time`",
    ),
    Cause(
        r"satisfy MIN<=OPT<=MAX",  # TensorRT then drops the profile, and the next message reports it as missing
        "invalid",
        "a range that does not include its optimum",
        "minimum <= optimum <= maximum",
        _JOB_AXES,
    ),
    Cause(
        r"missing dimensions in profile|no optimization profile has been defined",
        "invalid",
        "a dynamic axis without a range",
        "a range for every dynamic axis",
        _JOB_AXES,
    ),
    Cause(
        r"Dimension mismatch for tensor .* profile|Dynamic-shaped input tensor .* dimensions but profile",
        "invalid",
        "a range for an axis that the model fixes at another size",
        "ranges of dynamic axes alone",
        _JOB_AXES,
    ),
    Cause(
        r"requires workspace memory",
        "unsupported",
        "`engines.workspace_mb` leaves a layer no scratch memory",
        "as much workspace as the layers need",
        "raise `engines.workspace_mb`, or remove it to allow all memory",
    ),
    Cause(
        r"but must match\.|dimensions not compatible|incompatible dimensions",
        "invalid",
        "shapes that do not fit together",
        "a model that passes ONNX's shape inference in strict mode",
        "check the source model with `onnx.checker.check_model(path, full_check=True)`",
    ),
)
DOCUMENTED: tuple[Cause, ...] = (
    Cause(
        r"(?i)out of memory|OutOfMemory|could not be allocated|bad_alloc|insufficient memory",
        "infrastructure",
        "the GPU or the machine has too little free memory for the build",
        "memory for weights, activations and the kernels that the builder tries",
        "free the GPU, lower `engines.workspace_mb` or the largest batch, or build on a larger one",
    ),
    Cause(
        r"Could not find any implementation for node",
        "unsupported",
        "no kernel for the layer's types and shapes fits the allowed workspace",
        "a layer for which the GPU has a kernel",
        "raise `engines.workspace_mb`, or use another candidate",
    ),
)
# Warnings that refuse an engine although it was built. Others do not: a tactic without memory, for example, is replaced by the
# next.
CHANGES: tuple[Cause, ...] = (
    Cause(
        "UINT8 zero_point only on DLA",
        "invalid",
        "UINT8, which would be read as INT8 and clip values above 127",
        "INT8 or FP8 with zero points of 0",
        _PLAIN_FILE,
    ),
)
_UNKNOWN = Cause("", "invalid", "unknown", "a file from which TensorRT builds an engine", "read the build's log")
_NO_OPERATOR = Cause(
    "",
    "unsupported",
    "an operator, or a variant of it, that TensorRT does not have",
    "operators of TensorRT's support matrix",
    _OTHER,
)
# Part of a message of every build on a machine without a GPU.
_NO_GPU = "cudaError 35"
_TENSOR = re.compile(r"(?:initializer:?(?! In node)|[Ii]nput tensors?|for tensor) ([^\s,!]+)")
# Warnings that are not shown, since they change nothing.
HARMLESS = (
    r"Converting conv (activation|weight) scales to fp32",
    r"Make sure input .* has Int64 binding",
    r"[Tt]iming cache",
)


def refusal_of(errors: Sequence[NodeError], messages: Iterable[Message]) -> CandidateRefused:
    """Return the refusal of a failed build, with nodes or tensors by name, TensorRT's message and the likely cause.

    `messages` are (severity, text) of the build log.
    """
    logged = [text for severity, text in messages if severity in ("ERROR", "INTERNAL_ERROR")]
    texts = [line for text in [*(error.text for error in errors), *logged] for line in told_lines(text)]
    cause = _cause_of(texts)
    if cause is None:
        unsupported = any(error.code.startswith("UNSUPPORTED_NODE") for error in errors)
        cause = _NO_OPERATOR if unsupported else _UNKNOWN
    said = next((line for line in texts if cause.pattern and re.search(cause.pattern, line)), (texts or ["nothing"])[0])
    return _refusal(cause, _places(errors, texts), said)


def refused_warning(messages: Iterable[Message]) -> CandidateRefused | None:
    """Return the refusal of an engine that, by a warning, computes something else than the file; None without one."""
    warnings = [text for severity, text in messages if severity == "WARNING"]
    found = [(cause, text) for text in warnings for cause in CHANGES if re.search(cause.pattern, text)]
    return _refusal(found[0][0], "", found[0][1]) if found else None


def notes_in(messages: Iterable[Message]) -> tuple[str, ...]:
    """Return the warnings worth showing, each once."""
    warnings = dict.fromkeys(text.strip() for severity, text in messages if severity == "WARNING")
    return tuple(text for text in warnings if not re.search("|".join(HARMLESS), text) and _NO_GPU not in text)


def _refusal(cause: Cause, place: str, said: str) -> CandidateRefused:
    return CandidateRefused(
        kind=cause.kind,
        found=f"TensorRT{f' at {place}' if place else ''}: {said[:300]}; likely cause: {cause.cause}",
        expected=cause.expected,
        fix=cause.fix,
    )


def _cause_of(texts: Iterable[str]) -> Cause | None:
    """Return the first matching cause. Memory comes first: errors that follow it say nothing about the file."""
    said = "\n".join(texts)
    return next((cause for cause in (*DOCUMENTED, *PROVOKED) if re.search(cause.pattern, said)), None)


def _places(errors: Sequence[NodeError], texts: Sequence[str]) -> str:
    """Return the nodes that the parser names or, if none, the tensors named in its texts, as one string."""
    names = [f"{error.name or f'node {error.index}'} ({error.operator})" for error in errors if error.index >= 0]
    names = names or [match for text in texts for match in _TENSOR.findall(text)]
    names = list(dict.fromkeys(names))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def told_lines(text: str) -> list[str]:
    """Return the lines of a text, without those that repeat the node or occur in every build without a GPU."""
    lines = [line.strip() for line in text.splitlines()]
    return [
        line
        for line in lines
        if line
        and _NO_GPU not in line
        and not re.match(r"Invalid Node - |Node name: |ModelImporter\.cpp:\d+: (While|---)", line)
    ]
