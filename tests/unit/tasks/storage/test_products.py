"""Products of the store: a change of code makes those again that depend on it, and no others."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tasks.engines.catalog import code_of_engine
from tasks.engines.tensorrt.engine import BUILDER
from tasks.ptq.graph.prepare import make_prepared
from tasks.storage.product import CUTS, Product, code_of
from tasks.storage.store import Store
from validators.source_code import OURS, PACKAGES, SourceTree
from validators.targets import ENGINES

# Kinds of product by the function that makes them.
MAKERS = {
    "library": "tasks.runtimes.libraries.copy_library",
    "source": "tasks.evidence.resolve_source._from_file|_from_registry",
    "given": "tasks.evidence.given.source._fetched",
    "scripted": "tasks.evidence.given.run_script._make",
    "calibration-verdict": "tasks.evidence.judge_calibration._judge",
    "prepared": "tasks.ptq.graph.prepare.make_prepared",
    "fused": "tasks.ptq.graph.prepare.make_fused",
    "rotated": "tasks.ptq.graph.rotate.make_rotated",
    "smoothed": "tasks.ptq.eight_bit.smoothed_graph.make_smoothed",
    "statistics": "tasks.ptq.calibrate.calibration.make_statistics",
    "ranking": "tasks.trials.materials._make_ranking",
    "noise": "tasks.trials.materials._make_noise",
    "rounded-weight": "tasks.trials.materials._make_rounded_weight",
    "forms": "tasks.trials.materials._make_forms",
    "slow-parts": "tasks.trials.materials._make_slow_parts",
    "variant": "tasks.trials.materials._make_variant",
    "engine": "tasks.engines.tensorrt.build.make_engine",
    "refused-build": "tasks.engines.tensorrt.build_process.copy_log",
    "accuracy": "tasks.trials.measure_accuracy.measure_accuracy",
    "coverage": "tasks.measure.coverage.make_coverage",
    "kernels": "tasks.measure.coverage.make_kernels",
    "sanity": "tasks.measure.sanity.make_sanity",
    "continuations": "tasks.measure.continuations.make_continuations",
    "cache-ranges": "tasks.ptq.kv_cache.make_cache_ranges",
    "latency": "tasks.measure.latency.compare.make_latency",
    "saturation": "tasks.measure.saturation.make_saturations",
    "choosing": "validators.samples.copy_rows.copy_rows",
    "evidence": "tasks.champion.signed_evidence.archive.write_archive",
    "champion": "tasks.champion.fetch_champion._download",
}
REQUESTS = {"coverage", "kernels", "latency"}
FROM_PREPARED = {"source", "prepared", "fused"}
INT8 = {"ranking", "noise", "rounded-weight", "forms", "slow-parts", "variant"}
# Rooms that makers know nothing of: what runs, reports, promotes or cleans up.
OTHER_ROOMS = (
    *("flows", "tasks.service", "tasks.reporting", "tasks.registry", "tasks.records", "tasks.workers", "tasks.watch"),
    *("tasks.serving", "tasks.storage", "tasks.demo", "validators.gates"),
)


def module_of(kind: str) -> str:
    """The module of a maker."""
    return MAKERS[kind].rpartition(".")[0]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source tree in a folder of its own."""
    root = tmp_path_factory.mktemp("copy")
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(OURS.root / package, root / package, ignore=ignored)
    return root


@pytest.fixture(scope="module")
def before(copy: Path) -> dict[str, str]:
    """The digest of every kind's code."""
    return digests(copy)


def digests(root: Path) -> dict[str, str]:
    """The digest of every kind's code in a source tree."""
    tree = SourceTree(root)
    files = {kind: tree.modules[module_of(kind)] for kind in MAKERS}
    found = {file: tree.digest(file, CUTS) for file in set(files.values())}
    return {kind: found[file] for kind, file in files.items()}


def changed(copy: Path, before: dict[str, str], edits: dict[str, tuple[str, str]]) -> set[str]:
    """The kinds whose code is another one while some files are edited."""
    texts = {copy / name: (copy / name).read_text() for name in edits}
    try:
        for name, (old, new) in edits.items():
            assert texts[copy / name].count(old) == 1, f"{name}: {old!r} is not there once"
            (copy / name).write_text(texts[copy / name].replace(old, new))
        after = digests(copy)
    finally:
        for file, text in texts.items():
            file.write_text(text)
    return {kind for kind in MAKERS if after[kind] != before[kind]}


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        (
            "tasks/ptq/calibrate/pass_batches.py",
            "PASS_SAMPLES, PASS_BATCH_SIZE = 64, 8",
            "PASS_SAMPLES, PASS_BATCH_SIZE = 32, 8",
            {"smoothed", "rotated", "cache-ranges", *INT8},
        ),
        ("tasks/trials/measure_accuracy.py", "EVALUATION_BATCH_SIZE = 32", "EVALUATION_BATCH_SIZE = 16", {"accuracy"}),
        ("tasks/measure/sanity.py", "SANITY_WINDOWS = 8, 2", "SANITY_WINDOWS = 8, 1", {"sanity"}),
        ("tasks/measure/metrics/perplexity.py", "WINDOWS_AT_ONCE = ", "WINDOWS_AT_ONCE = 1 + ", {"accuracy", "sanity"}),
        ("tasks/measure/request.py", "MOST_REQUESTS = 64", "MOST_REQUESTS = 32", REQUESTS | INT8),
        ("tasks/ptq/graph/prepare.py", "LAYER_NORM_OPSET, ", "_, ", {*FROM_PREPARED, *INT8}),
        ("tasks/ptq/eight_bit/smooth.py", "range(4, 20)", "range(4, 10)", {"smoothed", *INT8}),
        (
            "tasks/ptq/calibrate/calibration.py",
            "LEVELS, SYMMETRIC_LEVELS = 256, 255",
            "LEVELS = 3",
            {"statistics", *INT8},
        ),
        ("tasks/ptq/sensitivity.py", "\nSAMPLES = 16", "\nSAMPLES = 8", INT8),
        ("tasks/ptq/slow_parts.py", "\nATTEMPTS = 3", "\nATTEMPTS = 2", INT8),
        ("tasks/ptq/weight_only/int4_grid.py", "TOP_CODE = 15", "TOP_CODE = 14", {"rotated", *INT8}),
        ("tasks/ptq/build_variant.py", "block_size or 32)", "block_size or 64)", INT8),
        (
            "tasks/engines/tensorrt/build_process.py",
            "PATIENCE_SECONDS = 7200.0",
            "PATIENCE_SECONDS = 1.0",
            {"engine", "refused-build"},
        ),
        (
            "tasks/measure/latency/worker.py",
            "\nimport numpy as np\n",
            "\nimport numpy as np\n\nADDED = 1\n",
            {"latency"},
        ),
        ("tasks/measure/saturation.py", "FixedRanges = ", "ADDED = 1\nFixedRanges = ", {"saturation"}),
        (
            "tasks/measure/coverage.py",
            "def make_kernels",
            "ADDED = 1\ndef make_kernels",
            {"coverage", "kernels"},
        ),
        ("tasks/evidence/torch_export.py", "PARITY_SAMPLES = ", "PARITY_SAMPLES = 1 + ", {"source"}),
        ("tasks/runtimes/libraries.py", "def copy_library", "ADDED = 1\ndef copy_library", {"library"}),
        ("validators/calibration/judge.py", "def judge_cal", "ADDED = 1\ndef judge_cal", {"calibration-verdict"}),
        ("validators/samples/copy_rows.py", "def copy_rows", "ADDED = 1\ndef copy_rows", {"choosing"}),
        ("tasks/champion/fetch_champion.py", "def _download", "ADDED = 1\ndef _download", {"champion"}),
    ],
)
def test_constant_remakes_exactly_its_products(
    copy: Path, before: dict[str, str], file: str, old: str, new: str, expected: set[str]
) -> None:
    assert changed(copy, before, {file: (old, new)}) == expected


def test_code_of_an_engine_remakes_its_own_variants_alone(copy: Path) -> None:
    """The key of a variant has it: the engine is looked up by name, which no import shows."""
    engines = {name: f"{module.removesuffix('.facts')}.engine" for name, module in ENGINES.items()}
    before = {
        name: SourceTree(copy).digest(copy / f"{module.replace('.', '/')}.py", CUTS) for name, module in engines.items()
    }
    assert {name: code_of_engine(name) for name in engines} == before
    file = copy / "tasks/engines/genai/engine.py"
    kept = file.read_text()
    file.write_text(f"{kept}ADDED = 1\n")
    after = {
        name: SourceTree(copy).digest(copy / f"{module.replace('.', '/')}.py", CUTS) for name, module in engines.items()
    }
    file.write_text(kept)
    assert {name for name in engines if after[name] != before[name]} == {"ort-genai"}
    assert code_of_engine("acme-npu") == ""


def test_unrelated_code_remakes_nothing(copy: Path, before: dict[str, str]) -> None:
    """Retention, reports, flows, the registry, gates and where entries lie: all of their files at once."""
    rooms = ("tasks/service", "tasks/reporting", "tasks/registry", "tasks/storage", "validators/gates", "flows")
    files = [str(file.relative_to(copy)) for room in rooms for file in (copy / room).rglob("*.py")]
    first = "from __future__ import annotations\n"
    edits = {name: (first, f"{first}ADDED = 1\n") for name in files if first in (copy / name).read_text()}
    assert "tasks/service/retention_policy.py" in edits and len(edits) > 80
    assert changed(copy, before, edits) == set()


@pytest.mark.parametrize("kind", MAKERS)
def test_maker_imports_little(kind: str) -> None:
    found = OURS.closure(OURS.modules[module_of(kind)], CUTS)
    strange = [name for name in found if any(f"{name}.".startswith(f"{room}.") for room in OTHER_ROOMS)]
    assert strange == []
    assert len(found) < 160


def test_every_cut_is_a_module_that_a_maker_imports() -> None:
    """A cut that nothing needs hides code from keys later."""
    uncut = {name for kind in MAKERS for name in OURS.closure(OURS.modules[module_of(kind)])}
    assert [cut for cut in CUTS if not any(f"{name}.".startswith(f"{cut}.") for name in uncut)] == []


def made_products() -> Iterator[tuple[str, str, str, ast.Module]]:
    """Every `Product(...)` of ours: its kind, the module, the source of the function around it, and the module's tree."""
    for name, file in OURS.modules.items():
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "Product":
                around = [one for one in functions if one.lineno <= call.lineno <= (one.end_lineno or 0)]
                kind = ast.literal_eval(call.args[0])
                yield kind, name, ast.unparse(around[0]) if around else "", tree


def test_table_of_makers_is_that_of_the_code() -> None:
    """The tests above rest on it: every kind is there, and its maker is what the product is given."""
    seen = set()
    for kind, module, function, tree in made_products():
        seen.add(kind)
        home, _, names = MAKERS[kind].rpartition(".")
        assert any(name in function for name in names.split("|")), (kind, names)
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == home
            for alias in node.names
        }
        by_builder = f"builder.{names}" in function and getattr(BUILDER, names).__module__ == home
        assert module == home or imported & set(names.split("|")) or by_builder, (kind, module)
    assert seen == set(MAKERS)


def test_code_of_a_maker_is_that_of_its_function() -> None:
    """Also behind arguments that are bound; a maker outside of our packages has none."""
    file = OURS.modules["tasks.ptq.graph.prepare"]
    bound = partial(partial(make_prepared, Path("a.onnx")), ())
    assert code_of(make_prepared) == code_of(bound) == OURS.digest(file, CUTS)
    assert code_of(lambda folder: folder) == ""


def test_product_among_inputs_stands_for_its_key(tmp_path: Path) -> None:
    def outer(digest: str) -> Product[str]:
        inner = Product("prepared", (digest,), Path, partial(make_prepared, Path("a.onnx"), ()))
        return Product("thing", (inner, "x"), str, lambda _: digest)

    assert outer("a").key == outer("a").key != outer("b").key
    assert code_of(make_prepared) in str(outer("a").key)
    store = Store(tmp_path)
    assert [store.make(outer(digest)) for digest in "aba"] == [("a", False), ("b", False), ("a", True)]
