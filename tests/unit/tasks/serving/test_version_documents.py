"""The card and the README of a version: what they must say, how long they may be, and that nobody's text breaks them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from huggingface_hub import ModelCard

from tasks.reporting.formats import NO_VALUE
from tasks.serving.bom import bill_of_materials
from tasks.serving.card import MOST_BYTES, model_card
from tasks.serving.example import example
from tasks.serving.promoted import FormerChampion, Promoted
from tasks.serving.readme import version_readme
from tasks.serving.sections import shown, unchecked_device
from validators.gates.approval import Approval
from validators.gates.catalog import GATES
from validators.job.job_gates import Gates
from validators.job.read_job import parse_job
from validators.records.generation import DecoderBytes
from validators.records.journal import RolledBack
from validators.records.latencies import Latency
from validators.records.measurements import Accuracy, Clipping, Estimate, Saturation, SliceDrop
from validators.records.run import Confirmed, DataFile, Gpu, Inventory, SessionSettings, Source, Trial, Variant
from validators.records.verdicts import SignOff, Verdict
from validators.samples.datasets import TensorSpec

CANDIDATE = "int8-static-mse-pc-smooth@ort-cpu"
HOSTILE = 'a`|\n<script>alert(1)</script>[x](javascript:alert(1))"\x1b[2J*_\N{SNOWMAN}' * 9
FACTS = (
    CANDIDATE,
    "INT8 weights per output channel, UINT8 activations by mse, MatMul, Gemm and Conv, smoothed",
    *(letter * 64 for letter in "abde"),
    "fraud",
    "version 3",
    "2026-11-22T10:00:00+00:00",
    "[its page](http://mlflow/#/experiments/1/runs/r1)",
    "EPYC, 8 cores, avx2",
    "onnxruntime 1.31.1",
    "QUANTGATE_MISMATCH=refuse",
    "The session has 2 threads; where fewer than 8 cores are usable",
    "`QUANTGATE_THREADS` sets another number",
    "| drop | +0.50 pp | ≤ +2.00 pp | -0.10 pp to +1.10 pp | 95 % | 1000 |",
    "| confirmed drop |",
    "2.00x the speed, at least 1.80x",
    "| size | 2.00 MB | 8.00 MB | 0.25x |",
    "calibration.npz",
    'mlflow.pyfunc.load_model("models:/fraud-quantized@champion-ort-cpu")',
    "approved by Ada",
    "the worst of 2 groups is language de, +1.50 pp; of 1 too few samples were there to tell",
    "0.3 % of the values of hidden lay outside of them",
    "No traffic was given",
)


def latency(**changes: Any) -> Latency:
    """Twice as fast as the baseline."""
    told: dict[str, Any] = dict.fromkeys(("p95_ms", "p99_ms", "baseline_p95_ms", "baseline_p99_ms"))
    for name in ("load_ms", "peak_memory_mb"):
        told |= {name: 1.0, f"baseline_{name}": 1.0}
    told |= {"batch_size": 1, "count": 9, "pairs": 3, "samples_path": Path("s")}
    told |= {"p50_ms": 1.0, "baseline_p50_ms": 2.0, "speedup": Estimate(2.0, 1.8, 2.2)}
    return Latency(**told | changes)


def promoted(text: str = "", **changes: Any) -> Promoted:
    """A version of `fraud`; every text of others is `text`, if there is any."""
    told = (lambda word: text) if text else (lambda word: word)
    variant = Variant(
        CANDIDATE,
        Path("model.onnx"),
        "b" * 64,
        2_000_000,
        SessionSettings("CPUExecutionProvider", 2),
        notes=(text,) * 30 if text else (),
    )
    gates = [
        Verdict(gate, "pass", 0.0, 0.0, "at_most")
        for gate in sorted(gate.name for gate in GATES if gate.unit == "yes or no" and gate.name != "real_kernels")
    ]
    gates += [Verdict(f"logged_{text}_{index}", "pass", 1.0, 2.0, "at_most") for index in range(30 if text else 0)]
    for gate, low, high, confidence, n in (
        ("drop", -0.001, 0.011, 0.95, 1000),
        ("confirmed_drop", -0.002, 0.012, 0.983, 900),
    ):
        gates.append(Verdict(gate, "pass", 0.005, 0.02, "at_most", low, high, confidence, n))
    slices = (SliceDrop("language", told("en"), 900, Estimate(0.0, -0.01, 0.01)),)
    slices += (SliceDrop("language", told("de"), 20, Estimate(0.015, -0.1, 0.1)),)
    clipped = Clipping(told("hidden"), (told("node"),), -1.0, 1.0, 0.003, 0.1)
    estimate = Estimate(0.005, -0.002, 0.012)
    trial = Trial(
        CANDIDATE,
        "passed",
        variant=variant,
        accuracy=Accuracy(told("accuracy"), 0.91, 1000, Path("s"), Path("o")),
        drop=estimate,
        slices=slices,
        saturation=Saturation((clipped,), 384),
        latencies=tuple(latency(batch_size=size, disturbance=text) for size in (1, 8)),
        verdicts=tuple(gates),
        confirmed=Confirmed(900, 0.983, 0.905, 0.9, estimate, (), latency()),
    )
    said = SignOff("approved", told("Ada"), told("as agreed"), "2026-11-22", "b" * 64, None, variant.identity)
    where = f"[{told('EPYC')}] x8"
    manifest = {
        "files": {told("model.onnx"): "b" * 64},
        "session": {
            "provider": "CPUExecutionProvider",
            "threads": 2,
            "optimization": "all",
            "entries": {told("key"): told("value")},
            "provider_options": {},
        },
        "libraries": [],
        "plugin": None,
        "inputs": {told("x"): "float32"},
        "runtime": "onnxruntime",
        "runtime_version": "1.31.1",
        "engine": None,
        "device": where,
    }
    job = {"source": "models:/fraud/3", "data": {"calibration": "c.npz", "evaluation": "e.npz"}}
    parsed = parse_job(job, base=Path())
    facts: dict[str, Any] = {
        "uri": f"models:/{told('fraud')}-quantized@champion-ort-cpu",
        "source": Source(f"models:/{told('fraud')}/3", told("fraud"), "3", "a" * 64, Path("m"), "onnx"),
        "source_bytes": 8_000_000,
        "data": {
            "calibration": DataFile(Path("d") / told("calibration.npz").replace("/", ""), "d" * 64, 128),
            "evaluation": DataFile(Path("e.npz"), "e" * 64, 2000, f"s3://{told('b/e.npz')}", told("v1")),
        },
        "inventory": Inventory(
            "ort-cpu", told("EPYC"), ("avx2",), 8, 1, "Linux", "3.11", {"onnxruntime": told("1.31.1")}, (), 0.0
        ),
        "job": parsed,
        "approval": Approval(trial, "device", frozenset({"drop"}), sign_off=said),
        "manifest": manifest,
        "inputs": (TensorSpec(told("x"), "float32", ("batch", told("length"))),),
        "outputs": (TensorSpec(told("logits"), "float32", (None, 4)),),
        "request": {told("x"): (1, 64)},
        "run_id": "r1",
        "run_page": "http://mlflow/#/experiments/1/runs/r1",
        "at": "2026-11-22T10:00:00+00:00",
    }
    return Promoted(**facts | changes)


@pytest.mark.parametrize("fact", FACTS)
def test_the_card_and_the_readme_say_it(fact: str) -> None:
    """One place writes it for both."""
    assert fact in model_card(promoted())
    assert fact in version_readme(promoted())


def test_the_readme_says_how_it_is_opened() -> None:
    told = version_readme(promoted())
    assert "| `variant/`model.onnx | `" + "b" * 64 + "` |" in told
    assert (
        "| input | x | float32 | \\[batch, length\\] |" in told and "| output | logits | float32 | \\[?, 4\\] |" in told
    )
    assert "| Provider | CPUExecutionProvider |" in told and "| `intra_op_num_threads` | 2 |" in told
    assert "| Entry key | value |" in told and "| p50 latency at b8 |" in told


def test_card_and_readme_say_where_sums_saturate() -> None:
    said = promoted()
    needed = ("avx512_vnni", "amx_int8")
    variant = replace(said.approval.variant, saturates_without=needed)
    approval = replace(said.approval, trial=replace(said.approval.trial, variant=variant))
    manifest = said.manifest | {"saturates_without": list(needed)}
    eight_bits = replace(said, approval=approval, manifest=manifest)
    portable = replace(said, job=said.job.model_copy(update={"portable": True}))
    for write in (model_card, version_readme):
        assert "with none of `avx512_vnni`, `amx_int8`, sums of its INT8 products saturate" in write(eight_bits)
        assert "the same answers on every processor" in write(portable)
        assert "saturate" not in write(said) and "every processor" not in write(said)
    assert "needed = {'avx512_vnni', 'amx_int8'}" in version_readme(eight_bits)
    for provider in ("CPUExecutionProvider", "OpenVINO", "OnnxRuntimeGenAI", "OpenVINODecoder"):
        options = {"new_tokens": "1"} if "Gen" in provider else {}
        session = manifest["session"] | {"provider": provider, "provider_options": options}
        program = example(manifest | {"session": session, "outputs": ["y"]}, {"x": (1, 2)})
        assert any(line.startswith("needed = ") for line in program), provider
    assert unchecked_device(manifest)[1].startswith(
        "on an x86 processor with none of avx512_vnni, amx_int8 sums saturate"
    )
    assert len(unchecked_device(said.manifest)) == 1


def test_a_decoder_tells_speed_and_memory_of_its_answers() -> None:
    """The card has the first prompt and the context, the README all of them."""
    said = promoted()
    points = {
        (128, 64): (730.0, 2200.0),
        (128, 1): (100.0, 310.0),
        (512, 64): (1030.0, 3100.0),
        (512, 1): (400.0, 1210.0),
    }
    timed = tuple(
        latency(p50_ms=ours, baseline_p50_ms=theirs, dims={"sequence_length": prompt, "new_tokens": count})
        for (prompt, count), (ours, theirs) in points.items()
    )
    trial = said.approval.trial
    variant = replace(said.approval.variant, decoder=DecoderBytes(100_000_000, 80_000_000, 10_000, 8192))
    source = replace(said.source, decoder=DecoderBytes(400_000_000, 320_000_000, 40_000, 8192))
    approval = replace(said.approval, trial=replace(trial, latencies=timed, variant=variant))
    card, readme = (write(replace(said, approval=approval, source=source)) for write in (model_card, version_readme))
    for line in (
        "| time to the first token, prompt of 128 | 100 ms | 310 ms | 3.10x the speed |",
        # (730 - 100) / 63 is 10 ms a token, and (2200 - 310) / 63 is 30.
        "| tokens a second after it, over 64 | 100 | 33.3 | 3.00x the speed |",
        # 80 MB and 160 tokens of 10 kB.
        "| weights and cache read per token | 81.6 MB | 326 MB |  |",
        "| memory bandwidth at that speed | 8.16 GB/s | 10.9 GB/s |  |",
        "| weights with a cache of 8192 tokens | 182 MB | 728 MB | 0.25x |",
    ):
        assert line in card and line in readme, line
    longer = "time to the first token, prompt of 512 | 400 ms"
    assert longer in readme and longer not in card
    shorter = "weights with a cache of 1024 tokens | 110 MB"
    assert shorter in readme and shorter not in card


def test_speed_required_on_another_target_is_not_asked_for_here() -> None:
    said = promoted()
    gates = Gates(min_speedup={"tensorrt": 2.0})
    card = model_card(replace(said, job=said.job.model_copy(update={"gates": gates})))
    assert "The job asked for no speed" in card and "The job asked for no speed" not in model_card(said)


def test_a_card_lists_the_champions_before_and_how_they_ended() -> None:
    marks = [None, RolledBack(1, at="2026-11-20T08:00:00+00:00", reason="slow|er"), None]
    days = ["2026-11-21", "2026-11-19", ""]
    before = tuple(
        FormerChampion(
            str(3 - i), f"int8-{i}@ort-cpu", "1.5" if day else "", f"{day}T00:00:00+00:00" if day else "", mark
        )
        for i, (day, mark) in enumerate(zip(days, marks, strict=True))
    )
    card = model_card(replace(promoted(), before=before))
    for line in (
        "| 3 | `int8-0@ort-cpu` | 1.5x | 2026-11-21 | replaced 2026-11-22 |",
        "| 2 | `int8-1@ort-cpu` | 1.5x | 2026-11-19 | rolled back to version 1 2026-11-20: slow\\|er |",
        f"| 1 | `int8-2@ort-cpu` | {NO_VALUE} | {NO_VALUE} | replaced 2026-11-19 |",
    ):
        assert line in card, card
    assert "The first champion" in model_card(promoted())
    many = tuple(replace(before[0], version=str(number)) for number in range(40, 0, -1))
    assert "35 more before these." in model_card(replace(promoted(), before=many))


def test_a_card_that_fits_is_whole() -> None:
    card = model_card(promoted())
    assert len(card.encode()) <= MOST_BYTES and "Left out" not in card


def test_a_card_is_cut_by_sections_and_says_so() -> None:
    """The same each time; source, recipe, artifact and device stay, whatever else there is."""
    card = model_card(promoted(HOSTILE))
    assert card == model_card(promoted(HOSTILE)) and len(card.encode()) <= MOST_BYTES
    assert "Left out here, for its length: beside the source, verdicts" in card
    for fact in (CANDIDATE, "a" * 64, "b" * 64, "and for no other", "QUANTGATE_MISMATCH", "2026-11-22T10:00:00"):
        assert fact in card


@pytest.mark.parametrize(
    "text", ["\N{SNOWMAN}" * 5000, "|" * 5000, "\x1b" * 5000, "\N{GRINNING FACE}" * 5000, "a" * 300]
)
def test_no_text_of_others_makes_a_card_too_long(text: str) -> None:
    said = promoted(text, run_page="http://mlflow/" + "a" * 9000)
    assert len(model_card(said).encode()) <= MOST_BYTES


def test_text_of_others_stays_text() -> None:
    """No link, no tag and no row of theirs; every row of a table has as many cells as its heading."""
    for document in (model_card(promoted("|x|`[a](javascript:b)<i>\n\n# y")), version_readme(promoted(HOSTILE[:150]))):
        outside = "\n".join(document.split("```")[::2])
        assert not re.search(r"(?<!\\)<", outside) and "\x1b" not in document
        assert not re.search(r"(?<!\\)\]\(javascript", outside)
        assert not re.search(r"^# y", document, re.MULTILINE)
        for block in re.findall(r"(?:^\|.*\n)+", outside, re.MULTILINE):
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1, block


def test_what_is_cut_ends_in_a_sign_of_it() -> None:
    """Never within an escape, whatever the length."""
    for most in range(2, 40):
        text = shown("*_" * 30, most)
        assert len(text) <= most and text.endswith("…") and text.count("\\") == text.count("*") + text.count("_")


def test_a_gpu_is_the_device() -> None:
    gpu = Gpu("NVIDIA H200", "GPU-1", "9.0", "580.95", 1)
    card = model_card(promoted(inventory=replace(promoted().inventory, gpu=gpu)))
    assert "on NVIDIA H200, compute capability 9.0, driver 580.95; EPYC" in card


def test_what_was_not_confirmed_or_named_is_a_limit() -> None:
    said = promoted()
    trial = replace(said.approval.trial, confirmed=None, slices=(), saturation=None)
    card = model_card(replace(said, approval=replace(said.approval, trial=trial)))
    assert "No samples were kept to confirm it" in card and "No groups of samples were named" in card
    assert "Its ranges are fixed" not in card


def settings(provider: str, **options: str) -> dict[str, Any]:
    return {"provider": provider, "threads": 2, "optimization": "all", "entries": {}, "provider_options": options}


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            {"session": settings("CUDAExecutionProvider", device_id="1")},
            ["ort.preload_dlls()", "providers=[('CUDAExecutionProvider', {'device_id': '1'})]"],
        ),
        (
            {
                "session": settings("OpenVINO", NUM_STREAMS="1"),
                "outputs": ["logits"],
            },
            [
                'session = core.compile_model(core.read_model("variant/model.onnx"), "CPU", '
                "{'NUM_STREAMS': '1', 'INFERENCE_NUM_THREADS': '2'})",
                "names = ['logits']",
            ],
        ),
        (
            {"libraries": [{"file": "ours.so"}, {"package": "ops", "distribution": "o", "version": "1"}]},
            [
                "options.register_custom_ops_library('variant/ours.so')",
                "import ops",
                "options.register_custom_ops_library(ops.get_library_path())",
            ],
        ),
    ],
    ids=["cuda", "openvino", "libraries"],
)
def test_the_example_opens_each_kind_as_the_consumer_does(changes: dict[str, Any], lines: list[str]) -> None:
    """And each is a program; what ran on this machine is run in test_version_served.py."""
    told = promoted().manifest | changes
    program = "\n".join(example(told, {"x": (1, 64)}))
    compile(program, "example", "exec")
    assert all(line in program for line in lines), program


def test_the_example_of_an_engine_takes_what_lies_beside_it() -> None:
    told = {"engine": {"runtime": "tensorrt"}, "session": {"provider": "TensorRT"}}
    program = "\n".join(example(promoted().manifest | told, {"x": (1, 64)}))
    compile(program, "example", "exec")
    assert 'sys.path.insert(0, "../code")' in program and "from quantgate_tensorrt.model import open_version" in program
    assert "onnxruntime" not in program


# Metadata of the Hub, and the bill of materials


def front_matter(text: str) -> dict[str, Any]:
    """The YAML block before a README's text."""
    _, block, _ = text.split("---\n", 2)
    found: dict[str, Any] = yaml.safe_load(block)
    return found


def test_readme_begins_with_metadata_that_the_hub_reads() -> None:
    found = promoted()
    text = version_readme(found)
    told = front_matter(text)
    assert told["library_name"] == "onnx" and {"quantized", "int8", "ort-cpu"} <= set(told["tags"])
    card = ModelCard(text)
    (first, *_) = card.data.eval_results
    accuracy = found.approval.trial.accuracy
    assert accuracy and (first.metric_type, first.metric_value) == (accuracy.metric, accuracy.value)
    assert card.text.lstrip().startswith("# `")


def test_metadata_has_no_text_of_others() -> None:
    assert front_matter(version_readme(promoted(HOSTILE)))["model-index"][0]["name"] == CANDIDATE


@pytest.mark.parametrize("text", ["", HOSTILE])
def test_bill_of_materials_is_valid_cyclonedx(text: str) -> None:
    found = promoted(text)
    document = bill_of_materials(found, ["onnxruntime==1.31.1", "numpy==2.4.1"])
    faults = JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document))
    assert faults is None, faults
    refs = [part["bom-ref"] for part in document["components"]]
    assert len(set(refs)) == len(refs) and "pkg:pypi/onnxruntime@1.31.1" in refs
    assert set(document["dependencies"][0]["dependsOn"]) == set(refs)
    metrics = document["metadata"]["component"]["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert {one["type"] for one in metrics} == {verdict.gate for verdict in found.approval.verdicts}
    # One number in place of a text, and the check fails: it does check.
    metrics[0]["value"] = 1
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is not None
