"""The target `openvino`: answers, kernels read from what it executes, and what it says where it cannot run."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import CLASSES, FEATURES, Tiny, tiny_samples
from driving import environment
from onnx import TensorProto, helper
from processors import AMX, AVX2, HERE, openvino_capabilities, source_alone
from qdq_models import Part, const, drawn, model, op, pair, product, weight

from flows.service.describe import candidate_rows, target_rows
from tasks.champion.manifest import runtime_requirements
from tasks.engines.catalog import find_target
from tasks.engines.given import take_up
from tasks.engines.openvino import session as openvino
from tasks.engines.openvino.coverage import profile_costs
from tasks.engines.openvino.kernels import ExecutedStep, executed_steps, kernels_by_node, products_behind
from tasks.engines.openvino.pairs import PAIRS
from tasks.engines.openvino.shipped.model import message_of
from tasks.engines.variants import refuse_other_targets, session_settings
from tasks.measure.inventory import take_inventory
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.eight_bit.qdq import quantize_qdq
from tasks.runtimes.coverage import measure_coverage
from tasks.runtimes.kernels import Kernel
from tasks.runtimes.runner import open_runner
from tasks.trials import make_candidate
from validators.digests import digest_file, digest_model
from validators.errors import CandidateRefused
from validators.gates.coverage import judge_coverage
from validators.job.candidate_name import decode
from validators.job.given_file import GivenFile
from validators.job.job_gates import Gates
from validators.job.read_job import parse_job
from validators.job.recipe_words import describe
from validators.processors import VNNI
from validators.records.run import SessionSettings, Variant

ROOT = Path(__file__).parents[2]
FLOAT = np.float32
CANDIDATE = "int8-static-minmax-pc@openvino"
CPU = SessionSettings("CPUExecutionProvider", 1)
OPENVINO = session_settings(decode(CANDIDATE), 1)
BF16 = session_settings(decode("bf16@openvino"), 1)
has_vnni = pytest.mark.skipif(not HERE.has_any(VNNI), reason="this processor has no VNNI")
has_bf16 = pytest.mark.skipif("BF16" not in openvino_capabilities(), reason="this processor has no bfloat16")


@pytest.fixture
def uninstalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "installed_version", lambda: None)


def quantized(tiny: Tiny, folder: Path, **options: Any) -> Path:
    path = folder / "variant.onnx"
    ranges = {"x": (-9.0, 9.0), "hidden": (0.0, 60.0)}
    given = {"every_operator": False, "activation": "uint8", "weights": Int8Weights()} | options
    quantize_qdq(tiny.model, path, ranges, rules=PAIRS, **given)
    return path


# Where it cannot run


def test_without_the_package_every_use_is_refused(uninstalled: None, tiny: Tiny) -> None:
    uses: list[Callable[[], object]] = [
        lambda: open_runner(tiny.model, OPENVINO).__enter__(),
        lambda: make_candidate._try(None, decode(CANDIDATE)),  # type: ignore[arg-type]  # refused before
    ]
    for use in uses:
        with pytest.raises(CandidateRefused, match="openvino is not installed") as caught:
            use()
        assert caught.value.kind == "unsupported" and "extra `openvino`" in caught.value.fix


def test_doctor_and_candidates_say_why(uninstalled: None, tiny: Tiny) -> None:
    state = {row[0]: row[1:] for row in target_rows()}
    assert state["openvino"][0] == "no" and "openvino is not installed" in state["openvino"][1]
    assert "install " in state["openvino"][2] and "openvino" in state["openvino"][2]
    job = parse_job(tiny.job(target="openvino", candidates="default"), base=Path())
    here = {row[0]: row[2] for row in candidate_rows(job)}
    assert here["int8-static-mse-pc@openvino"].startswith("refused: openvino is not installed")


def test_bfloat16_is_refused_where_the_processor_has_none() -> None:
    for name in ("bf16@openvino", "int8-static-mse-pc-bf16@openvino"):
        with pytest.raises(CandidateRefused, match="without bfloat16"):
            refuse_other_targets(decode(name), AVX2)
    with pytest.raises(CandidateRefused, match="bfloat16 for ort-cpu"):
        refuse_other_targets(decode("int8-static-mse-pc-bf16@ort-cpu"), AMX)


def test_the_version_is_part_of_the_device_of_an_approval() -> None:
    assert f"openvino {openvino.installed_version()}" in take_inventory("openvino").device_key
    assert "openvino" not in take_inventory("ort-cpu").device_key


def test_consumers_install_openvino_and_no_other_runtime() -> None:
    variant = Variant(CANDIDATE, Path("m"), "0" * 64, 1, OPENVINO)
    found = runtime_requirements(take_inventory("openvino"), variant)
    assert found == [f"openvino=={openvino.installed_version()}", f"numpy=={np.__version__}"]


def test_openvinos_own_format_answers_as_the_onnx_file(tiny: Tiny, tmp_path: Path) -> None:
    import openvino as ov

    ov.save_model(ov.Core().read_model(tiny.model), tmp_path / "model.xml", compress_to_fp16=False)
    with open_runner(tiny.model, OPENVINO) as ours, open_runner(tmp_path / "model.xml", OPENVINO) as own:
        assert [spec.name for spec in own.outputs] == [spec.name for spec in ours.outputs]
        batch = {"x": np.ones((3, FEATURES), FLOAT)}
        names = [spec.name for spec in ours.outputs]
        assert np.array_equal(own.run(batch, names)[0], ours.run(batch, names)[0])


def test_a_signal_after_two_models_reaches_its_handler(tiny: Tiny) -> None:
    """A service that loads a new champion, releases the old one, and is ended: this was a segmentation fault."""
    code = f"""
import signal
from pathlib import Path
from tasks.engines.openvino.shipped.model import OpenVinoModel

old = OpenVinoModel(Path({str(tiny.model)!r}), 1, {{}})
new = OpenVinoModel(Path({str(tiny.model)!r}), 1, {{}})
del old
del new
signal.signal(signal.SIGTERM, lambda *_: print("handled"))
signal.raise_signal(signal.SIGTERM)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr


def test_a_candidate_in_words() -> None:
    assert "INT8 or UINT8 activations by mse" in describe(decode("int8-static-mse-pc@openvino"))
    assert "as OpenVINO fuses it" in describe(decode("fp32-fused@openvino"))
    assert describe(decode("int8-static-mse-pc-all-bf16@openvino")).endswith("every operator, the rest in bfloat16")


# What it answers


def test_float_answers_are_those_of_onnxruntime(tiny: Tiny) -> None:
    batch = {"x": tiny_samples(33, 5)["x"]}
    with open_runner(tiny.model, CPU) as plain, open_runner(tiny.model, OPENVINO) as ours:
        assert ours.inputs[0].name == "x" and ours.inputs[0].dtype == "float32"
        assert ours.inputs[0].shape == (None, FEATURES) and ours.outputs[0].shape == (None, CLASSES)
        (expected,), (found,) = (runner.run(batch, ["logits"]) for runner in (plain, ours))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@has_bf16
def test_float32_is_asked_for_and_bfloat16_only_by_name(tiny: Tiny) -> None:
    """Its own default on such a processor is bfloat16, which is 2,000 times as far from float64."""
    batch = {"x": tiny_samples(33, 5)["x"]}
    first, bias, second = (array.astype(np.float64) for array in tiny.weights)
    exact = np.maximum(batch["x"] @ first + bias, 0) @ second
    errors = []
    for settings in (OPENVINO, BF16):
        with open_runner(tiny.model, settings) as runner:
            errors.append(np.abs(runner.run(batch, ["logits"])[0] - exact).max())
    assert errors[0] < 1e-3 < errors[1] / 10


def test_each_output_keeps_its_name(tmp_path: Path) -> None:
    """Equal tensors have one port with all their names."""
    nodes = [helper.make_node("Relu", ["x"], ["inner"]), helper.make_node("Identity", ["inner"], ["y"])]
    nodes.append(helper.make_node("Neg", ["x"], ["z"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in "xzy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    x = np.array([[-1.0, 2.0, 3.0]], FLOAT)
    with open_runner(tmp_path / "m.onnx", OPENVINO) as runner:
        assert [spec.name for spec in runner.outputs] == ["z", "y"]
        y, z = runner.run({"x": x}, ["y", "z"])
    assert y.tolist() == [[0, 2, 3]] and z.tolist() == [[1, -2, -3]]


def test_arrays_of_any_layout_and_scalars_are_taken(tmp_path: Path) -> None:
    """Arrays that are read-only, as mapped files are, reversed or in Fortran order; a scalar stays one."""
    value = helper.make_tensor_value_info
    ends = [
        value("x", TensorProto.FLOAT, ["n", 4]),
        value("c", TensorProto.FLOAT, []),
        value("y", TensorProto.FLOAT, ["n", 4]),
    ]
    graph = helper.make_graph([helper.make_node("Mul", ["x", "c"], ["y"])], "g", ends[:2], ends[2:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    x = np.arange(8, dtype=FLOAT).reshape(2, 4)
    x.flags.writeable = False
    with open_runner(tmp_path / "m.onnx", OPENVINO) as runner:
        for array in (x, x[:, ::-1], np.asfortranarray(x)):
            (found,) = runner.run({"x": array, "c": np.array(3, FLOAT)}, ["y"])
            np.testing.assert_array_equal(found, array * 3)


def test_threads_share_a_model(tiny: Tiny) -> None:
    """Two threads in one request of the runtime would be an error."""
    samples = [{"x": tiny_samples(8, seed)["x"]} for seed in range(4)]
    answers: dict[int, list[Any]] = {}
    with open_runner(tiny.model, OPENVINO) as runner:
        expected = [runner.run(batch, ["logits"])[0] for batch in samples]

        def ask(index: int) -> None:
            answers[index] = [runner.run(samples[index], ["logits"])[0] for _ in range(50)]

        threads = [threading.Thread(target=ask, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    for index, found in answers.items():
        assert len(found) == 50 and all(np.array_equal(one, expected[index]) for one in found)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"x": np.zeros((2, FEATURES))}, "x is float64"),
        ({"y": np.zeros((2, FEATURES), FLOAT)}, "no array for the input x"),
        ({"x": np.zeros((2, 63), FLOAT)}, "fails on the model"),
    ],
    ids=["another type", "another name", "another shape"],
)
def test_what_does_not_fit_is_refused(batch: dict[str, Any], words: str, tiny: Tiny) -> None:
    with open_runner(tiny.model, OPENVINO) as runner, pytest.raises(CandidateRefused, match=words):
        runner.run(batch, ["logits"])


def strings() -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, TensorProto.STRING, ["n"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


BROKEN: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "an unknown operator": (lambda: model(op("Swish", "x", "y", domain="acme"), floats=FLOAT), "acme.Swish"),
    "an operator without importer": (
        lambda: model(op("Unique", "x", "u") + op("Bernoulli", "x", "y"), floats=FLOAT),
        "Bernoulli",
    ),
    "strings": (strings, "x holds strings"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_models_that_it_does_not_compile_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    make, words = BROKEN[kind]
    onnx.save(make(), tmp_path / "model.onnx")
    with pytest.raises(CandidateRefused) as caught, open_runner(tmp_path / "model.onnx", OPENVINO):
        pass
    assert caught.value.kind == "invalid" and words in caught.value.found and "src/" not in caught.value.found


def test_a_dynamic_rank_is_refused_by_name(tmp_path: Path) -> None:
    made = model(op("Relu", "x", "y"), floats=FLOAT)
    made.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(made, tmp_path / "model.onnx")
    with (
        pytest.raises(CandidateRefused, match=r"dynamic rank\. Operation name: x"),
        open_runner(tmp_path / "model.onnx", OPENVINO),
    ):
        pass


def test_a_message_without_text_is_named_by_its_class() -> None:
    assert message_of(ValueError()) == "ValueError"
    assert message_of(RuntimeError("Check 'a' failed at src/x.cpp:1:\n")) == "Check 'a' failed at src/x.cpp:1:"


# What it executes


def planted(parts: Part, folder: Path, shape: tuple[int | str, ...] = ("n", 64)) -> Path:
    onnx.save(model(parts, shape, floats=FLOAT), folder / "planted.onnx")
    return folder / "planted.onnx"


PAIR = {"floats": FLOAT, "scale": 0.05}
WEIGHT = {"floats": FLOAT, "axis": 1}
PLANTED: dict[str, tuple[Part, bool]] = {
    "integers on both sides": (pair(**PAIR) + weight(64, 128, **WEIGHT) + product(), True),
    "a zero point": (pair(**PAIR, zero=5) + weight(64, 128, **WEIGHT) + product(), True),
    "float": (const(w=drawn(64, 128).astype(FLOAT)) + product("x w"), False),
    "activations without weights": (pair(**PAIR) + const(w=drawn(64, 128).astype(FLOAT)) + product("xd w"), False),
    "scales along K": (pair(**PAIR) + weight(64, 128, floats=FLOAT, axis=0) + product(), False),
    # Of a weight-only form, the kernel reads the integers.
    "weights alone": (weight(64, 128, **WEIGHT) + product("x wd"), True),
    "two products of activations": (
        pair(**PAIR) + op("Transpose", "x", "t", perm=[1, 0]) + pair("t", "td", **PAIR) + product("xd td"),
        True,
    ),
    "one side of two activations": (
        pair(**PAIR) + op("Transpose", "x", "t", perm=[1, 0]) + product("xd t"),
        False,
    ),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_coverage_is_that_of_what_ran(kind: str, tmp_path: Path) -> None:
    parts, is_low = PLANTED[kind]
    found = measure_coverage(planted(parts, tmp_path), OPENVINO, {"x": np.ones((256, 64), FLOAT)})
    assert found.unknown == 0 and found.providers == ("OpenVINO",)
    assert found.share == (1.0 if is_low else 0.0), found.macs_by_kernel
    assert found.time_share is not None and (found.time_share > 0) == is_low
    assert found.float_nodes == (() if is_low else ("y",))
    verdict = judge_coverage(CANDIDATE, found, Gates(min_coverage=0.5))
    assert verdict is not None and verdict.outcome == ("pass" if is_low else "fail")


def test_float_operator_between_products_leaves_second_in_float(tmp_path: Path) -> None:
    """Of 4 x 64 x 128 and 4 x 128 x 32 multiply-accumulates, two thirds run in integers."""
    parts = pair(**PAIR) + weight(64, 128, **WEIGHT) + product(output="h") + op("Erf", "h", "e")
    parts += const(w2=drawn(128, 32).astype(FLOAT)) + product("e w2")
    found = measure_coverage(planted(parts, tmp_path), OPENVINO, {"x": np.ones((4, 64), FLOAT)}, folder=tmp_path)
    assert found.share == pytest.approx(2 / 3) and found.float_nodes == ("y",)
    assert sum(found.macs_by_kernel.values()) == 4 * 64 * 128 + 4 * 128 * 32
    assert found.time_share is not None and 0 <= found.time_share <= 1
    assert found.kernels_path is not None and "FullyConnected" in found.kernels_path.read_text()


@pytest.mark.parametrize(("axis", "is_low"), [(0, True), (1, False)])
def test_convolution_with_scales_by_input_channel_is_float(axis: int, is_low: bool, tmp_path: Path) -> None:
    """2 samples of 5 x 5 places, 6 channels out, 3 x 3 places of 4 channels in: 2*25*6*9*4."""
    parts = pair(**PAIR) + weight(6, 4, 3, 3, floats=FLOAT, axis=axis) + product(kind="Conv")
    path = planted(parts, tmp_path, ("n", 4, 7, 7))
    found = measure_coverage(path, OPENVINO, {"x": np.ones((2, 4, 7, 7), FLOAT)})
    assert sum(found.macs_by_kernel.values()) == 2 * 25 * 6 * 9 * 4
    assert found.share == (1.0 if is_low else 0.0), found.macs_by_kernel


def test_float_product_beside_integer_one_counts_as_float(tmp_path: Path) -> None:
    """Both run in one step, named by the integers of the first. Scores and context have as many multiply-accumulates."""
    parts = (
        pair(**PAIR)
        + op("Transpose", "x", "t", perm=[0, 2, 1])
        + pair("t", "td", **PAIR)
        + product("xd td", output="s")
    )
    parts += op("Softmax", "s", "p") + product("p x")
    found = measure_coverage(planted(parts, tmp_path, ("n", 16, 16)), OPENVINO, {"x": np.ones((2, 16, 16), FLOAT)})
    assert sum(found.macs_by_kernel.values()) == 2 * 2 * 16**3
    assert found.share == 0.5 and found.float_nodes == ("y",), found.macs_by_kernel


@has_bf16
def test_bfloat16_counts_as_half_precision(tiny: Tiny) -> None:
    batch = {"x": np.ones((4, FEATURES), FLOAT)}
    asked, silent = (measure_coverage(tiny.model, settings, batch) for settings in (BF16, OPENVINO))
    assert asked.half_share == 1 and asked.share == 0
    assert silent.half_share == 0
    verdict = judge_coverage("bf16@openvino", silent, Gates(min_coverage=0.5))
    assert verdict is not None and verdict.outcome == "fail" and "16 bits" in verdict.reason


def test_the_form_for_openvino_runs_in_integers(tiny: Tiny, tmp_path: Path) -> None:
    found = measure_coverage(quantized(tiny, tmp_path), OPENVINO, {"x": np.zeros((3, FEATURES), FLOAT)})
    assert found.share == 1 and found.unknown == 0


@has_vnni
@pytest.mark.parametrize("per_channel", [True, False])
def test_activations_are_quantized_at_run_time_by_named_group(per_channel: bool, tiny: Tiny, tmp_path: Path) -> None:
    """Against float64: the weights' rounding alone without a group, and 8 bits of the activations with one."""
    path = tmp_path / "dynamic.onnx"
    weights = Int8Weights(per_channel)
    quantize_qdq(tiny.model, path, None, rules=PAIRS, every_operator=False, activation="uint8", weights=weights)
    batch = {"x": tiny_samples(33, 5)["x"]}
    with open_runner(path, replace(CPU, optimization="basic")) as plain:
        (exact,) = plain.run(batch, ["logits"])
    errors = []
    for settings in (session_settings(decode("int8-dynamic-pc@openvino"), 1), OPENVINO):
        with open_runner(path, settings) as runner:
            errors.append(np.abs(runner.run(batch, ["logits"])[0] - exact).max() / np.abs(exact).max())
    assert errors[1] < 1e-5 and 1e-4 < errors[0] < 0.05
    found = measure_coverage(path, session_settings(decode("int8-dynamic-pc@openvino"), 1), batch)
    assert found.share == 1 and found.unknown == 0


def test_an_unknown_option_is_refused_by_name(tiny: Tiny) -> None:
    settings = session_settings(decode("fp32-fused@openvino"), 1, (), {"NUM_STREEMS": "2"})
    with pytest.raises(CandidateRefused, match="NUM_STREEMS"), open_runner(tiny.model, settings):
        pass


def test_products_are_found_behind_what_was_fused_into_them(tiny: Tiny) -> None:
    graph = onnx.load(tiny.model).graph
    behind = products_behind(graph, {"first_matmul", "second_matmul"})
    assert behind == {
        "first_matmul": "first_matmul",
        "first_add": "first_matmul",
        "relu": "first_matmul",
        "second_matmul": "second_matmul",
        "logits": "second_matmul",
    }
    graph.node.append(onnx.helper.make_node("Add", ["logits", "product"], ["both"], name="both"))
    assert "both" not in products_behind(graph, {"first_matmul", "second_matmul"}), "it is of two products"


LOW, PLAIN = (
    Kernel("FullyConnected brgemm_i8", is_low_precision=True),
    Kernel("FullyConnected gemm_f32", is_low_precision=False),
)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([("Reorder", LOW, ("conv",))], {}),
        ([("Eltwise", LOW, ("conv",))], {}),
        ([("Convolution", LOW, ("conv_2/x",))], {}),
        ([("Convolution", LOW, ("conv/WithoutBiases",))], {"conv": LOW}),
        # Two steps of one product, one of them in float.
        ([("FullyConnected", LOW, ("conv",)), ("FullyConnected", PLAIN, ("conv/b",))], {"conv": PLAIN}),
        # Compiled element by element, from operators behind a product.
        ([("FullyConnected", PLAIN, ("conv",)), ("Subgraph", LOW, ("add",))], {"conv": PLAIN}),
        ([("Subgraph", LOW, ("softmax", "conv"))], {"conv": LOW}),
    ],
)
def test_steps_are_matched_with_products(steps: list[Any], expected: dict[str, Kernel]) -> None:
    made = [ExecutedStep(nodes[0], kernel, kind, nodes, 1.0) for kind, kernel, nodes in steps]
    assert kernels_by_node(made, {"conv": "conv", "add": "conv"}) == expected


# What consumers get


CONSUMER = """
import sys
from importlib import util
spec = util.spec_from_file_location("consumer", sys.argv[1])
consumer = util.module_from_spec(spec)
spec.loader.exec_module(consumer)
sys.modules["openvino"] = None
RUNTIME = {"runtime": "openvino", "runtime_version": "2026.4.1"}
try:
    consumer._open(None, {"session": {}, "loader": "tasks.engines.openvino.shipped.model"} | RUNTIME)
except RuntimeError as error:
    print(error)
"""


CACHED = """
import sys, warnings
from importlib import util
from pathlib import Path
import numpy as np
spec = util.spec_from_file_location("consumer", sys.argv[1])
consumer = util.module_from_spec(spec)
spec.loader.exec_module(consumer)
consumer._check_device = lambda hardware: None
options = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"}
manifest = {
    "runtime": "openvino", "runtime_version": consumer.metadata.version("openvino"), "hardware": {}, "engine": None,
    "compiled": False, "libraries": [], "files": {}, "artifact": "model.onnx",
    "loader": "tasks.engines.openvino.shipped.model",
}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    session = {"threads": 1, "provider_options": options}
    consumer._threads = lambda approved, hardware: approved
    model = consumer._open(Path(sys.argv[2]), manifest | {"session": session})
print([str(one.message) for one in caught if "QUANTGATE_CACHE" in str(one.message)])
print(model.compiled.get_property("LOADED_FROM_CACHE"))
print(float(model.run({"x": np.ones((1, 64), np.float32)})[0].sum()))
"""


def test_consumers_keep_the_compiled_model_where_they_may_write(tiny: Tiny, tmp_path: Path) -> None:
    """The second load takes it from the folder and answers alike; where a file is in the way, there is a warning."""
    (tmp_path / "model.onnx").write_bytes(tiny.model.read_bytes())
    (tmp_path / "file").write_text("in the way")
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        CACHED,
        str(ROOT / "tasks/champion/consumer/consumer.py"),
        str(tmp_path),
    ]
    found = []
    for folder in ("", "cache", "cache", "file/cache"):
        where = {"QUANTGATE_CACHE": str(tmp_path / folder)} if folder else {}
        done = subprocess.run(command, env=environment(tmp_path, **where), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        found.append(done.stdout.splitlines())
    assert [lines[1] for lines in found] == ["False", "False", "True", "False"]
    assert len({lines[2] for lines in found}) == 1
    assert [lines[0] == "[]" for lines in found] == [True, True, True, False] and "to write to" in found[3][0]


def test_a_consumer_without_the_package_is_told_what_to_install(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", CONSUMER, str(ROOT / "tasks/champion/consumer/consumer.py")]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "found no package openvino; expected openvino==2026.4.1" in done.stdout


@pytest.fixture
def their_ir(tiny: Tiny, tmp_path: Path) -> Path:
    """What another tool may have saved for OpenVINO: the INT8 file with other names of its input and output."""
    import openvino as ov

    converted = ov.convert_model(quantized(tiny, tmp_path))
    converted.inputs[0].get_tensor().set_names({"features"})
    converted.outputs[0].get_tensor().set_names({"scores", "scores:0"})
    ov.save_model(converted, tmp_path / "theirs.xml", compress_to_fp16=False)
    return tmp_path / "theirs.xml"


def test_a_file_of_openvino_is_taken_up_and_covered(their_ir: Path, tiny: Tiny, tmp_path: Path) -> None:
    """With the names of the source, the answers of the INT8 file, and every product in integers, from the `.xml` itself."""
    names = {"inputs": {"features": "x"}, "outputs": {"scores": "logits"}}
    given = GivenFile.model_validate({"name": "theirs", "file": their_ir, "engine": "openvino"} | names)
    path = tmp_path / "taken.xml"
    told = take_up(find_target("openvino").takes[".xml"], given, path, OPENVINO, source_alone(tiny.model))
    assert "OpenVINO wrote it" in told["the file"]
    assert digest_model(path) != digest_file(path)  # the weights count
    batch = {"x": np.asarray(tiny_samples(8, 2)["x"], FLOAT)}
    with open_runner(path, OPENVINO) as found, open_runner(quantized(tiny, tmp_path), OPENVINO) as expected:
        assert np.allclose(found.run(batch, ["logits"])[0], expected.run(batch, ["logits"])[0], atol=1e-3)
    coverage = measure_coverage(path, OPENVINO, batch)
    assert coverage.share == 1 and sum(coverage.macs_by_kernel.values()) == 8 * (64 * 128 + 128 * 4)
    float_file = quantized_as_float(tiny, tmp_path)
    assert measure_coverage(float_file, OPENVINO, batch).share == 0


def quantized_as_float(tiny: Tiny, folder: Path) -> Path:
    """OpenVINO's file of the float model."""
    import openvino as ov

    ov.save_model(ov.convert_model(tiny.model), folder / "float.xml", compress_to_fp16=False)
    return folder / "float.xml"


def test_a_broken_file_of_openvino_is_refused(their_ir: Path, tiny: Tiny, tmp_path: Path) -> None:
    given = GivenFile.model_validate({"name": "theirs", "file": their_ir, "engine": "openvino"})
    with pytest.raises(CandidateRefused, match="features"):
        take_up(
            find_target("openvino").takes[".xml"], given, tmp_path / "taken.xml", OPENVINO, source_alone(tiny.model)
        )
    their_ir.with_suffix(".bin").write_bytes(b"")
    with pytest.raises(CandidateRefused, match=r"theirs\.xml"):
        take_up(
            find_target("openvino").takes[".xml"], given, tmp_path / "taken.xml", OPENVINO, source_alone(tiny.model)
        )
    their_ir.write_text(their_ir.read_text()[:500])
    with pytest.raises(CandidateRefused, match=r"does not read theirs\.xml"):
        take_up(
            find_target("openvino").takes[".xml"], given, tmp_path / "taken.xml", OPENVINO, source_alone(tiny.model)
        )


# What a part costs


def test_times_leave_out_the_first_requests() -> None:
    """Counters are means of all requests so far: a first one of 9 ms, then blocks of 40 and of 20 microseconds each."""
    durations = [9000.0, 100.0, *[40.0] * 4, *[20.0] * 4]
    done: list[float] = []

    def told() -> Any:
        info = {
            "execTimeMcs": str(round(sum(done) / len(done))),
            "layerType": "FullyConnected",
            "primitiveType": "brgemm_avx512_i8",
            "originalLayersNames": "product",
        }
        step = SimpleNamespace(
            get_rt_info=lambda: {
                key: SimpleNamespace(astype=lambda _, value=value: value) for key, value in info.items()
            },
            get_friendly_name=lambda: "product",
            inputs=list,
        )
        return SimpleNamespace(get_ordered_ops=lambda: [step])

    compiled = SimpleNamespace(get_runtime_model=told)
    for blocks, expected in ((1, 40.0), (2, 20.0)):
        done.clear()
        (step,) = executed_steps(
            compiled, lambda: done.append(durations[len(done)]), requests=4, warm_up=2, blocks=blocks
        )
        assert step.microseconds == pytest.approx(expected, abs=(2 + 4 * blocks) / 4)


def test_what_a_product_costs_has_what_follows_it(tmp_path: Path) -> None:
    """Eight times the columns, with an activation behind: its share of the request is the larger one."""
    small, large = drawn(FEATURES, 64).astype(FLOAT), drawn(64, 2048).astype(FLOAT)
    nodes = [
        helper.make_node("MatMul", ["x", "small"], ["a"], name="small product"),
        helper.make_node("Erf", ["a"], ["b"], name="between"),
        helper.make_node("MatMul", ["b", "large"], ["c"], name="large product"),
        helper.make_node("Erf", ["c"], ["y"], name="behind"),
    ]
    graph = helper.make_graph(
        nodes,
        "two products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2048])],
        [onnx.numpy_helper.from_array(small, "small"), onnx.numpy_helper.from_array(large, "large")],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    (costs,) = profile_costs([path], {"x": drawn(64, FEATURES).astype(FLOAT)}, OPENVINO)
    assert costs.timed and costs.by_node.keys() == {"small product", "large product"}
    assert costs.by_node["large product"] > costs.by_node["small product"] >= 0
    assert sum(costs.by_node.values()) <= costs.total + 1e-6
