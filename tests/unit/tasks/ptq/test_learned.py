"""Learned rounding against a form that tries every code, and on layers whose outputs are known."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from processors import AMX, source_alone

from tasks.engines.ort.pairs import PAIRS
from tasks.engines.variants import refuse_other_targets
from tasks.ptq.build_variant import quantize_int8
from tasks.ptq.calibrate.grams import Gram, collect_grams
from tasks.ptq.calibrate.in_order import collect_in_order
from tasks.ptq.calibrate.patches import MOST_PATCHES, Patches
from tasks.ptq.descent import SETTLED, SWEEPS, damped, descend
from tasks.ptq.eight_bit.int8_weights import Int8Weights, layers_to_learn
from tasks.ptq.eight_bit.qdq import quantize_qdq
from tasks.ptq.weight_only.gptq import gptq
from tasks.ptq.weight_only.int4_grid import round_to_nearest
from tasks.ptq.weight_only.learned import learn_blocks
from validators.errors import CandidateRefused
from validators.job.candidate_name import decode
from validators.records.run import SessionSettings

Floats = NDArray[np.float64]


def layer(rows: int, columns: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Inputs `[200, K]` that depend on each other, and a weight `[K, N]`."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(rows, rows)) / 2 + np.eye(rows)
    return rng.normal(size=(200, rows)) @ mixing, rng.normal(size=(rows, columns)) / 4


def error(x: Floats, weight: Floats, other: Floats) -> float:
    return float(((x @ weight - x @ other) ** 2).sum())


def try_every_code(
    x: Floats, weight: Floats, codes: Floats, scales: Floats, zeros: Floats, size: int, limits: tuple[int, int]
) -> tuple[Floats, Floats]:
    """The same descent by the outputs themselves: each code is the best of all, each scale a regression."""
    codes, scales = codes.copy(), scales.copy()
    for _ in range(SWEEPS):
        before = codes.copy()
        for column in range(weight.shape[1]):
            for block in range(len(scales)):
                own = range(block * size, min((block + 1) * size, len(weight)))

                def left(column: int = column) -> Floats:
                    spread = np.arange(len(weight)) // size
                    held = (codes[:, column] - zeros[spread, column]) * scales[spread, column]
                    return np.asarray(x @ (weight[:, column] - held))

                for row in own:
                    tried = np.arange(limits[0], limits[1] + 1)
                    moved = left()[:, None] - x[:, [row]] * (tried - codes[row, column]) * scales[block, column]
                    codes[row, column] = tried[(moved**2).sum(axis=0).argmin()]
                part = x[:, own] @ (codes[own, column] - zeros[block, column])
                if part.any():
                    wanted = left() + part * scales[block, column]
                    best = float(np.linalg.lstsq(part[:, None], wanted, rcond=None)[0][0])
                    scales[block, column] = np.float32(best) if best > 0 else scales[block, column]
        if (before != codes).sum() <= SETTLED * codes.size:
            break
    return codes, scales


@pytest.mark.parametrize(("rows", "size", "zero"), [(12, 12, 0), (20, 8, 7), (70, 70, 0)])
def test_descent_finds_what_trying_every_code_finds(rows: int, size: int, zero: int) -> None:
    x, weight = layer(rows, 3, seed=rows)
    blocks = -(-rows // size)
    zeros, scales = np.full((blocks, 3), float(zero)), np.full((blocks, 3), 0.17)
    limits = (-7, 7) if zero == 0 else (0, 15)
    start = np.clip(np.rint(weight / 0.17) + zero, *limits)
    codes, found = descend(
        start[None],
        scales[None],
        zeros[None],
        weight[None],
        (x.T @ x)[None],
        limits=limits,
        dtype=np.float32,
        block_size=size,
    )
    expected = try_every_code(x, weight, start, scales, zeros, size, limits)
    np.testing.assert_array_equal(codes[0], expected[0])
    np.testing.assert_allclose(found[0], expected[1], rtol=1e-6)
    spread = np.arange(rows) // size
    after, before = (
        error(x, weight, (one - zeros[spread]) * scale[spread])
        for one, scale in ((codes[0], found[0]), (start, scales))
    )
    assert after < 0.6 * before


def test_scales_stay_above_the_least_and_keep_their_sign() -> None:
    """A bias in INT32 needs the least scale; a negative scale of INT4 stays negative."""
    x, weight = layer(16, 2)
    start, zeros = np.rint(weight / -0.5), np.zeros((1, 1, 2))
    options: dict[str, Any] = {"limits": (-7, 7), "dtype": np.float32, "smallest": np.array([0.5, 0.0])}
    _, scales = descend(start[None], np.full((1, 1, 2), -0.5), zeros, weight[None], (x.T @ x)[None], **options)
    assert scales[0, 0, 0] == -0.5
    assert -0.5 < scales[0, 0, 1] < 0


@pytest.mark.parametrize("symmetric", [True, False])
def test_blocks_have_less_error_than_gptq(symmetric: bool) -> None:
    x, weight = layer(80, 24, seed=3)
    options: dict[str, Any] = {"block_size": 32, "symmetric": symmetric, "dtype": np.float32}
    made = (
        round_to_nearest(weight, **options),
        gptq(weight, x.T @ x, **options),
        learn_blocks(weight, x.T @ x, **options),
    )
    nearest, compensated, learned = (error(x, weight, one.dequantized()) for one in made)
    assert learned < 0.9 * compensated < 0.9 * nearest


def test_a_dead_channel_is_rounded_to_nearest() -> None:
    x, weight = layer(16, 4)
    x[:, 3] = 0
    options: dict[str, Any] = {"block_size": 16, "symmetric": True, "dtype": np.float32}
    learned = learn_blocks(weight, x.T @ x, **options)
    assert np.abs(learned.dequantized()[3] - weight[3]).max() <= np.abs(learned.grid.scales).max() / 2 + 1e-9


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((6, 4, 3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
        ((8, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
        ((6, 2, 2), {"group": 2, "dilations": [3], "pads": [2, 1]}),
    ],
)
def test_patches_times_weight_are_the_convolution(shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=shape).astype(np.float32)
    x = rng.normal(size=(2, shape[1] * attributes.get("group", 1), *[9, 11][: len(shape) - 2])).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", **attributes)
    (y,) = ReferenceEvaluator(node).run(None, {"x": x, "w": weight})
    patches = Patches.of(node, numpy_helper.from_array(weight))
    assert patches is not None
    groups = patches.groups
    found = patches.rows(x) @ weight.reshape(groups, shape[0] // groups, -1).transpose(0, 2, 1)
    expected = (
        y.reshape(2, groups, shape[0] // groups, -1).transpose(1, 0, 3, 2).reshape(groups, -1, shape[0] // groups)
    )
    order = [np.lexsort(one.T) for one in (found[0], expected[0])]
    np.testing.assert_allclose(found[0][order[0]], expected[0][order[1]], atol=1e-4)
    assert found.shape == expected.shape


def test_of_a_large_picture_some_patches_are_drawn() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    patches = Patches.of(node, numpy_helper.from_array(np.zeros((2, 3, 1, 1), np.float32)))
    assert patches is not None
    assert patches.rows(np.zeros((2, 3, 40, 40), np.float32)).shape == (1, 2 * MOST_PATCHES, 3)


@pytest.fixture
def network(tmp_path: Path) -> tuple[Path, dict[str, NDArray[np.float32]]]:
    """A convolution, one for each channel, and a Gemm with a transposed weight."""
    rng = np.random.default_rng(1)
    weights = {
        "a": rng.normal(size=(8, 3, 3, 3)) / 4,
        "a_bias": rng.normal(size=8),
        "b": rng.normal(size=(8, 1, 3, 3)) / 2,
        "c": rng.normal(size=(5, 8 * 36)) / 8,
    }
    nodes = [
        helper.make_node("Conv", ["x", "a", "a_bias"], ["p"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["p", "b"], ["q"], name="each", group=8, pads=[1, 1, 1, 1]),
        helper.make_node("Flatten", ["q"], ["r"], name="flat"),
        helper.make_node("Gemm", ["r", "c"], ["y"], name="last", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    path = tmp_path / "network.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), path)
    base = rng.normal(size=(64, 3, 1, 1)) + rng.normal(size=(64, 3, 6, 6)) / 3
    return path, {"x": base.astype(np.float32)}


def test_learned_weights_of_a_network_answer_better(
    network: tuple[Path, dict[str, NDArray[np.float32]]], tmp_path: Path
) -> None:
    path, samples = network
    products, convolutions = layers_to_learn(path)
    assert (list(products), list(convolutions)) == (["last"], ["first", "each"])
    sums = collect_grams(path, dict(products.values()), lambda: [samples], max_memory_mb=100)
    (exact,) = ReferenceEvaluator(str(path)).run(None, samples)
    wide = dict.fromkeys(["x", "p", "q", "r"], (-20.0, 20.0))
    errors = {}
    for method in ("rtn", "learned"):
        variant, weights = tmp_path / f"{method}.onnx", Int8Weights(True, 7, method)

        def grams(nodes: Collection[str], weights: Int8Weights = weights) -> dict[str, Gram]:
            assert set(nodes) == {"first", "each", "last"}
            in_order = collect_in_order(
                path,
                convolutions,
                [samples],
                weights.round_convolution,
                SessionSettings.reference(1),
                max_memory_mb=100,
            )
            return {"last": sums["r"]} | in_order

        quantize_qdq(
            path,
            variant,
            wide,
            rules=PAIRS,
            every_operator=False,
            activation="uint8",
            weights=weights,
            grams=grams,
        )
        proto = onnx.load(variant)
        # Weights alone: the steps of activations hide them.
        _drop_pairs(proto.graph)
        (found,) = ReferenceEvaluator(proto).run(None, samples)
        errors[method] = float(((found - exact) ** 2).mean())
    assert errors["learned"] < 0.67 * errors["rtn"]


def _drop_pairs(graph: onnx.GraphProto) -> None:
    before = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"}
    after = {node.output[0]: before[node.input[0]] for node in graph.node if node.input and node.input[0] in before}
    for node in graph.node:
        node.input[:] = [after.get(name, name) for name in node.input]


def test_damping_keeps_a_matrix_of_zeros_positive_definite() -> None:
    assert np.array_equal(damped(np.zeros((2, 3, 3))), np.broadcast_to(np.eye(3), (2, 3, 3)))


@pytest.mark.parametrize(
    ("recipe", "nodes", "found"),
    [
        ("int8-static-mse-pt-learned@ort-cpu", ["first", "each", "flat", "last"], "one scale for a whole weight"),
        ("int8-static-mse-pc-learned@ort-cpu", ["flat"], "of no layer"),
    ],
)
def test_what_would_be_rounded_to_nearest_is_refused(
    network: tuple[Path, dict[str, NDArray[np.float32]]], tmp_path: Path, recipe: str, nodes: list[str], found: str
) -> None:
    proto = onnx.load(network[0])
    kept = [node for node in proto.graph.node if node.name in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(kept)
    onnx.save(proto, tmp_path / "kept.onnx")
    with pytest.raises(CandidateRefused, match=found):
        quantize_int8(decode(recipe), source_alone(network[0]), tmp_path / "kept.onnx", tmp_path / "variant.onnx")


@pytest.mark.parametrize("recipe", ["int8-static-mse-pc-learned@torch-inductor", "int4-g64-learned@tensorrt"])
def test_engines_with_quantizers_of_their_own_refuse_it(recipe: str) -> None:
    with pytest.raises(CandidateRefused, match="'learned'"):
        refuse_other_targets(decode(recipe), AMX)


def test_convolutions_learn_on_what_rounded_ones_make(
    network: tuple[Path, dict[str, NDArray[np.float32]]],
) -> None:
    """The second reads what the first makes with its rounded weight, and aims at the outputs of the float model."""

    def coarse(weight: NDArray[Any], _gram: Gram) -> NDArray[Any]:
        return np.asarray(np.rint(weight * 4) / 4)

    path, samples = network
    _, convolutions = layers_to_learn(path)
    grams = collect_in_order(path, convolutions, [samples], coarse, SessionSettings.reference(1), max_memory_mb=100)
    proto = onnx.load(path)
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    given = {name: numpy_helper.to_array(tensor) for name, tensor in constants.items()}
    proto.graph.output[0].name = "p"
    del proto.graph.node[1:], proto.graph.output[0].type.tensor_type.shape.dim[:]
    (exact,) = ReferenceEvaluator(proto).run(None, samples)
    constants["a"].CopyFrom(numpy_helper.from_array(coarse(given["a"], grams["first"]), "a"))
    (moved,) = ReferenceEvaluator(proto).run(None, samples)
    own, other = (convolutions["each"].rows(one).astype(np.float64) for one in (moved, exact))
    matrix, cross = grams["each"].matrix, grams["each"].cross
    np.testing.assert_allclose(matrix, own.transpose(0, 2, 1) @ own, rtol=1e-4, atol=1e-2)
    np.testing.assert_allclose(cross, own.transpose(0, 2, 1) @ other, rtol=1e-4, atol=1e-2)
    first = grams["first"]
    np.testing.assert_allclose(first.matrix, first.cross, rtol=1e-12)

    def left(kernel: NDArray[Any]) -> float:
        """The error of the layer's outputs with a weight `[8, 1, 3, 3]`, against the float model's."""
        groups, plain = (one.reshape(8, 1, 9).transpose(0, 2, 1) for one in (kernel, given["b"]))
        return float(((own @ groups - other @ plain) ** 2).sum())

    rounded, alone = Int8Weights(True, 7, "learned").round_convolution, replace(grams["each"], cross=None)
    assert left(rounded(given["b"], grams["each"])) < 0.9 * left(rounded(given["b"], alone))


def test_heads_that_read_one_tensor_are_learned_each(
    network: tuple[Path, dict[str, NDArray[np.float32]]], tmp_path: Path
) -> None:
    """Nothing behind them is needed, which must not drop what the second one reads."""
    proto = onnx.load(network[0])
    kernel = np.random.default_rng(2).normal(size=(4, 8, 1, 1)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(kernel, "d"))
    heads = [helper.make_node("Conv", ["q", "d"], [name], name=name) for name in ("left", "right")]
    proto.graph.node.extend(heads)
    for name in ("left", "right"):
        proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4, 6, 6]))
    onnx.save(proto, tmp_path / "heads.onnx")
    _, convolutions = layers_to_learn(tmp_path / "heads.onnx")
    settings, rounded = SessionSettings.reference(1), Int8Weights(True, 7, "learned").round_convolution
    options: dict[str, Any] = {"max_memory_mb": 100}
    found = collect_in_order(tmp_path / "heads.onnx", convolutions, [network[1]], rounded, settings, **options)
    np.testing.assert_allclose(found["left"].matrix, found["right"].matrix, rtol=1e-6)
    assert list(found) == ["first", "each", "left", "right"]


def test_a_convolution_left_in_float_changes_no_input(
    network: tuple[Path, dict[str, NDArray[np.float32]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, convolutions = layers_to_learn(network[0])
    options: dict[str, Any] = {"max_memory_mb": 100}
    settings, rounded = SessionSettings.reference(1), Int8Weights(True, 7, "learned").round_convolution
    only = {"each": convolutions["each"]}
    grams = collect_in_order(network[0], only, [network[1]], rounded, settings, **options)
    np.testing.assert_allclose(grams["each"].matrix, grams["each"].cross, rtol=1e-12)
    each, matrix = convolutions["each"], grams["each"].matrix
    # The patches of one sample are held at once, not those of a batch.
    needed = (6 * matrix.nbytes + 24 * MOST_PATCHES * each.groups * each.channels) / 1e6
    collect_in_order(network[0], only, [network[1]], rounded, settings, max_memory_mb=needed)
    with pytest.raises(CandidateRefused, match="MB for the Gram matrix of the convolution 'each'"):
        collect_in_order(network[0], only, [network[1]], rounded, settings, max_memory_mb=needed * 0.99)
    assert isinstance(matrix.base, np.memmap)
    wild = {"x": np.full_like(network[1]["x"], np.inf)}
    with pytest.raises(CandidateRefused, match="NaN or Inf among the values of 'each'"):
        collect_in_order(network[0], only, [wild], rounded, settings, **options)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(CandidateRefused, match="TMPDIR"):
        collect_in_order(network[0], only, [network[1]], rounded, settings, **options)
