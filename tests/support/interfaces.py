"""Small models with the interfaces that ordinary models have: each is the classifier of `conftest` with one part changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from conftest import CLASSES, FEATURES, HIDDEN, centres, tiny_samples, tiny_weights
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Arrays = dict[str, NDArray[Any]]
FLOAT, HALF, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
node = helper.make_node
tensor = helper.make_tensor_value_info
LOGITS = tensor("logits", FLOAT, ["batch", CLASSES])
X = tensor("x", FLOAT, ["batch", FEATURES])
LABELS = ["a", "b", "c", "d"]


@dataclass(frozen=True)
class Interface:
    """A model, its samples, and the changes of the job. `words` are of the reason for a refusal; None where runs work.

    `data(n, seed)` gives `n` samples with their labels.
    """

    model: onnx.ModelProto
    words: str | None = None
    data: Callable[[int, int], Arrays] = tiny_samples
    job: dict[str, object] = field(default_factory=dict)


def model(
    inputs: list[onnx.ValueInfoProto],
    nodes: list[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto],
    opset: int = 21,
    **constants: Any,
) -> onnx.ModelProto:
    """A graph of the classifier's weights and other constants. `features` are what its first layer reads."""
    first, bias, second = tiny_weights()
    body = [
        node("MatMul", ["features", "first"], ["product"], name="first_matmul"),
        node("Add", ["product", "bias"], ["sum"], name="first_add"),
        node("Relu", ["sum"], ["hidden"], name="relu"),
        node("MatMul", ["hidden", "second"], ["scores"], name="second_matmul"),
    ]
    made = {name for one in nodes for name in one.output}
    before = [one for one in nodes if not ({"scores", "hidden"} & set(one.input))]
    after = [one for one in nodes if {"scores", "hidden"} & set(one.input)]
    ends = {value.name for value in outputs}
    if "features" not in made:
        before.append(node("Identity", ["x"], ["features"], name="features"))
    if "logits" in ends and "logits" not in made:
        after.append(node("Identity", ["scores"], ["logits"], name="logits"))
    weights = {"first": first, "bias": bias, "second": second} | constants
    graph = helper.make_graph(
        before + body + after,
        "interface",
        inputs,
        outputs,
        [
            value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(np.asarray(value), name)
            for name, value in weights.items()
        ],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 4)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def with_(**arrays: Callable[[int], NDArray[Any]]) -> Callable[[int, int], Arrays]:
    """The samples with more arrays, each made for `n` samples."""
    return lambda n, seed: tiny_samples(n, seed) | {name: make(n) for name, make in arrays.items()}


# Factor and summand that bring the features into the range of a kind of type.
SCALES = {"f": (1, 0), "i": (10, 0), "u": (10, 128), "b": (1, 0)}
TYPES = {
    "float16": (HALF, np.float16),
    "float32": (FLOAT, np.float32),
    "float64": (TensorProto.DOUBLE, np.float64),
    "uint8": (TensorProto.UINT8, np.uint8),
    "int8": (TensorProto.INT8, np.int8),
    "bool": (TensorProto.BOOL, bool),
    "uint32": (TensorProto.UINT32, np.uint32),
    "uint64": (TensorProto.UINT64, np.uint64),
}


def cast(dtype: Any) -> Callable[[int, int], Arrays]:
    kind = np.dtype(dtype).kind
    scale, shift = SCALES[kind]

    def data(n: int, seed: int) -> Arrays:
        arrays = tiny_samples(n, seed)
        numbers = arrays["x"] * scale + shift
        return arrays | {"x": numbers > 0 if kind == "b" else numbers.astype(dtype)}

    return data


def typed(kind: int, dtype: Any, words: str | None = None) -> Interface:
    """An input of another type that the graph casts to float."""
    nodes = [node("Cast", ["x"], ["features"], to=FLOAT, name="cast")]
    return Interface(model([tensor("x", kind, ["batch", FEATURES])], nodes, [LOGITS]), words, cast(dtype))


def bfloat16() -> onnx.ModelProto:
    """An input and an output of bfloat16, both of which become float32."""
    kind = TensorProto.BFLOAT16
    nodes = [
        node("Cast", ["x"], ["features"], to=FLOAT, name="cast"),
        node("Cast", ["scores"], ["logits"], to=kind, name="back"),
    ]
    outputs = [tensor("logits", kind, ["batch", CLASSES])]
    return model([tensor("x", kind, ["batch", FEATURES])], nodes, outputs)


def value(name: str, kind: onnx.TypeProto) -> onnx.ValueInfoProto:
    return helper.make_value_info(name, kind)


def of_tensor(kind: int = FLOAT, shape: Any = ("batch", CLASSES)) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(kind, shape)


def text_input() -> onnx.ModelProto:
    encode = node(
        "LabelEncoder",
        ["code"],
        ["factor"],
        domain="ai.onnx.ml",
        name="encode",
        keys_strings=["de", "fr"],
        values_floats=[1.0, 1.1],
    )
    return model(
        [X, tensor("code", TensorProto.STRING, ["batch", 1])],
        [encode, node("Mul", ["x", "factor"], ["features"], name="by")],
        [LOGITS],
    )


def text_codes(n: int) -> NDArray[Any]:
    return np.array(["de", "fr"])[np.arange(n) % 2][:, None]


def text_output(first: bool) -> onnx.ModelProto:
    text = tensor("label", TensorProto.STRING, ["batch"])
    top = node("ArgMax", ["scores"], ["index"], axis=1, keepdims=0, name="top")
    made = model([X], [top], [text, LOGITS] if first else [LOGITS, text])
    names = {"keys_int64s": [0, 1, 2, 3], "values_strings": LABELS}
    made.graph.node.append(node("LabelEncoder", ["index"], ["label"], domain="ai.onnx.ml", name="names", **names))
    return made


def every_type() -> onnx.ModelProto:
    """Features in inputs of eight each, one for each type that is cast to float."""
    inputs, nodes, constants = [], [], {}
    for name, (kind, dtype) in TYPES.items():
        scale, shift = SCALES[np.dtype(dtype).kind]
        constants |= {f"{name}_scale": np.float32(scale), f"{name}_shift": np.float32(shift)}
        inputs.append(tensor(name, kind, ["batch", FEATURES // len(TYPES)]))
        nodes += [
            node("Cast", [name], [f"{name}_cast"], to=FLOAT, name=f"{name}_cast"),
            node("Sub", [f"{name}_cast", f"{name}_shift"], [f"{name}_moved"], name=f"{name}_moved"),
            node("Div", [f"{name}_moved", f"{name}_scale"], [f"{name}_read"], name=f"{name}_read"),
        ]
    nodes.append(node("Concat", [f"{name}_read" for name in TYPES], ["features"], axis=1, name="features"))
    return model(inputs, nodes, [LOGITS], **constants)


def typed_columns(n: int, seed: int) -> Arrays:
    """The samples of `every_type`."""
    label = tiny_samples(n, seed)["label"]
    parts = zip(TYPES, np.split(np.arange(FEATURES), len(TYPES)), strict=True)
    return {name: cast(TYPES[name][1])(n, seed)["x"][:, columns] for name, columns in parts} | {"label": label}


def zipmap(first: bool) -> onnx.ModelProto:
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.STRING, of_tensor(FLOAT, [])))
    probabilities = value("probabilities", kind)
    nodes = [node("ZipMap", ["scores"], ["probabilities"], domain="ai.onnx.ml", name="zip", classlabels_strings=LABELS)]
    return model([X], nodes, [probabilities, LOGITS] if first else [LOGITS, probabilities])


def sequence(first: bool) -> onnx.ModelProto:
    parts = value("parts", helper.make_sequence_type_proto(of_tensor(FLOAT, None)))
    nodes = [node("SequenceConstruct", ["scores", "hidden"], ["parts"], name="parts")]
    return model([X], nodes, [parts, LOGITS] if first else [LOGITS, parts])


def split_output() -> onnx.ModelProto:
    parts = value("parts", helper.make_sequence_type_proto(of_tensor(FLOAT, None)))
    return model([X], [node("SplitToSequence", ["scores"], ["parts"], axis=0, name="split")], [LOGITS, parts])


def map_input() -> onnx.ModelProto:
    kind = helper.make_map_type_proto(INT64, of_tensor(FLOAT, []))
    nodes = [
        node(
            "CastMap",
            ["counts"],
            ["dense"],
            domain="ai.onnx.ml",
            name="dense",
            cast_to="TO_FLOAT",
            map_form="SPARSE",
            max_map=FEATURES,
        ),
        node("Add", ["x", "dense"], ["features"], name="more"),
    ]
    return model([X, value("counts", kind)], nodes, [LOGITS])


def sequence_input() -> onnx.ModelProto:
    kind = helper.make_sequence_type_proto(of_tensor(FLOAT, ["batch", FEATURES]))
    nodes = [node("SequenceAt", ["images", "zero"], ["features"], name="at")]
    return model([value("images", kind)], nodes, [LOGITS], zero=np.int64(0))


def optional_input() -> onnx.ModelProto:
    kind = helper.make_optional_type_proto(of_tensor(FLOAT, ["batch", FEATURES]))
    nodes = [node("OptionalGetElement", ["x"], ["features"], name="get")]
    return model([value("x", kind)], nodes, [LOGITS])


def optional_output() -> onnx.ModelProto:
    kind = helper.make_optional_type_proto(of_tensor())
    return model([X], [node("Optional", ["scores"], ["maybe"], name="maybe")], [LOGITS, value("maybe", kind)])


def side_outputs() -> onnx.ModelProto:
    """Every kind of output that is not a tensor with the batch on its first axis, beside the scores."""
    made = model([X], [], [LOGITS])
    for other in (
        text_output(False),
        zipmap(False),
        sequence(False),
        optional_output(),
        own_rows(False),
        transposed(False),
    ):
        made.graph.output.append(other.graph.output[1])
        known = {one.name for one in made.graph.node}
        made.graph.node.extend(one for one in other.graph.node if one.name not in known)
        constants = {one.name for one in made.graph.initializer}
        made.graph.initializer.extend(one for one in other.graph.initializer if one.name not in constants)
    return made


def scalars() -> onnx.ModelProto:
    """Numbers that the job names: of one call, of two numbers, and one a sample."""
    kinds = {
        "sr": (INT64, []),
        "training": (TensorProto.BOOL, []),
        "orig_size": (INT64, [2]),
        "rate": (FLOAT, ["batch"]),
    }
    inputs, nodes, tops = [X], [], []
    for name, (kind, shape) in kinds.items():
        inputs.append(tensor(name, kind, shape))
        nodes.append(node("Cast", [name], [f"{name}_number"], to=FLOAT, name=f"{name}_number"))
        nodes.append(node("ReduceMax", [f"{name}_number"], [f"{name}_top"], keepdims=0, name=f"{name}_top"))
        tops.append(f"{name}_top")
    nodes += [node("Max", tops, ["top"], name="top"), node("Mul", ["x", "top"], ["features"], name="by")]
    return model(inputs, nodes, [LOGITS])


def scalar(name: str, kind: int, shape: Any) -> onnx.ModelProto:
    nodes = [
        node("Cast", [name], ["number"], to=FLOAT, name="number"),
        node("ReduceMax", ["number"], ["top"], keepdims=0, name="top"),
        node("Mul", ["x", "top"], ["features"], name="by"),
    ]
    return model([X, tensor(name, kind, shape)], nodes, [LOGITS])


def state(shape: list[Any], axis: int, batch: Any = "batch", carried: bool = False) -> onnx.ModelProto:
    """The state of two layers is added to the features; carried, it is also given back."""
    nodes = [
        node("ReduceMean", ["state", "axes"], ["summed"], keepdims=0, name="sum"),
        node("Add", ["x", "summed"], ["features"], name="more"),
        *([node("Identity", ["state"], ["state_out"], name="carry")] if carried else []),
    ]
    inputs = [tensor("x", FLOAT, [batch, FEATURES]), tensor("state", FLOAT, shape)]
    outputs = [tensor("logits", FLOAT, [batch, CLASSES]), *([tensor("state_out", FLOAT, shape)] if carried else [])]
    return model(inputs, nodes, outputs, axes=np.array([axis]))


def recurrent() -> onnx.ModelProto:
    """A state of two layers with its batch on axis 1: features of the calls so far, of which each call halves the weight."""
    shape = [2, "batch", FEATURES]
    return model(
        [X, tensor("h", FLOAT, shape)],
        [
            node("ReduceSum", ["h", "axes"], ["before"], keepdims=0, name="before"),
            node("Add", ["x", "before"], ["both"], name="both"),
            node("Mul", ["both", "half"], ["features"], name="features"),
            node("Mul", ["features", "half"], ["layer"], name="layer"),
            node("Unsqueeze", ["layer", "axes"], ["one"], name="one"),
            node("Concat", ["one", "one"], ["hn"], axis=0, name="next"),
        ],
        [LOGITS, tensor("hn", FLOAT, shape)],
        axes=np.array([0]),
        half=np.float32(0.5),
    )


def calls(steps: int) -> Callable[[int, int], Arrays]:
    """Sequences of calls of one class each: `(n, steps, ...)`."""

    def data(n: int, seed: int) -> Arrays:
        arrays = tiny_samples(n, seed)
        noise = np.random.default_rng(seed).normal(size=(n, steps, FEATURES)).astype(np.float32)
        return {"x": arrays["x"][:, None] + noise, "label": np.repeat(arrays["label"][:, None], steps, axis=1)}

    return data


def own_rows(first: bool) -> onnx.ModelProto:
    """Rows of (sample, place) of all positive hidden values: as many as there are, fewer of which are left by rounding."""
    nodes = [node("Greater", ["hidden", "least"], ["chosen"], name="chosen")]
    rows = tensor("rows", INT64, ["rows", 2])
    made = model([X], nodes, [rows, LOGITS] if first else [LOGITS, rows], least=np.float32(0))
    made.graph.node.extend(
        [
            node("NonZero", ["chosen"], ["places"], name="places"),
            node("Transpose", ["places"], ["rows"], perm=[1, 0], name="rows"),
        ]
    )
    return made


def nms(first: bool) -> onnx.ModelProto:
    """A detector: NonMaxSuppression of boxes side by side, of the classes and of clutter: rows of (sample, 0, box)."""
    selected = tensor("selected", INT64, ["selected", 3])
    count = CLASSES + HIDDEN
    outputs = [LOGITS, tensor("boxes", FLOAT, ["batch", count, 4]), tensor("box_scores", FLOAT, ["batch", 1, count])]
    corners = np.array([[at, 0, at + 1, 1] for at in range(count)], np.float32)
    made = model(
        [X],
        [node("Concat", ["scores", "hidden"], ["all_scores"], axis=1, name="all_scores")],
        [selected, *outputs] if first else [*outputs, selected],
        one_class=np.array([1]),
        most=np.int64(count),
        overlap=np.float32(0.5),
        least=np.float32(0),
        corners=corners,
        shape_of_boxes=np.array([count, 4]),
    )
    made.graph.node.extend(
        [
            node("Unsqueeze", ["all_scores", "one_class"], ["box_scores"], name="box_scores"),
            node("Shape", ["x"], ["n"], end=1, name="n"),
            node("Concat", ["n", "shape_of_boxes"], ["box_shape"], axis=0, name="box_shape"),
            node("Expand", ["corners", "box_shape"], ["boxes"], name="boxes"),
            node("NonMaxSuppression", ["boxes", "box_scores", "most", "overlap", "least"], ["selected"], name="nms"),
        ]
    )
    return made


def true_boxes(n: int, seed: int) -> Arrays:
    """The box of each sample's class."""
    arrays = tiny_samples(n, seed)
    at = arrays["label"].astype(np.float32)
    return arrays | {"label": np.stack([at, 0 * at, at + 1, 0 * at + 1, 0 * at], axis=1)[:, None]}


def speech() -> onnx.ModelProto:
    """A voice: the frames of all sounds that the features stand for, as many as the longest of the batch has."""
    shape: list[Any] = ["batch", "frames"]
    made = model(
        [X, tensor("length", INT64, ["batch"])],
        [],
        [LOGITS, tensor("speech", FLOAT, shape)],
        frames_a_unit=np.float32(10),
        zero=np.int64(0),
        one=np.int64(1),
        last=np.array([1]),
    )
    made.graph.node.extend(
        [
            node("Relu", ["scores"], ["durations"], name="durations"),
            node("ReduceSum", ["durations", "last"], ["spoken"], keepdims=0, name="spoken"),
            node("Cast", ["length"], ["pauses"], to=FLOAT, name="pauses"),
            node("Add", ["spoken", "pauses"], ["units"], name="units"),
            node("Mul", ["units", "frames_a_unit"], ["ends"], name="ends"),
            node("ReduceMax", ["ends"], ["longest"], keepdims=0, name="longest"),
            node("Cast", ["longest"], ["count"], to=INT64, name="count"),
            node("Range", ["zero", "count", "one"], ["times"], name="times"),
            node("Cast", ["times"], ["at"], to=FLOAT, name="at"),
            node("Unsqueeze", ["ends", "last"], ["until"], name="until"),
            node("Less", ["at", "until"], ["sounds"], name="sounds"),
            node("Cast", ["sounds"], ["speech"], to=FLOAT, name="speech"),
        ]
    )
    return made


PEOPLE = 5000


def recommender() -> onnx.ModelProto:
    """One id of a user and one of an item a sample; users of one class like the same."""
    rng = np.random.default_rng(5)
    users, items = (rng.normal(size=(PEOPLE, FEATURES)).astype(np.float32) for _ in range(2))
    nodes = [
        node("Gather", ["users", "user"], ["person"], name="person"),
        node("Gather", ["items", "item"], ["thing"], name="thing"),
        node("Add", ["person", "thing"], ["features"], name="features"),
    ]
    users += centres()[np.arange(PEOPLE) % CLASSES]
    ids = [tensor(name, INT64, ["batch"]) for name in ("user", "item")]
    return model(ids, nodes, [LOGITS], users=users, items=items)


def visits(n: int, seed: int) -> Arrays:
    """Some users and items are seen more often than others."""
    rng = np.random.default_rng(seed)
    user, item = (PEOPLE * rng.random((2, n)) ** 2).astype(np.int64)
    return {"user": user, "item": item, "label": user % CLASSES}


def fixed(batch: int) -> onnx.ModelProto:
    return model([tensor("x", FLOAT, [batch, FEATURES])], [], [tensor("logits", FLOAT, [batch, CLASSES])])


def image(layout: str) -> onnx.ModelProto:
    """8 x 8 pixels of one channel in NHWC, or 1 x 8 x 8 in NCHW."""
    shape = ["batch", 8, 8, 1] if layout == "NHWC" else ["batch", 1, 8, 8]
    return model([tensor("x", FLOAT, shape)], [node("Flatten", ["x"], ["features"], name="flat")], [LOGITS])


def image_data(layout: str) -> Callable[[int, int], Arrays]:
    def data(n: int, seed: int) -> Arrays:
        arrays = tiny_samples(n, seed)
        return arrays | {"x": arrays["x"].reshape((n, 8, 8, 1) if layout == "NHWC" else (n, 1, 8, 8))}

    return data


def transposed(first: bool) -> onnx.ModelProto:
    nodes = [node("Transpose", ["scores"], ["by_class"], perm=[1, 0], name="by_class")]
    out = tensor("by_class", FLOAT, [CLASSES, "batch"])
    return model([X], nodes, [out, LOGITS] if first else [LOGITS, out])


def no_inputs() -> onnx.ModelProto:
    drawn = node("RandomNormal", [], ["features"], shape=[2, FEATURES], seed=1.0, name="drawn")
    return model([], [drawn], [tensor("logits", FLOAT, [2, CLASSES])])


def top_class() -> onnx.ModelProto:
    nodes = [node("ArgMax", ["scores"], ["top"], axis=1, keepdims=0, name="top")]
    return model([X], nodes, [tensor("top", INT64, ["batch"])])


def empty() -> onnx.ModelProto:
    """A cache without entries: its axis of steps is empty."""
    nodes = [
        node("Concat", ["past", "row"], ["present"], axis=1, name="present"),
        node("ReduceMax", ["present", "axes"], ["most"], keepdims=0, name="most"),
        node("Add", ["x", "most"], ["features"], name="more"),
    ]
    inputs = [X, tensor("past", FLOAT, ["batch", 0, FEATURES])]
    nodes.insert(0, node("Unsqueeze", ["x", "axes"], ["row"], name="row"))
    return model(inputs, nodes, [LOGITS], axes=np.array([1]))


def zeros(*shape: int, dtype: Any = np.float32) -> Callable[[int], NDArray[Any]]:
    return lambda n: np.zeros((n, *shape), dtype)


def numbers(*shape: int, dtype: Any = np.float32) -> Callable[[int], NDArray[Any]]:
    return lambda n: np.random.default_rng(n).normal(size=(n, *shape)).astype(dtype)


def fixed_array(array: Any) -> Callable[[int], NDArray[Any]]:
    """One array for all samples, as a model with a scalar input would take it."""
    return lambda _: np.asarray(array)


def without_shape() -> onnx.ModelProto:
    return model([tensor("x", FLOAT, None)], [], [LOGITS])


def apart(name: str, shape: list[Any]) -> onnx.ModelProto:
    """A second input that is not read, of this shape."""
    return model([X, tensor(name, INT64, shape)], [], [LOGITS])


def for_batch(size: int) -> dict[str, object]:
    """The changes of a job for a model of one batch size."""
    measurement = {"launches": 1, "blocks": 3, "block_seconds": 0.02, "max_other_load": None, "batch_sizes": [size]}
    return {"measurement": measurement}


IN_AXIS_1: dict[str, object] = {"inputs": {"state": {"batch_axis": 1}}}
STATES = with_(state=lambda n: np.zeros((2, n, FEATURES), np.float32))
NO_BATCH, SIZES = "the inputs have no common batch axis", "inputs of different sizes along axis 0"

REFUSED: dict[str, Interface] = {
    "text output judged": Interface(text_output(first=True), "metric 'accuracy' on output 'label' of str"),
    "sequence input": Interface(sequence_input(), "input 'images' is a sequence"),
    "map input": Interface(map_input(), "input 'counts' is a map"),
    "optional input": Interface(optional_input(), "input 'x' is an optional value"),
    "sequence of a split": Interface(
        split_output(), "output 'parts' is a sequence, which is not supported, judged or not"
    ),
    "scalar sr": Interface(scalar("sr", INT64, []), "input sr: int64[] is a scalar", with_(sr=fixed_array(16000))),
    "orig_size": Interface(scalar("orig_size", INT64, [2]), SIZES, with_(orig_size=fixed_array([1, 1]))),
    "positions without a batch": Interface(
        model([tensor("x", FLOAT, ["batch", "steps"]), tensor("at", INT64, ["steps"])], [], [LOGITS]), NO_BATCH
    ),
    "state[2, N, 64]": Interface(
        state([2, "batch", FEATURES], 0), "batch, 64] is axis 1 of input state: float32[2, batch, 64]", STATES
    ),
    "state[2, 1, 64]": Interface(state([2, 1, FEATURES], 0, 1), SIZES, STATES, for_batch(1)),
    "constant of another type": Interface(
        scalar("sr", INT64, []), "`inputs.sr.constant: 0.5` for sr: int64[]", job={"inputs": {"sr": {"constant": 0.5}}}
    ),
    "constant of another size": Interface(
        scalar("orig_size", INT64, [2]),
        "`inputs.orig_size.constant` with 3 values",
        job={"inputs": {"orig_size": {"constant": [1, 2, 3]}}},
    ),
    "constant of no input": Interface(
        scalar("sr", INT64, []), "`inputs` names ['rate']", job={"inputs": {"rate": {"constant": 1}}}
    ),
    "constants alone": Interface(
        fixed(1), "makes every input a constant", job=for_batch(1) | {"inputs": {"x": {"constant": 0}}}
    ),
    "state from no output": Interface(
        recurrent(), "`inputs.h.state_from: h_n`", calls(3), {"inputs": {"h": {"batch_axis": 1, "state_from": "h_n"}}}
    ),
    "one label a sequence": Interface(
        recurrent(),
        "npz has arrays of shapes",
        lambda n, seed: calls(3)(n, seed) | {"label": calls(3)(n, seed)["label"][:, 0]},
        {"inputs": {"h": {"batch_axis": 1, "state_from": "hn"}}},
    ),
    "batch on an axis that is none": Interface(
        state([2, "batch", FEATURES], 0),
        "`inputs.state.batch_axis: 3`",
        STATES,
        {"inputs": {"state": {"batch_axis": 3}}},
    ),
    "own rows judged": Interface(
        own_rows(first=True), "its number of rows is independent of the batch", job={"metric": "mse"}
    ),
    "boxes judged": Interface(nms(first=True), "its number of rows is independent of the batch", job={"metric": "mse"}),
    "several judged": Interface(
        nms(first=False), "the metric accuracy reads one output", job={"output": ["logits", "selected"]}
    ),
    "dynamic rank": Interface(without_shape(), "input 'x' has no shape: its number of axes is dynamic"),
    "float8": typed(TensorProto.FLOAT8E4M3FN, np.float32, "input 'x' has the type float8e4m3fn"),
    "transposed judged": Interface(transposed(first=True), "its batch is on axis 1"),
    "no inputs": Interface(no_inputs(), "has no inputs", job=for_batch(2)),
    "class judged by accuracy": Interface(top_class(), "metric 'accuracy' on output 'top' of int64"),
    "empty cache": Interface(empty(), "float32[batch, 0, 64] has an empty axis", with_(past=zeros(0, FEATURES))),
    "fixed batch 4 with a rest": Interface(
        fixed(4), "99 samples, and the model a fixed batch size of 4", job=for_batch(4)
    ),
    "fixed batch 3 measured at 1": Interface(
        fixed(3), "batch sizes [1] for a model with a fixed batch size of 3", job=for_batch(1)
    ),
}
WORKING: dict[str, Interface] = {
    "every type": Interface(every_type(), data=typed_columns),
    "side outputs": Interface(side_outputs()),
    "scalars": Interface(
        scalars(),
        job={
            "inputs": {
                name: {"constant": value}
                for name, value in {"sr": 16000, "training": True, "orig_size": [1, 2], "rate": 1}.items()
            }
        },
    ),
    "text output": Interface(text_output(first=False)),
    "zipmap": Interface(zipmap(first=False)),
    "zipmap judged": Interface(zipmap(first=True)),
    "sequence": Interface(sequence(first=False)),
    "sequence judged": Interface(sequence(first=True), job={"output": "parts.0"}),
    "optional output": Interface(optional_output()),
    "state carried": Interface(state(["batch", 2, FEATURES], 1, carried=True), data=with_(state=numbers(2, FEATURES))),
    "text input": Interface(text_input(), data=with_(code=text_codes)),
    "scalar sr": Interface(scalar("sr", INT64, []), job={"inputs": {"sr": {"constant": 16000}}}),
    "scalar training": Interface(
        scalar("training", TensorProto.BOOL, []), job={"inputs": {"training": {"constant": True}}}
    ),
    "orig_size": Interface(scalar("orig_size", INT64, [2]), job={"inputs": {"orig_size": {"constant": [1, 2]}}}),
    "constant a sample": Interface(scalar("rate", FLOAT, ["batch"]), job={"inputs": {"rate": {"constant": 1}}}),
    "state[2, N, 64]": Interface(
        state([2, "batch", FEATURES], 0, carried=True), data=with_(state=numbers(2, FEATURES)), job=IN_AXIS_1
    ),
    "state[2, 1, 64]": Interface(
        state([2, 1, FEATURES], 0, 1), data=with_(state=numbers(2, FEATURES)), job=for_batch(1) | IN_AXIS_1
    ),
    "state from call to call": Interface(
        recurrent(), data=calls(3), job={"inputs": {"h": {"batch_axis": 1, "state_from": "hn"}}}
    ),
    "own rows": Interface(own_rows(first=False)),
    "boxes after NMS": Interface(
        nms(first=False),
        data=true_boxes,
        job={
            "metric": "map",
            "output": ["boxes", "box_scores", "selected"],
            "gates": {"max_drop": 0.05, "min_speedup": None},
        },
    ),
    "speech with lengths": Interface(
        speech(), data=with_(length=lambda n: np.random.default_rng(n).integers(1, 21, n))
    ),
    "one id an input": Interface(recommender(), data=visits),
    "fixed batch 3": Interface(fixed(3), job=for_batch(3)),
    "fixed batch 1": Interface(fixed(1), job=for_batch(1)),
    "float16": typed(HALF, np.float16),
    "bfloat16": Interface(bfloat16()),
    "float64": typed(TensorProto.DOUBLE, np.float64),
    "uint8": typed(TensorProto.UINT8, np.uint8),
    "int8": typed(TensorProto.INT8, np.int8),
    "bool": typed(TensorProto.BOOL, bool),
    "uint32": typed(TensorProto.UINT32, np.uint32),
    "uint64": typed(TensorProto.UINT64, np.uint64),
    "NHWC": Interface(image("NHWC"), data=image_data("NHWC")),
    "NCHW": Interface(image("NCHW"), data=image_data("NCHW")),
    "transposed": Interface(transposed(first=False)),
    "class judged by mse": Interface(top_class(), job={"metric": "mse", "gates": {"max_drop": 0.1}}),
    "other names of the batch": Interface(
        apart("ids", ["other_batch", 3]), data=with_(ids=lambda n: np.arange(3 * n).reshape(n, 3))
    ),
    "axes of one name": Interface(
        apart("ids", ["any", "any"]), data=with_(ids=lambda n: np.arange(3 * n).reshape(n, 3))
    ),
}
