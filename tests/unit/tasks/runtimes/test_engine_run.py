"""The runner of engines, on stand-ins for TensorRT and CUDA.

No machine of the suite has a GPU, so this is the one place where the real thing cannot be asked. The stand-ins have the names
and arguments of the real bindings (`test_tensorrt_api.py`), compute with numpy, and are strict about what a GPU is strict
about: order, addresses, waiting, freeing, contexts that a graph was captured from. The tests marked `gpu` ask the same of
TensorRT itself.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engines import MIXED, STATIC, Fakes, faked, mixed_batch
from fake_cuda import Error
from fake_trt_runtime import RUN_MS, Arrays, Port

from tasks.engines.tensorrt.shipped.cuda import CudaError
from tasks.engines.tensorrt.shipped.run import EngineError, EngineRunner, Request

COPIES = "cudaMemcpyAsync"


@pytest.fixture
def fakes() -> Iterator[Fakes]:
    with faked() as both:
        yield both


def same(found: list[Any], expected: list[Any]) -> None:
    """Values, shapes and dtypes, exactly."""
    assert [(one.dtype, one.shape) for one in found] == [(one.dtype, one.shape) for one in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def expected_of(batch: Arrays, names: list[str]) -> list[Any]:
    answers = MIXED.compute(batch)
    return [answers[name] for name in names]


def test_inputs_and_outputs_are_told_in_numpys_words(fakes: Fakes) -> None:
    engine = EngineRunner(b"mixed", fakes.api)
    assert [one[:3] for one in engine.inputs] == [
        ("x", "float16", (-1, 4)),
        ("ids", "int64", (-1,)),
        ("mask", "bool", (-1,)),
    ]
    assert [one[:3] for one in engine.outputs] == [
        ("sum", "float16", (-1,)),
        ("twice", "int64", (-1,)),
        ("not", "bool", (-1,)),
    ]


@pytest.mark.parametrize("sizes", [(5,), (3, 8, 4, 8), (8, 3, 3)])
def test_answers_are_those_of_the_engine(fakes: Fakes, sizes: tuple[int, ...]) -> None:
    """Whatever came before, and they stay what they are when another batch comes."""
    engine = EngineRunner(b"mixed", fakes.api)
    names = ["not", "sum", "twice"]
    batches = [mixed_batch(rows, seed) for seed, rows in enumerate(sizes)]
    answers = [engine.run(batch, names) for batch in batches]
    for batch, answer in zip(batches, answers, strict=True):
        same(answer, expected_of(batch, names))


def test_only_what_is_asked_for_is_copied_back(fakes: Fakes) -> None:
    engine = EngineRunner(b"mixed", fakes.api)
    same(engine.run(mixed_batch(4), ["twice"]), expected_of(mixed_batch(4), ["twice"]))
    assert fakes.cuda.calls.count(COPIES) == 3 + 1


def test_arrays_may_be_strided(fakes: Fakes) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4).T[1:3]
    same(EngineRunner(b"static", fakes.api).run({"x": x}, ["y"]), [x * 2 + 1])


def test_a_bound_request_copies_nothing(fakes: Fakes) -> None:
    """It is one graph, each call of it has been run when it returns, and its outputs are the batch's."""
    engine = EngineRunner(b"mixed", fakes.api)
    batch = mixed_batch(6)
    request = engine.bound(batch)
    assert request.why_not_captured is None
    before, fakes.cuda.calls[:] = fakes.cuda.clock, []
    request()
    request()
    assert fakes.cuda.clock - before == 2 * RUN_MS
    assert fakes.cuda.calls == ["cudaGraphLaunch", "cudaStreamSynchronize"] * 2
    same(request.fetch(["sum", "not"]), expected_of(batch, ["sum", "not"]))


def test_requests_do_not_disturb_each_other(fakes: Fakes) -> None:
    """A graph is undefined once its context takes other shapes: none shares one."""
    engine = EngineRunner(b"mixed", fakes.api)
    batches = [mixed_batch(rows, seed=rows) for rows in (3, 8, 5)]
    requests = [engine.bound(batch) for batch in batches]
    engine.run(mixed_batch(7), ["sum"])
    for batch, request in zip(batches, requests, strict=True):
        request()
        same(request.fetch(["twice"]), expected_of(batch, ["twice"]))


@pytest.mark.parametrize("step", ["TensorRT", "cudaStreamEndCapture", "cudaGraphInstantiate", "cudaStreamBeginCapture"])
def test_what_cannot_be_captured_runs_all_the_same(fakes: Fakes, step: str) -> None:
    """And says why."""
    if step == "TensorRT":
        fakes.tensorrt.plans[b"mixed"] = replace(MIXED, capturable=False)
    else:
        fakes.cuda.fail[step] = Error.cudaErrorStreamCaptureUnsupported
    batch = mixed_batch(6)
    request = EngineRunner(b"mixed", fakes.api).bound(batch)
    assert request.why_not_captured is not None
    assert ("not permitted when stream is capturing" if step == "TensorRT" else step) in request.why_not_captured
    before = fakes.cuda.clock
    request()
    assert fakes.cuda.clock - before == RUN_MS
    same(request.fetch(["sum"]), expected_of(batch, ["sum"]))
    assert len(fakes.cuda.graphs) == len(fakes.cuda.ready) == 0


@pytest.mark.parametrize("captured", [True, False])
def test_the_gpus_own_time_is_that_between_events(fakes: Fakes, captured: bool) -> None:
    """All runs are queued before anything waits."""
    fakes.tensorrt.plans[b"mixed"] = replace(MIXED, capturable=captured)
    engine = EngineRunner(b"mixed", fakes.api)
    request = engine.bound(mixed_batch(3))
    fakes.cuda.calls.clear()
    assert engine.kernel_ms(request, 4) == (RUN_MS,) * 4
    assert (request.why_not_captured is None) is captured
    assert fakes.cuda.calls.count("cudaStreamSynchronize") == 1
    gc.collect()
    assert not fakes.cuda.events


def test_the_times_of_layers_are_sums_by_name(fakes: Fakes) -> None:
    """The one that runs twice takes twice 0.5 ms."""
    engine = EngineRunner(b"mixed", fakes.api)
    assert engine.layer_times(mixed_batch(3)) == {"gemm": 0.25, "loop": 1.0}
    assert json.loads(engine.layers_json()) == {"Layers": ["gemm", "loop", "loop"]}


def change(**arrays: Any) -> Arrays:
    batch = mixed_batch(4) | arrays
    return {name: array for name, array in batch.items() if array is not None}


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (change(ids=None), "found inputs ['mask', 'x']; expected ['ids', 'mask', 'x']"),
        (change(more=np.zeros(3)), "found inputs ['ids', 'mask', 'more', 'x']"),
        (change(ids=np.zeros(4, np.int32)), "found ids in int32; expected int64"),
        (change(ids=np.zeros((4, 1), np.int64)), "found ids of shape (4, 1); expected 1 axes"),
        (mixed_batch(2), "found 2 on axis 0 of x; expected 3 to 8"),
        (mixed_batch(9), "found 9 on axis 0 of x; expected 3 to 8"),
        (change(x=np.zeros((4, 5), np.float16)), "found 5 on axis 1 of x; expected 4;"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(fakes: Fakes, batch: Arrays, words: str) -> None:
    """By name, axis, value and range; and the next one that does runs."""
    engine = EngineRunner(b"mixed", fakes.api)
    for way in (lambda: engine.run(batch, ["sum"]), lambda: engine.bound(batch)):
        with pytest.raises(ValueError, match="found") as refused:
            way()
        assert words in str(refused.value)
    same(engine.run(mixed_batch(3), ["sum"]), expected_of(mixed_batch(3), ["sum"]))


def test_the_ends_of_the_range_are_in_it(fakes: Fakes) -> None:
    engine = EngineRunner(b"mixed", fakes.api)
    assert [len(engine.run(mixed_batch(rows), ["sum"])[0]) for rows in (3, 8)] == [3, 8]


def test_an_output_that_is_not_there_is_refused(fakes: Fakes) -> None:
    with pytest.raises(ValueError, match=r"found outputs \['logits'\]; expected some of \['y'\]"):
        EngineRunner(b"static", fakes.api).run({"x": np.zeros((2, 3), np.float32)}, ["logits"])


def test_an_output_whose_shape_hangs_on_values_is_refused(fakes: Fakes) -> None:
    with pytest.raises(EngineError, match=r"output y of shape \(-1, 3\), which depends on the values"):
        EngineRunner(b"found", fakes.api).run({"x": np.zeros((2, 3), np.float32)}, ["y"])


def test_a_type_without_a_numpy_dtype_is_refused(fakes: Fakes) -> None:
    fakes.tensorrt.plans[b"fp8"] = replace(STATIC, inputs=(Port("x", "FP8", (2, 3)),))
    with pytest.raises(EngineError, match="found x of type FP8"):
        EngineRunner(b"fp8", fakes.api)


def test_shapes_that_are_given_as_values_stay_on_the_host(fakes: Fakes) -> None:
    """And are read anew for each batch, though its shapes are the same."""
    engine = EngineRunner(b"reshaped", fakes.api)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for width in (4, 1, 5):
        (found,) = engine.run({"x": x, "width": np.array([width])}, ["y"])
        same([found], [np.repeat(np.array([[3.0], [12.0]], np.float32), width, axis=1)])
    request = engine.bound({"x": x, "width": np.array([2])})
    request()
    assert request.why_not_captured is None and request.fetch(["y"])[0].shape == (2, 2)


def test_an_empty_batch(fakes: Fakes) -> None:
    """Memory is asked for all the same: TensorRT wants an address."""
    engine = EngineRunner(b"rows", fakes.api)
    for rows in (0, 4, 0):
        x = np.ones((rows, 3), np.float32)
        same(engine.run({"x": x}, ["y"]), [x * 3])


def test_everything_is_freed_in_order(fakes: Fakes) -> None:
    """Contexts, the engine, the runtime; a second time nothing happens."""
    engine = EngineRunner(b"mixed", fakes.api)
    request = engine.bound(mixed_batch(3))
    engine.run(mixed_batch(5), ["sum"])
    engine.layer_times(mixed_batch(4))
    assert fakes.tensorrt.ended == ["context"]  # of the layers' times
    assert fakes.cuda.held() > 20
    engine.close()
    gc.collect()
    assert fakes.tensorrt.ended == ["context"] * 3 + ["engine", "runtime"]
    assert fakes.cuda.held() == 0
    request.close()
    engine.close()


def test_what_is_dropped_is_freed(fakes: Fakes) -> None:
    """A request that nobody holds any more; what the engine holds stays."""
    engine = EngineRunner(b"mixed", fakes.api)
    engine.run(mixed_batch(8), ["sum"])
    before = fakes.cuda.held()
    request: Request | None = engine.bound(mixed_batch(3))
    assert request is not None and fakes.cuda.held() == before + 14  # six buffers on each side, a stream, a graph
    request = None
    gc.collect()
    assert fakes.cuda.held() == before


def test_contexts_are_made_when_they_are_needed(fakes: Fakes) -> None:
    """Each takes memory: none for an engine that is only described, one for a request, one for all runs."""
    engine = EngineRunner(b"static", fakes.api)
    made = [fakes.tensorrt.contexts]
    request = engine.bound({"x": np.zeros((2, 3), np.float32)})
    made.append(fakes.tensorrt.contexts)
    for _ in range(3):
        engine.run({"x": np.zeros((2, 3), np.float32)}, ["y"])
    made.append(fakes.tensorrt.contexts)
    assert made == [0, 1, 2] and request.why_not_captured is None


def test_an_engine_that_is_not_loaded_says_what_tensorrt_said(fakes: Fakes) -> None:
    with pytest.raises(EngineError, match="does not load the engine: the version tag does not match"):
        EngineRunner(b"other", fakes.api)


def test_a_context_that_is_not_made(fakes: Fakes) -> None:
    fakes.tensorrt.plans[b"large"] = replace(STATIC, makes_contexts=False)
    engine = EngineRunner(b"large", fakes.api)
    with pytest.raises(EngineError, match="cannot create an execution context: no room for the context"):
        engine.run({"x": np.zeros((2, 3), np.float32)}, ["y"])
    gc.collect()
    assert fakes.cuda.held() == 0


def test_without_a_gpu_tensorrt_is_not_even_asked(fakes: Fakes) -> None:
    """It would end the process."""
    fakes.cuda.fail["cudaGetDeviceCount"] = Error.cudaErrorInsufficientDriver
    del fakes.api.Runtime
    with pytest.raises(CudaError, match="cudaGetDeviceCount: cudaErrorInsufficientDriver"):
        EngineRunner(b"static", fakes.api)


@pytest.mark.parametrize("function", ["cudaMalloc", "cudaMallocHost"])
def test_after_a_lack_of_memory_the_next_batch_is_right(fakes: Fakes, function: str) -> None:
    """Though some buffers have moved by then, and the context was not told."""
    engine = EngineRunner(b"mixed", fakes.api)
    small = mixed_batch(3)
    engine.run(small, ["sum"])
    fakes.cuda.fail[function] = Error.cudaErrorMemoryAllocation
    with pytest.raises(CudaError, match=f"{function}: cudaErrorMemoryAllocation"):
        engine.run(mixed_batch(8), ["sum"])
    same(engine.run(small, ["twice", "sum"]), expected_of(small, ["twice", "sum"]))


def test_a_failed_kernel_is_an_error(fakes: Fakes) -> None:
    """One that shows when the stream is waited for."""
    engine = EngineRunner(b"static", fakes.api)
    fakes.cuda.fail["cudaStreamSynchronize"] = Error.cudaErrorIllegalAddress
    with pytest.raises(CudaError, match="cudaStreamSynchronize: cudaErrorIllegalAddress"):
        engine.run({"x": np.zeros((2, 3), np.float32)}, ["y"])
