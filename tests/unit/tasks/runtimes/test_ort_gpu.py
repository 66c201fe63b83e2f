"""Sessions on a GPU, as far as a machine without one can tell: options, nodes assigned, arrays bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from conftest import Tiny

from tasks.measure.inventory import find_gpu
from tasks.runtimes import ort as ort_module
from tasks.runtimes.coverage import measure_coverage
from tasks.runtimes.macs import MAC_RULES
from tasks.runtimes.ort import open_session, refuse_strays
from tasks.runtimes.ort_gpu import device_of, load_libraries, probe, why_missing
from tasks.runtimes.runner import GpuSessionRunner, bind, open_runner
from tasks.runtimes.shipped.model import CUDA, PRODUCTS, RECORD, AssignedNode, assignment, load, strays
from validators.errors import CandidateRefused
from validators.records.run import SessionSettings
from validators.target_facts import (
    CPU_PROVIDER,
    CUDA_PROVIDER,
    GENAI,
    INDUCTOR,
    INDUCTOR_CUDA,
    OPENVINO,
    OPENVINO_DECODER,
    TENSORRT,
)
from validators.targets import BUILT_IN

CPU = ("cpu", 0)
SETTINGS = SessionSettings(CPU_PROVIDER, 1)


def recorded(model: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    for key, value in RECORD.items():
        options.add_session_config_entry(key, value)
    return ort.InferenceSession(str(model), options, providers=[CPU_PROVIDER])


# Which provider runs what


def test_every_node_of_a_session_has_its_provider(tiny: Tiny) -> None:
    """The runtime makes a Gemm of MatMul and Add before it divides the graph; the other nodes are as written."""
    nodes = assignment(recorded(tiny.model))
    assert {node.provider for node in nodes} == {CPU_PROVIDER}
    assert sorted(node.kind for node in nodes) == ["Gemm", "MatMul", "Relu"]
    assert {node.name for node in nodes} >= {"relu", "second_matmul"}
    refuse_strays(nodes, CPU_PROVIDER)


def test_the_products_of_a_real_session_are_no_other_providers(tiny: Tiny) -> None:
    with pytest.raises(CandidateRefused, match=r"second_matmul \(MatMul on CPUExecutionProvider\)") as caught:
        refuse_strays(assignment(recorded(tiny.model)), CUDA_PROVIDER)
    assert caught.value.kind == "unsupported" and CUDA_PROVIDER in caught.value.expected


ON_THE_CPU = {
    "a shape": (AssignedNode("s", "Shape", "", CPU_PROVIDER), False),
    "a pair of Q and DQ": (AssignedNode("q", "QuantizeLinear", "", CPU_PROVIDER), False),
    "a custom product": (AssignedNode("m", "MatMul", "ours", CPU_PROVIDER), False),
    "an integer product": (AssignedNode("m", "QLinearMatMul", "", CPU_PROVIDER), True),
    "a product of the runtime's own": (AssignedNode("n", "MatMulNBits", "com.microsoft", CPU_PROVIDER), True),
}


@pytest.mark.parametrize("name", ON_THE_CPU)
def test_what_may_run_on_the_cpu_beside_a_gpu(name: str) -> None:
    """Two providers, as a GPU has them: what multiplies must be on the one that was asked for."""
    node, is_stray = ON_THE_CPU[name]
    nodes = [AssignedNode("p", "Conv", "", CUDA_PROVIDER), node]
    if not is_stray:
        return refuse_strays(nodes, CUDA_PROVIDER)
    with pytest.raises(CandidateRefused, match=f"{node.name} .{node.kind} on {CPU_PROVIDER}"):
        refuse_strays(nodes, CUDA_PROVIDER)
    return None


def test_many_strays_are_counted() -> None:
    nodes = [AssignedNode(f"p{index}", "MatMul", "", CPU_PROVIDER) for index in range(8)]
    with pytest.raises(CandidateRefused, match=r"p4 \(MatMul on \w+\) and 3 more"):
        refuse_strays(nodes, CUDA_PROVIDER)


# Options


class Opened(Exception):
    """Raised in place of opening a session, with the requested providers."""


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(_model: Path, _options: ort.SessionOptions, *, providers: Any, **_: Any) -> None:
        raise Opened(providers)

    monkeypatch.setattr(ort, "InferenceSession", opened)
    monkeypatch.setattr(ort, "preload_dlls", lambda: None)


@pytest.mark.usefixtures("no_session")
def test_cuda_session_gets_the_options_of_the_job(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort_module, "_prepare_gpu", lambda available: "")
    options = {"device_id": "2", "use_tf32": "0"}
    settings = SessionSettings(CUDA_PROVIDER, 1, provider_options=options)
    with pytest.raises(CandidateRefused) as caught, open_session(tiny.model, settings):
        pass
    assert isinstance(caught.value.__cause__, Opened) and caught.value.__cause__.args == ([(CUDA_PROVIDER, options)],)
    assert device_of(settings) == 2 and device_of(SessionSettings(CUDA_PROVIDER, 1)) == 0


# What is here


def test_a_provider_that_is_not_installed_is_refused(tiny: Tiny) -> None:
    """With the extra to install, and before the runtime could fall back."""
    if CUDA_PROVIDER in ort.get_available_providers():
        pytest.skip("the runtime of this environment is built for a GPU: see the tests of marker gpu")
    with (
        pytest.raises(CandidateRefused, match=f"no {CUDA_PROVIDER} here") as caught,
        open_session(tiny.model, SessionSettings(CUDA_PROVIDER, 1)),
    ):
        pass
    assert caught.value.kind == "unsupported" and "`gpu`" in caught.value.fix
    missing = probe(CUDA_PROVIDER)
    assert missing is not None and missing.found == caught.value.found


@pytest.mark.skipif(CUDA_PROVIDER not in ort.get_available_providers(), reason="onnxruntime-gpu is not installed")
@pytest.mark.skipif(find_gpu() is not None, reason="there is a GPU: see the tests of marker gpu")
def test_a_runtime_for_gpus_without_one_is_refused(tiny: Tiny, capfd: pytest.CaptureFixture[str]) -> None:
    """It imports, names the provider, and would run everything on the processor; the libraries that it lacks are named."""
    for options in ({}, {"device_id": "0"}):
        with (
            pytest.raises(CandidateRefused, match=r"Failed to load lib\w+\.so") as caught,
            open_session(tiny.model, SessionSettings(CUDA_PROVIDER, 1, provider_options=options)),
        ):
            pass
        assert caught.value.kind == "unsupported" and CUDA_PROVIDER in caught.value.expected
    assert "EP Error" not in capfd.readouterr().out


def test_a_provider_that_answers_is_not_missing() -> None:
    assert probe(CPU_PROVIDER) is None
    assert why_missing([CPU_PROVIDER, CUDA_PROVIDER]) is None
    load_libraries()  # there are none to load, and nothing fails


# Bound requests: the processor's memory stands in for the device's


def test_a_bound_request_gives_what_a_run_gives(tiny: Tiny) -> None:
    """Inputs are taken as they were bound, contiguous or not; outputs are those of the last request."""
    x = np.load(tiny.evaluation)["x"][:5]
    wide = np.repeat(x, 2, axis=1)[:, ::2]
    assert not wide.flags.c_contiguous
    with open_session(tiny.model, SETTINGS) as session:
        expected = session.run(None, {"x": x})[0]
        binding = bind(session, {"x": wide}, CPU)
        for _ in range(2):
            session.run_with_iobinding(binding)
            np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], expected)


def test_a_request_computes_and_copies_nothing(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.load(tiny.evaluation)["x"][:5]
    with open_session(tiny.model, SETTINGS) as session:
        runner = GpuSessionRunner(session, CPU)
        expected = session.run(None, {"x": x})[0]
        found = [runner.run({"x": part}, ["logits"])[0] for part in (x[:2], x[2:])]
        np.testing.assert_array_equal(np.concatenate(found), expected)
        calls = []
        real = session.run_with_iobinding
        monkeypatch.setattr(session, "run_with_iobinding", lambda binding: (calls.append(binding), real(binding)))
        monkeypatch.setattr(session, "run", None)
        request = runner.bound({"x": x})
        assert calls == []
        assert request() is None and request() is None
        assert len(calls) == 2 and calls[0] is calls[1]
        np.testing.assert_array_equal(calls[0].copy_outputs_to_cpu()[0], expected)


def test_a_batch_that_does_not_fit_is_refused(tiny: Tiny) -> None:
    with open_session(tiny.model, SETTINGS) as session:
        with pytest.raises(CandidateRefused, match="the runtime fails") as caught:
            GpuSessionRunner(session, CPU).bound({"x": np.zeros((1, 63), np.float32)})()
        assert caught.value.kind == "invalid"
        with pytest.raises(CandidateRefused):
            bind(session, {"nothing": np.zeros((1, 64), np.float32)}, CPU)
        with pytest.raises(CandidateRefused, match="string"):
            bind(session, {"x": np.array([["a"]], dtype=object)}, CPU)


def test_every_provider_has_its_runner(tiny: Tiny) -> None:
    on_gpu = {facts.provider for facts in BUILT_IN.values() if facts.on_gpu}
    assert on_gpu == {CUDA_PROVIDER, TENSORRT, INDUCTOR_CUDA}
    others = {CPU_PROVIDER, INDUCTOR, OPENVINO, GENAI, OPENVINO_DECODER}
    assert {facts.provider for facts in BUILT_IN.values()} - on_gpu == others
    x = np.load(tiny.evaluation)["x"][:5]
    with open_runner(tiny.model, SETTINGS) as runner:
        assert not isinstance(runner, GpuSessionRunner)
        assert runner.run({"x": x}, ["logits"])[0].shape == (5, 4) and runner.bound({"x": x})() is None


# What consumers get


@pytest.mark.usefixtures("no_session")
def test_consumer_requests_the_approved_options() -> None:
    options = {"device_id": "1", "use_tf32": "0"}
    session = {"provider": CUDA_PROVIDER, "threads": 1, "optimization": "all", "entries": {}, "libraries": []}
    with pytest.raises(Opened) as caught:
        load(Path(), session | {"provider_options": options})
    assert caught.value.args == ([(CUDA_PROVIDER, options)],)


def test_a_consumer_refuses_products_on_another_provider(tiny: Tiny) -> None:
    nodes = assignment(recorded(tiny.model))
    assert strays(nodes, CPU_PROVIDER) == []
    assert "second_matmul (MatMul on CPUExecutionProvider)" in strays(nodes, CUDA_PROVIDER)


def test_every_operator_that_multiplies_is_known() -> None:
    assert [kind for kind in MAC_RULES if not any(word in kind for word in PRODUCTS)] == []
    assert CUDA == CUDA_PROVIDER


# Coverage


def test_launches_are_no_times(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the profile tells how long a kernel took to launch: no share of that is one of time."""
    batch = {"x": np.load(tiny.evaluation)["x"][:3]}
    before = measure_coverage(tiny.model, SETTINGS, batch)
    assert before.us_by_kernel and before.time_share is not None
    monkeypatch.setattr(SessionSettings, "on_gpu", True)
    monkeypatch.setattr(ort_module, "_prepare_gpu", lambda available: "")
    seen = measure_coverage(tiny.model, SETTINGS, batch, folder=tmp_path)
    assert seen.macs_by_kernel == before.macs_by_kernel
    assert seen.us_by_kernel == {} and seen.time_share is None and seen.inserted_time is None
