"""Keys of the store: two jobs share a product only where nothing that its maker reads differs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import CLASSES, FEATURES, Tiny, tiny_samples
from onnx import TensorProto, helper, numpy_helper
from runs import run_in

from tasks.engines.tensorrt import engine as tensorrt
from tasks.evidence.resolve_source import _from_file
from tasks.measure.inventory import take_inventory
from tasks.ptq.eight_bit import int8_weights
from tasks.ptq.search import find_frontier
from tasks.ptq.slow_parts import SlowParts
from tasks.ptq.weight_only import matmul_nbits
from tasks.run.loaded_run import LoadedRun, with_inputs
from tasks.storage.store import Store
from tasks.trials import materials
from tasks.trials.inspect_variant import coverage_of, measure_saturation, sanity_of
from tasks.trials.materials import variant_from_store
from tasks.trials.measure_baseline import baseline_variant
from validators.digests import digest_model
from validators.job.candidate_name import Candidate, decode
from validators.job.read_job import parse_job
from validators.records.engines import BuildSettings, BuiltEngine, EngineManifest
from validators.records.run import Gpu, SessionSettings, Source, Trial, Variant
from validators.samples.datasets import TensorSpec, load_samples
from validators.samples.evidence import Evidence

PLAIN, SMOOTH = "int8-static-minmax-pc@ort-cpu", "int8-static-minmax-pc-smooth@ort-cpu"
FAST = "int8-static-minmax-pc-fast@ort-cpu"
SEARCHED, SEARCHED_SMOOTH = "int8-static-minmax-pc-{}db@ort-cpu", "int8-static-minmax-pc-smooth-30db@ort-cpu"


@pytest.fixture(scope="module")
def inventory() -> Any:
    return take_inventory("ort-cpu")


@pytest.fixture(scope="module")
def two_heads(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> Path:
    """The tiny model with a second output, which no part but the first layer leads to."""
    model = onnx.load(tiny.model)
    weights = numpy_helper.from_array(np.ones((128, 2), np.float32), "third")
    model.graph.initializer.append(weights)
    model.graph.node.append(helper.make_node("MatMul", ["hidden", "third"], ["other"], name="third_matmul"))
    model.graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, ["batch", 2]))
    path = tmp_path_factory.mktemp("heads") / "two.onnx"
    onnx.save(model, path)
    return path


class Shop:
    """Jobs on one model in one store."""

    def __init__(self, tiny: Tiny, model: Path, folder: Path, inventory: Any) -> None:
        self.tiny, self.model, self.inventory = tiny, model, inventory
        self.folder, self.store = folder, Store(folder / "store")

    def run(self, *, output: str = "logits", evaluation: Path | None = None, **changes: object) -> LoadedRun:
        """The run of a job with some changes, its samples and the judged output."""
        job = parse_job(self.tiny.job(**changes), base=self.folder)
        spec = TensorSpec("x", "float32", ("batch", FEATURES))
        calibration = load_samples(self.tiny.calibration, (spec,), label="label", role="calibration")
        samples = load_samples(evaluation or self.tiny.evaluation, (spec,), label="label", role="evaluation")
        judged = TensorSpec(output, "float32", ("batch", CLASSES if output == "logits" else 2))
        evidence = Evidence((spec,), judged, calibration, samples, None, None, np.zeros(len(samples), bool))
        source = Source("tiny", "tiny", None, digest_model(self.model), self.model, "file")
        return with_inputs(run_in(self.folder, job, store=self.store), source, evidence, self.inventory)

    def variant(self, name: str, *, output: str = "logits", **changes: object) -> tuple[Variant, bool]:
        """The variant of a candidate, and whether it was in the store."""
        made, was_there = variant_from_store(self.run(output=output, **changes), decode(name))
        assert made.variant is not None, made.refusal
        return made.variant, was_there

    def count(self, kind: str) -> int:
        """Finished entries of a kind."""
        return len(list((self.folder / "store" / kind).glob("*/record.json")))


@pytest.fixture
def shop(tiny: Tiny, two_heads: Path, tmp_path: Path, inventory: Any) -> Shop:
    return Shop(tiny, two_heads, tmp_path, inventory)


def test_forms_are_chosen_for_each_judged_output(shop: Shop) -> None:
    """The head of the other output cannot hurt the judged one, so that it is never left in float for it."""

    def cheapest(output: str) -> str:
        frontier = find_frontier(materials.materials_of(shop.run(output=output)).parts(decode(PLAIN)))
        return SEARCHED.format(frontier[0].level_db)

    first, _ = shop.variant(cheapest("logits"), output="logits")
    second, was_there = shop.variant(cheapest("other"), output="other")
    assert not was_there
    assert any(change.startswith("kept in float: ") for change in first.changes)
    assert any(change.startswith("kept in float: ") for change in second.changes)
    assert not any(change.startswith("kept in float: second_matmul") for change in second.changes)
    assert shop.variant(cheapest("logits"), output="logits")[1]


def test_fast_variant_is_made_for_each_finding_of_a_profile(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another device profiles again; its variant is another one only if it finds other products."""
    prepared = materials.materials_of(shop.run()).prepared()
    graph = onnx.load(prepared).graph
    nodes = [node.name for node in graph.node if node.op_type in {"MatMul", "Gemm"}]
    findings = {"one": nodes[0], "same": nodes[0], "other": nodes[1]}
    plain = shop.inventory
    seen = {}
    for device, node in findings.items():
        monkeypatch.setattr(materials, "find_slow_parts", lambda *_, node=node: SlowParts((node,), 2.0, 1.0))
        shop.inventory = replace(plain, cpu=device)
        seen[device] = shop.variant(FAST)
    assert [was_there for _, was_there in seen.values()] == [False, True, False]
    assert seen["one"][0].changes[f"faster in float: {nodes[0]}"] == 1
    assert seen["other"][0].digest != seen["one"][0].digest
    assert shop.count("slow-parts") == 3


def test_fast_engine_variant_follows_its_builds(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its products stay in float16; engines for other compute capabilities are inspected again."""
    asked: list[list[Any]] = []

    def find(model: Path, quantize: Any, costs: Any) -> SlowParts:
        names = [node.name for node in onnx.load(model).graph.node if node.op_type in {"MatMul", "Gemm"}]
        quantize(model, names[:1], model.with_name("tried.onnx"))
        asked.append([build.compute_capabilities for build in costs.builds])
        return SlowParts((names[0],), 2.0, 1.0, timed=False)

    monkeypatch.setattr(tensorrt, "find_slow_parts", find)
    name = "int8-static-minmax-pc-fast@tensorrt"
    plain, _ = shop.variant(name.replace("-fast", ""), target="tensorrt", candidates=[name])
    fast, _ = shop.variant(name, target="tensorrt", candidates=[name], engines={"ahead_of_time": ["7.5"]})
    assert [change for change in fast.changes if change.startswith("float in the engine even with pairs: ")]
    assert plain.changes["nodes in INT8"] - fast.changes["nodes in INT8"] == 1
    _, was_there = shop.variant(name, target="tensorrt", candidates=[name], engines={"ahead_of_time": ["8.9"]})
    assert was_there and asked == [[("7.5",)], [("8.9",)]]
    shop.inventory = replace(shop.inventory, gpu=Gpu("a GPU", "GPU-1", "9.0", "580.95.05", 10**10))
    shop.variant(name, target="tensorrt", candidates=[name])
    assert asked[-1] == [()] and len(asked) == 3


def test_plain_variant_is_shared_by_judged_outputs_and_seeds(shop: Shop) -> None:
    shop.variant(PLAIN, output="logits", seed=1)
    assert shop.variant(PLAIN, output="other", seed=2)[1]
    assert shop.count("statistics") == 1


@pytest.mark.parametrize("name", [SMOOTH, SEARCHED_SMOOTH])
def test_smoothed_variant_is_made_for_each_seed(shop: Shop, name: str) -> None:
    shop.variant(name, seed=1)
    assert not shop.variant(name, seed=2)[1]
    assert shop.variant(name, seed=1)[1]
    assert shop.count("smoothed") == 2
    assert shop.count("ranking") == (2 if name == SEARCHED_SMOOTH else 0)


def test_saturation_is_measured_for_each_judged_output(shop: Shop) -> None:
    trial = Trial(PLAIN, variant=shop.variant(PLAIN)[0])
    for output in ("logits", "other", "logits"):
        measure_saturation.fn(shop.run(output=output), (trial,))
    assert shop.count("saturation") == 2


def test_saturation_is_measured_for_each_runtime(shop: Shop) -> None:
    trial = Trial(PLAIN, variant=shop.variant(PLAIN)[0])
    for version in ("1.0", "2.0"):
        other = replace(shop.inventory, runtimes={"onnxruntime": version})
        measure_saturation.fn(replace(shop.run(), inventory=other), (trial,))
    assert shop.count("saturation") == 2


def test_coverage_is_shared_by_jobs_that_time_otherwise(shop: Shop) -> None:
    """A request of another size is another profile; more launches of the same request are not."""
    run, variant = shop.run(), shop.variant(PLAIN)[0]
    longer, larger = (
        shop.run(measurement={"max_other_load": None} | more) for more in ({"launches": 3}, {"batch_sizes": [4]})
    )
    had = [coverage_of(one, variant)[1] for one in (run, longer, larger)]
    assert had == [False, True, False]
    assert [sanity_of(one, variant)[1] for one in (run, longer, larger)] == [
        False,
        True,
        True,
    ]


def test_sanity_is_asked_anew_beside_another_baseline(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    run, variant = shop.run(), shop.variant(PLAIN)[0]
    baseline = baseline_variant(run)
    had = []
    for threads in (1, 2, 1):
        other = replace(baseline, session=replace(baseline.session, threads=threads))
        monkeypatch.setattr("tasks.trials.inspect_variant.baseline_variant", lambda *_, other=other: other)
        had.append(sanity_of(run, variant)[1])
    assert had == [False, False, True]


def test_costs_are_measured_for_each_evaluation_file(shop: Shop, tmp_path: Path) -> None:
    """The request that is profiled is made of its samples; bytes need none."""
    np.savez(tmp_path / "other.npz", **tiny_samples(32, 5))
    for evaluation in (None, tmp_path / "other.npz", None):
        materials.materials_of(shop.run(evaluation=evaluation)).parts(decode(PLAIN))
    assert shop.count("forms") == 2
    for evaluation in (None, tmp_path / "other.npz", None):
        materials.materials_of(shop.run(evaluation=evaluation, objective="size")).parts(decode(PLAIN))
    assert shop.count("forms") == 3


def test_source_is_shared_by_content_and_named_by_the_job(shop: Shop, tmp_path: Path) -> None:
    """Two files of the same bytes are one entry; each job's source has its own path and name."""
    found = []
    for name in ("first", "second"):
        path = tmp_path / f"{name}.onnx"
        shutil.copy(shop.model, path)
        found.append(_from_file(shop.run(source=str(path))))
    assert [(source.uri, source.name) for source in found] == [
        (str(tmp_path / "first.onnx"), "first"),
        (str(tmp_path / "second.onnx"), "second"),
    ]
    assert shop.count("source") == 1 and found[0].onnx_path == found[1].onnx_path


def test_measurements_depend_on_artifact_engine_and_session(tmp_path: Path) -> None:
    session = SessionSettings("CPUExecutionProvider", 2)
    manifest = EngineManifest("tensorrt", "10", None, "9.0", None, BuildSettings(), "1" * 64, "2" * 64)
    engine = BuiltEngine(tmp_path / "engine", manifest, tmp_path / "log")
    variant = Variant("a", tmp_path / "model.onnx", "1" * 64, 10, session, engine=engine)
    same = replace(variant, candidate="b", path=tmp_path / "other.onnx", notes=("n",), changes={"c": 1})
    assert same.measured_as == variant.measured_as
    rebuilt = replace(engine, manifest=replace(manifest, engine_digest="3" * 64))
    others = [
        replace(variant, digest="4" * 64),
        replace(variant, engine=rebuilt),
        replace(variant, engine=None),
        replace(variant, proof="simulated"),
        replace(variant, session=replace(session, threads=1)),
    ]
    keys = [repr(one.measured_as) for one in (variant, *others)]
    assert len(set(keys)) == len(keys)


def test_a_ranking_that_was_cut_off_goes_on(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second noise is never told the first time; the first one is not measured again."""
    measured: list[Path] = []
    make = materials.quantize_without

    def cut_off(candidate: Candidate, its: Any, model: Path, path: Path, keep_float: Any) -> Any:
        if path.name == "quantized.onnx":
            measured.append(path)
            if len(measured) == 2:
                raise KeyboardInterrupt
        return make(candidate, its, model, path, keep_float)

    monkeypatch.setattr(materials, "quantize_without", cut_off)
    with pytest.raises(KeyboardInterrupt):
        materials.materials_of(shop.run()).parts(decode(PLAIN))
    assert (shop.count("noise"), shop.count("ranking")) == (1, 0)
    parts = materials.materials_of(shop.run()).parts(decode(PLAIN))
    assert len(parts) > 1 and len(measured) == 1 + len(parts) and shop.count("noise") == len(parts)


@pytest.mark.parametrize(
    ("name", "module", "rounds"),
    [
        ("int4-g16-learned@ort-cpu", matmul_nbits, "_in_int4"),
        ("int8-static-minmax-pc-learned@ort-cpu", int8_weights, "descend"),
    ],
)
def test_a_rounding_that_was_cut_off_goes_on(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, module: Any, rounds: str
) -> None:
    """The third weight is never rounded the first time; the first two are not rounded again, and the file is the same."""
    rounded: list[int] = []
    rounding = getattr(module, rounds)

    def cut_off(*arguments: Any, **options: Any) -> Any:
        rounded.append(len(rounded))
        if len(rounded) == 3:
            raise KeyboardInterrupt
        return rounding(*arguments, **options)

    monkeypatch.setattr(module, rounds, cut_off)
    with pytest.raises(KeyboardInterrupt):
        shop.variant(name)
    assert (shop.count("rounded-weight"), shop.count("variant")) == (2, 0)
    variant, _ = shop.variant(name)
    assert len(rounded) == 4 and shop.count("rounded-weight") == 3
    other = Shop(shop.tiny, shop.model, tmp_path / "other", shop.inventory).variant(name)[0]
    assert len(rounded) == 7 and other.digest == variant.digest


def test_candidates_share_the_weights_that_they_round_alike(shop: Shop) -> None:
    """A search rounds only what it gives another form; another grid is another weight, and RTN is not kept."""
    plain = "int4-g16-gptq@ort-cpu"
    shop.variant(plain)
    assert shop.count("rounded-weight") == 3
    parts = materials.materials_of(shop.run()).parts(decode(plain))
    point = next(point for point in find_frontier(parts) if 0 in point.assignment)
    changed = [part.forms[form].name for part, form in zip(parts, point.assignment, strict=True) if form]
    shop.variant(f"int4-g16-gptq-{point.level_db}db@ort-cpu")
    assert shop.count("rounded-weight") == 3 + sum(form.startswith("int4") for form in changed)
    before = shop.count("rounded-weight")
    shop.variant("int4-g16-rtn@ort-cpu")
    assert shop.count("rounded-weight") == before
    shop.variant("int4-g16-gptq-asym@ort-cpu")
    assert shop.count("rounded-weight") == before + 3


def test_candidates_of_one_graph_share_a_pass_for_gram_matrices(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and rounding differ, the activations do not; another seed of smoothing is another graph; large ones are freed."""
    passes: list[Path] = []
    collect = materials.collect_grams

    def counted(model: Path, *arguments: Any, **options: Any) -> Any:
        passes.append(model)
        return collect(model, *arguments, **options)

    monkeypatch.setattr(materials, "collect_grams", counted)
    names = ("int4-g16-gptq@ort-cpu", "int4-g32-gptq-asym@ort-cpu", "int4-g32-learned@ort-cpu")
    for name in names:
        shop.variant(name)
    assert len(passes) == 1
    materials.LAST_GRAMS.clear()
    monkeypatch.setattr(materials, "MOST_KEPT_BYTES", 0)
    for name in ("int8-static-minmax-pc-learned@ort-cpu", "int4-g32-awq@ort-cpu", "int4-g16-awq@ort-cpu"):
        shop.variant(name)
    assert len(passes) == 4 and not materials.LAST_GRAMS
