"""Files that OpenVINO computes as they say, a note where it does not, and float graphs that a pass must not change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fuzz import draw_model
from odd import Odd, distance, draw, model_of, node, run, weights

from tasks.engines.openvino import signs
from tasks.engines.openvino.signs import make_factors_positive
from tasks.engines.variants import make_variant
from tasks.ptq.eight_bit import smooth, smoothed_graph
from tasks.ptq.weight_only import matmul_nbits
from tasks.runtimes.runner import open_runner
from validators.errors import CandidateRefused
from validators.job.candidate_name import decode
from validators.records.run import Variant

STATIC = "int8-static-mse-pc@openvino"
GAINS = draw(64, seed=3)


def scaled(kind: str = "Mul", *more: onnx.NodeProto) -> onnx.ModelProto:
    """A product with factors of both signs, then MatMul."""
    if kind == "LayerNormalization":
        first = node(kind, ["x", "g"], ["h"], axis=-1, name="scale")
    else:
        first = node(kind, ["x", "g"], ["h"], name="scale")
    w = {"w": draw(64, 64, seed=1) / 8, "g": np.sign(GAINS) * np.maximum(np.abs(GAINS), 0.2)}
    return model_of([first, node("MatMul", ["h", "w"], ["y" if not more else "m"], name="last"), *more], w)


def odd_of(model: onnx.ModelProto, folder: Path) -> Odd:
    onnx.save(model, folder / "source.onnx")
    return Odd(folder / "source.onnx", folder)


def made(odd: Odd, candidate: str, folder: Path) -> Variant:
    (folder / "made").mkdir(exist_ok=True)
    return make_variant(decode(candidate), odd.materials, folder / "made", threads=1)


def apart(odd: Odd, variant: Variant) -> float:
    """How far OpenVINO's answers are from those of ONNX Runtime for the same file."""
    batch = odd.batch(16, 9)
    with open_runner(variant.path, variant.session) as runner:
        return distance(run(variant.path, batch, "basic"), runner.run(batch, ["y"])[0])


def test_residual_sum_reads_the_integers_that_convolutions_read(tmp_path: Path) -> None:
    """A tensor that is added to a convolution's result, and read by a convolution."""
    w = {f"w{i}": draw(4, 4, 3, 3, seed=i) / 6 for i in range(2)}
    w |= {"w2": draw(64, 64, seed=2) / 8, "image": np.array([-1, 4, 4, 4])}
    nodes = [
        node("Reshape", ["x", "image"], ["i"], name="image"),
        node("Conv", ["i", "w0"], ["h"], pads=[1, 1, 1, 1], name="first"),
        node("Conv", ["h", "w1"], ["c"], pads=[1, 1, 1, 1], name="second"),
        node("Add", ["c", "h"], ["sum"], name="residual"),
        node("Flatten", ["sum"], ["flat"], name="flat"),
        node("MatMul", ["flat", "w2"], ["y"], name="last"),
    ]
    odd = odd_of(model_of(nodes, w), tmp_path)
    variant = made(odd, STATIC, tmp_path)
    assert variant.changes["nodes in INT8"] == 3
    assert apart(odd, variant) < 0.03
    assert not any("another function" in note for note in variant.notes)


def test_an_engine_that_answers_a_request_in_two_ways_is_refused(tmp_path: Path) -> None:
    """Behind this If, OpenVINO's first answer of a larger size is memory that it did not write; the second is right."""
    model, _, steps = draw_model(990)
    assert "branch" in steps
    odd = odd_of(model, tmp_path)
    with pytest.raises(CandidateRefused, match="one request in two ways: 'y'") as caught:
        made(odd, "fp32-fused@openvino", tmp_path)
    assert caught.value.kind == "unsupported"
    assert made(odd, "fp32-fused@ort-cpu", tmp_path).notes == ()


@pytest.mark.parametrize("kind", ["Mul", "Div", "LayerNormalization"])
def test_factors_of_both_signs_are_computed_as_written(tmp_path: Path, kind: str) -> None:
    """In INT8, with the signs in the weights."""
    odd = odd_of(scaled(kind), tmp_path)
    variant = made(odd, STATIC, tmp_path)
    assert variant.changes["nodes in INT8"] == 1
    assert apart(odd, variant) < 0.02
    assert not any("another function" in note for note in variant.notes)
    assert distance(run(odd.source, odd.batch(16, 9)), run(variant.path, odd.batch(16, 9), "basic")) < 0.05


def test_signs_move_exactly_and_only_where_all_readers_take_them(tmp_path: Path) -> None:
    model = scaled()
    onnx.save(model, tmp_path / "before.onnx")
    assert make_factors_positive(model.graph) == 1
    onnx.save(model, tmp_path / "after.onnx")
    batch = {"x": draw(16, 64, seed=9)}
    np.testing.assert_array_equal(run(tmp_path / "before.onnx", batch), run(tmp_path / "after.onnx", batch))
    assert make_factors_positive(scaled("Mul", node("Add", ["m", "h"], ["y"])).graph) == 0


def test_a_product_behind_signs_that_cannot_move_stays_in_float(tmp_path: Path) -> None:
    odd = odd_of(
        scaled("Mul", node("Add", ["m", "h"], ["r"]), node("MatMul", ["r", "w"], ["y"], name="more")), tmp_path
    )
    variant = made(odd, STATIC, tmp_path)
    assert any("negative constants" in reason for reason in variant.changes) and variant.changes["nodes in INT8"] == 1
    assert apart(odd, variant) < 0.02


def test_signs_count_through_products_with_further_constants(tmp_path: Path) -> None:
    """OpenVINO merges both into one: the product behind stays in float, which leaves nothing in INT8."""
    nodes = [
        node("Mul", ["x", "g"], ["p"]),
        node("Div", ["p", "d"], ["h"]),
        node("MatMul", ["h", "w"], ["y"], name="m"),
    ]
    model = model_of(nodes, {"g": GAINS, "d": np.exp(GAINS), "w": draw(64, 64, seed=1) / 8})
    with pytest.raises(CandidateRefused, match="negative constants"):
        made(odd_of(model, tmp_path), STATIC, tmp_path)


def test_a_function_that_the_engine_changes_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file without the remedy: the loss is not INT8's, and the variant says so."""
    monkeypatch.setattr(signs, "negative_factor", lambda view, node: None)
    odd = odd_of(scaled(), tmp_path)
    variant = made(odd, STATIC, tmp_path)
    assert apart(odd, variant) > 0.5
    assert any("OpenVINO computes another function than the file" in note for note in variant.notes)


def test_a_tied_embedding_in_int4_opens_in_openvino(tmp_path: Path) -> None:
    """The head reads constants, which a Reshape would hide from OpenVINO."""
    nodes = [
        node("ArgMax", ["x"], ["row"], axis=1, keepdims=0, name="loudest"),
        node("Gather", ["table", "row"], ["e"], name="look_up"),
        node("Add", ["x", "e"], ["a"], name="add"),
        node("Transpose", ["table"], ["t"], perm=[1, 0], name="turn"),
        node("MatMul", ["a", "t"], ["y"], name="head"),
    ]
    model = model_of(nodes, {"table": draw(64, 64, seed=2) / 8})
    odd = odd_of(model, tmp_path)
    variant = made(odd, "int4-g32-rtn@openvino", tmp_path)
    assert apart(odd, variant) < 0.02
    assert variant.changes["constants stored twice, for the embedding and for the head"] == 3


@pytest.mark.parametrize("candidate", ["int8-static-mse-pc-smooth@ort-cpu", "int4-g32-awq@ort-cpu"])
def test_a_pass_that_changes_the_function_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, candidate: str
) -> None:
    """Factors that reach the weights squared."""
    norm = node("LayerNormalization", ["x", "g"], ["n"], axis=-1, name="norm")
    constants = weights() | {"g": np.exp(2 * GAINS)}
    layers = [
        norm,
        node("MatMul", ["n", "w1"], ["p"], name="first"),
        node("Tanh", ["p"], ["h"], name="tanh"),
        node("MatMul", ["h", "w2"], ["y"], name="second"),
    ]
    odd = odd_of(model_of(layers, constants), tmp_path)
    made(odd, candidate, tmp_path)  # not refused as it is
    wrong = odd_of(model_of(layers, constants), tmp_path)
    if "smooth" in candidate:
        right = smooth.multiply_rows
        monkeypatch.setattr(smooth, "multiply_rows", lambda view, layers, factors: right(view, layers, factors**2))
        with pytest.raises(CandidateRefused, match="after smoothing"):
            smoothed_graph.make_smoothed(lambda: wrong.prepared, wrong.samples, None, 0, (), True, tmp_path)
    else:
        fold = matmul_nbits.scale_channels

        def off(*given: object, **options: object) -> object:
            found = fold(*given, **options)  # type: ignore[arg-type]  # passed on as it is
            found.factors = {name: factors**2 for name, factors in found.factors.items()}
            return found

        monkeypatch.setattr(matmul_nbits, "scale_channels", off)
        with pytest.raises(CandidateRefused, match="after the scaling of awq"):
            made(wrong, candidate, tmp_path)
