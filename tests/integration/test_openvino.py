"""The target `ort-openvino`: what is said where it cannot run, what a profile tells of its kernels, and a run where it can."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from conftest import FEATURES, Tiny
from driving import environment
from tasks.runtimes.openvino_kernels import kernels_by_node, products_behind

from flows.service.describe import candidate_rows, target_rows
from tasks.champion.manifest import runtime_requirements
from tasks.measure.inventory import take_inventory
from tasks.measure.latency.compare import Contestant, compare_latency
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.eight_bit.qdq import quantize_qdq
from tasks.runtimes import coverage, openvino
from tasks.runtimes.ort import open_session, run_batches
from tasks.trials import make_candidate
from validators.errors import CandidateRefused
from validators.gates.coverage import judge_coverage
from validators.job.candidate_name import decode
from validators.job.job_gates import Gates
from validators.job.job_measurement import Measurement
from validators.job.read_job import parse_job
from validators.job.recipe_words import describe
from validators.providers import OPENVINO_PROVIDER
from validators.records.measurements import UNNAMED, Coverage
from validators.records.run import Inventory, SessionSettings, Variant

ROOT = Path(__file__).parents[2]
CPU, OPENVINO = SessionSettings("CPUExecutionProvider", 1), SessionSettings(OPENVINO_PROVIDER, 1)
CANDIDATE = "int8-static-minmax-pc@ort-openvino"
MISSING = openvino.why_missing()
offered = pytest.mark.skipif(
    MISSING is not None, reason="the OpenVINO provider offers no device here: " + (MISSING.found if MISSING else "")
)


@pytest.fixture
def uninstalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "MODULE", "no_such_module")


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An installed plugin that offers nothing on a processor of another maker; the libraries that were registered."""
    registered: list[str] = []
    cpu = SimpleNamespace(type=ort.OrtHardwareDeviceType.CPU, vendor="AMD", vendor_id=0x1022)
    monkeypatch.setattr(openvino, "installed_version", lambda: "1.8.1")
    monkeypatch.setattr(openvino, "library_path", lambda: "/plugin.so")
    monkeypatch.setattr(ort, "register_execution_provider_library", lambda name, path: registered.append(path))
    monkeypatch.setattr(ort, "get_ep_devices", lambda: [SimpleNamespace(ep_name=CPU.provider, device=cpu)])
    return registered


# What is said where it cannot run


def test_without_the_package_every_use_is_refused(uninstalled: None, tiny: Tiny) -> None:
    words = "onnxruntime-ep-openvino is not installed"
    uses: list[Callable[[], object]] = [
        openvino.find_device,
        lambda: open_session(tiny.model, OPENVINO).__enter__(),
        lambda: make_candidate._try(*[None] * 3, decode(CANDIDATE)),  # type: ignore[arg-type]  # refused before
    ]
    for use in uses:
        with pytest.raises(CandidateRefused, match=words) as caught:
            use()
        assert caught.value.kind == "unsupported"
        assert "extra `openvino`" in caught.value.fix


def test_a_processor_that_the_plugin_does_not_take_is_named(no_device: list[str]) -> None:
    with pytest.raises(CandidateRefused, match="offers no device for this processor, made by AMD") as caught:
        openvino.find_device()
    assert no_device == ["/plugin.so"]
    assert "Intel" in caught.value.expected and "ort-cpu" in caught.value.fix


def test_a_plugin_that_does_not_load_is_refused_with_what_the_runtime_says(
    no_device: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str, path: str) -> None:
        raise RuntimeError("undefined symbol: OrtGetApi\nmore")

    monkeypatch.setattr(ort, "register_execution_provider_library", fail)
    with pytest.raises(CandidateRefused, match=r"does not load .*undefined symbol: OrtGetApi"):
        openvino.find_device()


def test_a_plugin_that_another_registered_is_used(no_device: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def again(name: str, path: str) -> None:
        raise RuntimeError("EP library is already registered under " + name)

    monkeypatch.setattr(ort, "register_execution_provider_library", again)
    with pytest.raises(CandidateRefused, match="offers no device"):
        openvino.find_device()
    cpu = SimpleNamespace(type=ort.OrtHardwareDeviceType.CPU)
    mine = SimpleNamespace(ep_name=OPENVINO_PROVIDER, device=cpu)
    monkeypatch.setattr(ort, "get_ep_devices", lambda: [SimpleNamespace(ep_name="Other", device=cpu), mine])
    assert openvino.find_device() is mine


def test_doctor_and_candidates_say_why(uninstalled: None, tiny: Tiny) -> None:
    state = {row[0]: row[1:] for row in target_rows()}
    assert state["ort-openvino"][0] == "no"
    assert "onnxruntime-ep-openvino is not installed" in state["ort-openvino"][1]
    assert state["ort-openvino"][2].endswith(f"install {openvino.DISTRIBUTION}=={openvino.VERSION}")
    job = parse_job(tiny.job(target="ort-openvino", candidates="default"), base=Path())
    here = {row[0]: row[2] for row in candidate_rows(job)}
    assert here["int8-static-mse-pc@ort-openvino"].startswith("refused: onnxruntime-ep-openvino is not installed")
    assert here["int8-static-mse-pc@ort-cpu"] == "yes"


def test_doctor_names_a_processor_that_is_not_taken(no_device: list[str]) -> None:
    (row,) = [row for row in target_rows() if row[0] == "ort-openvino"]
    assert row[1] == "no" and "made by AMD" in row[2] and "made by Intel" in row[2]


def test_the_inventory_has_the_plugin_where_it_runs_alone(
    no_device: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its version is part of what an approval is tied to."""
    without = take_inventory("ort-openvino")
    assert openvino.DISTRIBUTION not in without.runtimes
    monkeypatch.setattr(openvino, "why_missing", lambda: None)
    found = take_inventory("ort-openvino")
    assert found.runtimes[openvino.DISTRIBUTION] == "1.8.1"
    assert "onnxruntime-ep-openvino 1.8.1" in found.device_key


def test_a_candidate_in_words() -> None:
    assert "INT8 or UINT8 activations by mse" in describe(decode("int8-static-mse-pc@ort-openvino"))
    assert "as OpenVINO fuses it" in describe(decode("fp32-fused@ort-openvino"))


# How it is asked to compute, and what its consumers need


def test_threads_and_float32_are_asked_for() -> None:
    config = json.loads(openvino.provider_options(3)["load_config"])["CPU"]
    assert config == {"INFERENCE_NUM_THREADS": "3", "NUM_STREAMS": "1", "INFERENCE_PRECISION_HINT": "f32"}


@pytest.mark.parametrize(("settings", "count"), [(CPU, 1), (OPENVINO, 2)])
def test_consumers_install_the_plugin_where_it_is_needed(settings: SessionSettings, count: int) -> None:
    runtimes = {"onnxruntime": "1.31.1", "onnx": "1.23.2", openvino.DISTRIBUTION: "1.8.1"}
    inventory = Inventory("ort-openvino", "cpu", (), 2, 1, "Linux", "3.11", runtimes, (), 0.0)
    variant = Variant(CANDIDATE, Path("m"), "0" * 64, 1, settings)
    found = [line for line in runtime_requirements(inventory, variant) if line.startswith("onnxruntime")]
    assert found == ["onnxruntime==1.31.1", "onnxruntime-ep-openvino==1.8.1"][:count]


CONSUMER = """
import sys, types, warnings
warnings.simplefilter("ignore")
import onnxruntime as ort
from importlib import metadata, util
spec = util.spec_from_file_location("consumer", sys.argv[1])
consumer = util.module_from_spec(spec)
spec.loader.exec_module(consumer)
plugin = {"distribution": "no-such-plugin", "version": "1.8.1", "module": "no_such_plugin", "options": {}}
for installed in (False, True):
    if installed:
        sys.modules["no_such_plugin"] = types.SimpleNamespace(get_library_path=lambda: "/plugin.so")
        metadata.version = lambda name: "1.8.1"
        ort.register_execution_provider_library = lambda name, path: None
    try:
        consumer._plugin_device("OpenVINOExecutionProvider", plugin)
    except RuntimeError as error:
        print(error)
"""


def test_a_consumer_says_what_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CONSUMER, str(ROOT / "tasks" / "champion" / "consumer" / "consumer.py")]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    absent, refused = done.stdout.splitlines()[-2:]
    assert "no-such-plugin" in absent and absent.endswith("install no-such-plugin==1.8.1")
    assert "without a device for this processor" in refused and "ort-cpu" in refused


# What a profile tells of kernels


def ran(name: str, kind: str, how: str) -> dict[str, Any]:
    return {"cat": "Kernel", "name": f"OV::{name}", "args": {"ov_node_type": kind, "ov_exec_type": how}}


def node_event(provider: str, name: str, kernel: str) -> dict[str, Any]:
    return {"cat": "Node", "name": f"{name}_kernel_time", "dur": 1, "args": {"provider": provider, "op_name": kernel}}


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


@pytest.mark.parametrize(
    ("kind", "how", "low"),
    [
        ("FullyConnectedQuantizedLegacy", "brgemm_avx512_i8", True),
        ("GroupConvolution", "brgconv_avx512_dw_I8", True),
        ("FullyConnectedCompressed", "brgemm_avx512_f32", True),
        ("FullyConnected", "brgemm_avx512_f32", False),
        ("Convolution", "brgconv_avx512_bf16", False),
    ],
)
def test_kernels_by_the_names_that_the_provider_gives(kind: str, how: str, low: bool) -> None:
    """As version 1.8.1 named them for models of INT8, INT4 and float."""
    found = kernels_by_node([ran("a/conv/WithoutBiases", kind, how)], {"a/conv": "a/conv"})
    assert found["a/conv"].name == f"{kind} {how}"
    assert found["a/conv"].is_low_precision is low


def test_steps_that_are_no_products_are_not_kernels_of_one() -> None:
    events = [ran("conv", "Reorder", "jit_uni_I8"), ran("conv_2/x", "Convolution", "brgconv_I8"), {"cat": "Session"}]
    assert kernels_by_node(events, {"conv": "conv"}) == {}


def profiled(monkeypatch: pytest.MonkeyPatch, events: list[dict[str, Any]]) -> None:
    """Let the profile of the provider be these events; that of the model as written stays what the runtime gives."""
    real = coverage.profile

    def profile(model: Path, settings: SessionSettings, *rest: Any, **options: Any) -> list[dict[str, Any]]:
        return events if settings.provider == OPENVINO_PROVIDER else real(model, settings, *rest, **options)

    monkeypatch.setattr(coverage, "profile", profile)


def quantized(tiny: Tiny, folder: Path) -> Path:
    return as_integers(tiny.model, folder, {"x": (-9.0, 9.0), "hidden": (0.0, 60.0)})


def as_integers(model: Path, folder: Path, ranges: dict[str, tuple[float, float]]) -> Path:
    path = folder / "variant.onnx"
    quantize_qdq(
        model,
        path,
        ranges,
        target="ort-openvino",
        every_operator=False,
        activation="uint8",
        weights=Int8Weights(),
    )
    return path


def test_coverage_counts_what_is_named_and_says_what_is_not(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two products, the second is named in turn as an integer one, not at all, and as left to the CPU provider twice."""
    hidden, classes = tiny.weights[2].shape
    batch = {"x": np.zeros((3, FEATURES), np.float32)}
    first, second = 3 * FEATURES * hidden, 3 * hidden * classes
    integer = [ran("first_matmul", "FullyConnected", "brgemm_avx512_I8"), node_event(OPENVINO.provider, "all", "all")]
    for more, low, unknown, floats in (
        ([ran("second_matmul/x", "FullyConnected", "brgemm_avx512_I8")], first + second, 0, ()),
        ([], first, second, ()),
        ([node_event(CPU.provider, "second_matmul", "MatMul")], first, 0, ("second_matmul",)),
        # In integers, and not by the provider that was asked for.
        ([node_event(CPU.provider, "second_matmul", "MatMulIntegerToFloat")], first, 0, ("second_matmul",)),
    ):
        profiled(monkeypatch, integer + more)
        found = coverage.measure_coverage(quantized(tiny, tmp_path), OPENVINO, batch)
        monkeypatch.undo()
        assert sum(found.macs_by_kernel.values()) == first + second
        assert found.share == low / (first + second)
        assert found.unknown == unknown / (first + second)
        assert found.float_nodes == floats
        assert found.providers[-1] == OPENVINO.provider and len(found.providers) == 1 + len(floats)


def test_convolutions_whose_weights_are_stored_as_integers_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 samples of 5 x 5 places, 6 channels out, 3 x 3 places of 2 channels in (of 4, in two groups): 2*25*6*9*2."""
    weight = onnx.numpy_helper.from_array(np.ones((6, 2, 3, 3), np.float32), "w")
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], name="conv", group=2)
    ends = [
        onnx.helper.make_tensor_value_info(name, 1, ["n", *shape])
        for name, shape in (("x", (4, 7, 7)), ("y", (6, 5, 5)))
    ]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", ends[:1], ends[1:], [weight]),
        opset_imports=[onnx.helper.make_opsetid("", 21)],
        ir_version=10,
    )
    onnx.save(model, tmp_path / "float.onnx")
    path = as_integers(tmp_path / "float.onnx", tmp_path, {"x": (-1.0, 1.0)})
    profiled(monkeypatch, [ran("conv/WithoutBiases", "GroupConvolution", "brgconv_avx512_dw_i8")])
    found = coverage.measure_coverage(path, OPENVINO, {"x": np.zeros((2, 4, 7, 7), np.float32)})
    assert found.macs_by_kernel == {"GroupConvolution brgconv_avx512_dw_i8": 2 * 25 * 6 * 9 * 2}


@pytest.mark.parametrize(
    ("low", "unknown", "outcome"),
    [(50, 50, "pass"), (49, 51, "inconclusive"), (0, 100, "inconclusive"), (0, 49, "fail"), (49, 0, "fail")],
)
def test_the_gate_does_not_pass_what_nobody_named(low: int, unknown: int, outcome: str) -> None:
    """Half is asked for: unknown kernels may be of either kind."""
    macs = {"FullyConnected brgemm_avx512_I8": low, UNNAMED: unknown, "MatMul": 100 - low - unknown}
    found = Coverage(macs, ("FullyConnected brgemm_avx512_I8",), ("head",) if macs["MatMul"] else (), ())
    verdict = judge_coverage(CANDIDATE, found, Gates(min_coverage=0.5))
    assert verdict is not None and verdict.outcome == outcome
    assert ("does not name" in verdict.reason) == (outcome != "pass" and unknown > 0)
    assert ("in float: head" in verdict.reason) == (outcome == "fail")


# Where it can run


@offered
def test_the_provider_runs_a_variant_in_integers(tiny: Tiny, tmp_path: Path) -> None:
    """The numbers of the CPU provider, in integer kernels, in turn with the float model on that."""
    path = quantized(tiny, tmp_path)
    batch = {"x": np.load(tiny.evaluation)["x"][:32]}
    outputs = []
    for settings in (CPU, OPENVINO):
        with open_session(path, settings) as session:
            assert session.get_providers()[0] == settings.provider
            outputs.append(run_batches(session, [batch], "logits"))
    assert np.abs(outputs[0] - outputs[1]).max() < 0.02 * np.abs(outputs[0]).max()
    assert coverage.measure_coverage(path, OPENVINO, batch).share == 1
    measurement = Measurement(launches=1, blocks=3, block_seconds=0.01, warmup_seconds=0.01, max_other_load=None)
    sides = (Contestant(tiny.model, CPU), Contestant(path, OPENVINO))
    latency = compare_latency(*sides, [batch], measurement, confidence=0.95, samples_path=tmp_path / "s.npz")
    assert latency.pairs == 3 and latency.p50_ms > 0
