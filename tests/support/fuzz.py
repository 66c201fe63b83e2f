"""Random small models, taken through every candidate of the processor engines; each file is held to two promises.

A file computes what the source does, within what its precision loses, and the engine computes what the file says. The bounds
are wide enough for random weights over a few layers, and far below what a wrong graph gives (relative errors near 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from odd import Odd, distance, run
from onnx import TensorProto, helper, numpy_helper

from tasks.engines.variants import make_variant
from tasks.ptq.graph.edits import gather_weights
from tasks.runtimes.runner import open_runner
from validators.errors import CandidateRefused, SourceError
from validators.job.candidate_name import decode

# Largest error of a candidate's file, as a share of the source's root mean square.
BOUNDS = {
    "fp32-fused@ort-cpu": 1e-4,
    "int8-static-minmax-pc@ort-cpu": 0.25,
    "int8-static-minmax-pc-all@ort-cpu": 0.35,
    "int8-static-mse-pc-smooth@ort-cpu": 0.3,
    "int8-static-mse-pc-bc@ort-cpu": 0.3,
    "int8-dynamic-pc@ort-cpu": 0.25,
    "int4-g32-rtn@ort-cpu": 0.6,
    "int4-g32-hqq-asym@ort-cpu": 0.6,
    "int4-g32-gptq@ort-cpu": 0.6,
    "int4-g32-awq@ort-cpu": 0.6,
    "fp32-fused@openvino": 1e-4,
    "int8-static-mse-pc@openvino": 0.3,
    "int8-static-minmax-pc-all@openvino": 0.4,
    "int8-dynamic-pc@openvino": 0.25,
    "int4-g32-rtn@openvino": 0.6,
}
# An engine may round otherwise than the file says, by less than a step of 8 bits in each of a few layers.
ENGINE_BOUND = 0.1
ROWS = 16

Array = NDArray[Any]


@dataclass
class Builder:
    """A graph that grows node by node; `shape` is that of the last tensor without the batch axis."""

    rng: np.random.Generator
    shape: tuple[int, ...]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    last: str = "x"
    kinds: list[str] = field(default_factory=list)
    taken: int = 0

    def name(self, stem: str) -> str:
        self.taken += 1
        return f"{stem}{self.taken}"

    def constant(self, values: Any, stem: str = "c") -> str:
        name = self.name(stem)
        self.constants[name] = np.asarray(values)
        return name

    def weight(self, *shape: int, fan_in: int) -> str:
        values = self.rng.normal(size=shape) / np.sqrt(fan_in)
        if self.rng.random() < 0.3:  # a few loud channels
            values *= np.exp(self.rng.normal(size=shape[-1:]))
        return self.constant(values.astype(np.float32), "w")

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Append a node that becomes the last; return its first output."""
        made = [self.name(kind.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), made, name=self.name("n"), **attributes))
        self.last = made[0]
        return made[0]


def linear(b: Builder) -> None:
    """MatMul or Gemm in one of its spellings, with a bias or without."""
    wide, narrow = b.shape[-1], int(b.rng.choice([16, 32, 48, 64]))
    if len(b.shape) == 1 and b.rng.random() < 0.5:
        turned = bool(b.rng.random() < 0.5)
        w = b.weight(*((narrow, wide) if turned else (wide, narrow)), fan_in=wide)
        bias = [b.constant(b.rng.normal(size=narrow).astype(np.float32) / 4)] if b.rng.random() < 0.7 else []
        b.op("Gemm", b.last, w, *bias, transB=int(turned), alpha=float(b.rng.choice([1.0, 0.5])))
    else:
        b.op("MatMul", b.last, b.weight(wide, narrow, fan_in=wide))
        if b.rng.random() < 0.7:
            b.op("Add", b.last, b.constant(b.rng.normal(size=narrow).astype(np.float32) / 4))
    b.shape = (*b.shape[:-1], narrow)


def own_sum(b: Builder) -> None:
    """`h W + h`, which the runtime's basic level makes one Gemm."""
    h = b.last
    b.op("MatMul", h, b.weight(b.shape[-1], b.shape[-1], fan_in=b.shape[-1]))
    b.op("Add", b.last, h)


def shared(b: Builder) -> None:
    """Two products with one weight."""
    w = b.weight(b.shape[-1], b.shape[-1], fan_in=b.shape[-1])
    b.op("Tanh", b.op("MatMul", b.last, w))
    b.op("MatMul", b.last, w)


def activation(b: Builder) -> None:
    kind = str(b.rng.choice(["Relu", "LeakyRelu", "Tanh", "Sigmoid", "Gelu", "Clip"]))
    ends = [b.constant(np.float32(end)) for end in (-1, 2)] if kind == "Clip" else []
    b.op(kind, b.last, *ends)


def norm(b: Builder) -> None:
    """LayerNormalization with gains of either sign, with a bias or without."""
    gains = b.rng.normal(size=b.shape[-1]) if b.rng.random() < 0.5 else 1 + 0.1 * b.rng.normal(size=b.shape[-1])
    names = [b.constant(gains.astype(np.float32))]
    if b.rng.random() < 0.5:
        names.append(b.constant(b.rng.normal(size=b.shape[-1]).astype(np.float32)))
    b.op("LayerNormalization", b.last, *names, axis=-1)


def scaled(b: Builder) -> None:
    """Mul or Div by a constant of mixed sign."""
    factors = b.rng.normal(size=b.shape[-1])
    factors = np.sign(factors) * np.maximum(np.abs(factors), 0.2)
    b.op(str(b.rng.choice(["Mul", "Div"])), b.last, b.constant(factors.astype(np.float32)))


def gated(b: Builder) -> None:
    """A product of two activations, as in SwiGLU."""
    h, wide = b.last, b.shape[-1]
    gate = b.op("Sigmoid", b.op("MatMul", h, b.weight(wide, wide, fan_in=wide)))
    b.op("Mul", b.op("MatMul", h, b.weight(wide, wide, fan_in=wide)), gate)


def attention(b: Builder) -> None:
    """One head over the sequence, with a causal mask."""
    h, (length, wide) = b.last, b.shape
    q, k, v = (b.op("MatMul", h, b.weight(wide, wide, fan_in=wide)) for _ in range(3))
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1]))
    b.op("Mul", scores, b.constant(np.float32(wide**-0.5)))
    mask = np.where(np.tril(np.ones((length, length))), 0, b.rng.choice([-1e4, -1e9, np.finfo(np.float32).min]))
    b.op("Softmax", b.op("Add", b.last, b.constant(mask.astype(np.float32))), axis=-1)
    b.op("MatMul", b.last, v)


def branch(b: Builder) -> None:
    """An If on the input, whose branches read the tensor from outside; what decides is exact in every candidate."""
    h, made = b.last, b.name("if")
    total = b.op("ReduceMean", "x", keepdims=0)
    condition = b.op("Greater", total, b.constant(np.float32(0)))
    bodies = {
        side: helper.make_graph(
            [helper.make_node(kind, [h], [f"{made}_{side}"], name=b.name("n"))],
            f"{made}_{side}_body",
            [],
            [helper.make_tensor_value_info(f"{made}_{side}", TensorProto.FLOAT, None)],
        )
        for side, kind in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    b.nodes.append(helper.make_node("If", [condition], [made], name=b.name("n"), **bodies))
    b.last = made


def conv(b: Builder) -> None:
    """A convolution: grouped, depthwise, dilated, strided or plain."""
    channels, *sizes = b.shape
    form = str(b.rng.choice(["plain", "grouped", "depthwise", "dilated", "strided"]))
    group = {"grouped": 2, "depthwise": channels}.get(form, 1)
    out = channels if form == "depthwise" else int(b.rng.choice([8, 12, 16]))
    step, spread = (2 if form == "strided" else 1), (2 if form == "dilated" else 1)
    w = b.weight(out, channels // group, *[3] * len(sizes), fan_in=9 * channels // group)
    bias = [b.constant(b.rng.normal(size=out).astype(np.float32) / 4)] if b.rng.random() < 0.6 else []
    edges = {"pads": [spread] * 2 * len(sizes), "strides": [step] * len(sizes), "dilations": [spread] * len(sizes)}
    b.op("Conv", b.last, w, *bias, group=group, **edges)
    b.shape = (out, *((size - 1) // step + 1 for size in sizes))


def joined(b: Builder) -> None:
    """A Concat of two convolutions, before whatever comes next."""
    h, channels = b.last, b.shape[0]
    parts = [b.op("Conv", h, b.weight(4, channels, 1, 1, fan_in=channels)) for _ in range(2)]
    b.op("Concat", *parts, axis=1)
    b.shape = (8, *b.shape[1:])


def residual(b: Builder) -> None:
    h, channels = b.last, b.shape[0]
    w = b.weight(channels, channels, 3, 3, fan_in=9 * channels)
    b.op("Add", b.op("Conv", h, w, pads=[1] * 4), h)


def pool(b: Builder) -> None:
    """MaxPool, some with a second output that nothing reads, or AveragePool."""
    if min(b.shape[1:]) < 4:
        return
    kind = str(b.rng.choice(["MaxPool", "AveragePool"]))
    b.op(
        kind,
        b.last,
        kernel_shape=[2, 2],
        strides=[2, 2],
        outputs=2 if kind == "MaxPool" and b.rng.random() < 0.5 else 1,
    )
    b.shape = (b.shape[0], *(size // 2 for size in b.shape[1:]))


def batch_norm(b: Builder) -> None:
    channels = b.shape[0]
    gain, shift, mean = (b.constant(b.rng.normal(size=channels).astype(np.float32)) for _ in range(3))
    b.op("BatchNormalization", b.last, gain, shift, mean, b.constant((0.5 + b.rng.random(channels)).astype(np.float32)))


def recurrent(b: Builder) -> None:
    """GRU or LSTM over the sequence."""
    length, wide = b.shape
    kind, hidden = str(b.rng.choice(["GRU", "LSTM"])), 16
    gates = hidden * (3 if kind == "GRU" else 4)
    w, r = b.weight(1, gates, wide, fan_in=wide), b.weight(1, gates, hidden, fan_in=hidden)
    turned = b.op("Transpose", b.last, perm=[1, 0, 2])
    b.op(kind, turned, w, r, hidden_size=hidden)
    b.op("Squeeze", b.last, b.constant(np.array([1])))
    b.op("Transpose", b.last, perm=[1, 0, 2])
    b.shape = (length, hidden)


Step = Callable[[Builder], None]
VECTOR: tuple[Step, ...] = (linear, linear, activation, norm, scaled, gated, shared, own_sum, branch)
SEQUENCE: tuple[Step, ...] = (linear, activation, norm, attention, gated, shared, own_sum, recurrent, scaled)
IMAGE: tuple[Step, ...] = (conv, conv, activation, joined, residual, pool, batch_norm)
FORMS: tuple[tuple[tuple[int, ...], tuple[Step, ...]], ...] = (
    ((64,), VECTOR),
    ((8, 32), SEQUENCE),
    ((4, 12, 12), IMAGE),
)


def draw_model(seed: int) -> tuple[onnx.ModelProto, tuple[int, ...], list[str]]:
    """Return a model, the shape of a sample, and the names of its steps."""
    rng = np.random.default_rng(seed)
    shape, steps = FORMS[seed % len(FORMS)]
    b = Builder(rng, shape)
    chosen = [steps[int(rng.integers(len(steps)))] for _ in range(int(rng.integers(2, 6)))]
    for step in chosen:
        step(b)
    if len(shape) == 3:
        b.op("GlobalAveragePool" if rng.random() < 0.5 else "Identity", b.last)
        b.op("Flatten", b.last)
        b.shape = (int(np.prod(b.shape[:1])) if b.nodes[-2].op_type != "Identity" else int(np.prod(b.shape)),)
    linear(b)  # at least one product with a constant weight
    b.nodes[-1].output[0] = "y"
    half = rng.random() < 0.15 and not {"branch", "recurrent"} & {step.__name__ for step in chosen}
    kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    stored = [
        numpy_helper.from_array(values.astype(np.float16) if half and values.dtype == np.float32 else values, name)
        for name, values in b.constants.items()
    ]
    graph = helper.make_graph(
        b.nodes,
        "fuzz",
        [helper.make_tensor_value_info("x", kind, ["batch", *shape])],
        [helper.make_tensor_value_info("y", kind, ["batch", *b.shape])],
        stored,
    )
    opset = 20 if rng.random() < 0.3 else 21
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return model, shape, [step.__name__ for step in chosen] + ["float16"] * half


@dataclass(frozen=True)
class Finding:
    """One candidate of one model: its errors, or why it was refused. `broken` names the promise that does not hold."""

    candidate: str
    of_file: float = 0.0
    of_engine: float = 0.0
    refused: str = ""
    broken: str = ""


def check_model(seed: int, folder: Path) -> tuple[list[str], list[Finding]]:
    """Take a random model through every candidate; return its steps and the findings."""
    model, shape, steps = draw_model(seed)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "registered.onnx")
    gather_weights(folder / "registered.onnx", folder / "source.onnx")
    half = "float16" in steps
    odd = Odd(folder / "source.onnx", folder, np.float16 if half else np.float32, shape=shape)
    return steps, [_check_candidate(odd, name, folder / name.replace("@", "-"), half=half) for name in BOUNDS]


def _check_candidate(odd: Odd, name: str, folder: Path, *, half: bool) -> Finding:
    folder.mkdir()
    batch = odd.batch(ROWS, 9)
    try:
        variant = make_variant(decode(name), odd.materials, folder, threads=1)
    except (CandidateRefused, SourceError) as error:
        return Finding(name, refused=error.found)
    before = run(odd.source, batch, "basic")
    of_file = distance(before, run(variant.path, batch, "basic"))
    with open_runner(variant.path, variant.session) as runner:
        of_engine = distance(run(variant.path, batch, "basic"), runner.run(batch, ["y"])[0])
    told = any("computes another function" in note for note in variant.notes)
    broken = ""
    if not of_file <= max(BOUNDS[name], 5e-3 * half):
        broken = "the file is not the source"
    elif not of_engine <= ENGINE_BOUND and not told:
        broken = "the engine is not the file"
    return Finding(name, of_file, of_engine, broken=broken)
