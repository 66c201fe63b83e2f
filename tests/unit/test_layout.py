"""Rooms: size, direction of imports by syntax and in a fresh interpreter, unique class names, homes of records; test names."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path

import pytest

from validators.targets import BUILT_IN

ROOT = Path(__file__).parents[2]
PACKAGES = ("flows", "tasks", "validators")
# Rooms from the lowest to the highest: each imports only from rooms of earlier lines and from itself.
ORDER = (
    ("validators",),
    ("validators.records", "validators.untrusted"),
    ("validators.job", "tasks.storage"),
    ("validators.samples",),
    ("validators.calibration", "validators.gates", "validators.graph"),
    ("tasks.reporting", "tasks.runtimes"),
    ("tasks.ptq", "tasks.serving"),
    ("tasks.measure",),
    ("tasks.engines",),
    ("tasks.run",),
    ("tasks.registry",),
    ("tasks.evidence", "tasks.records"),
    ("tasks.trials", "tasks.demo"),
    ("tasks.champion",),
    ("tasks.service", "tasks.workers"),
    ("tasks.watch",),
    ("flows",),
    ("flows.service",),
    ("flows.cli",),
    ("flows.docs",),
)
# Rooms that know nothing of orchestration or tracking.
PURE = (
    "tasks/ptq",
    "tasks/runtimes",
    "tasks/measure",
    "tasks/reporting",
    "tasks/serving",
    "tasks/storage",
    "tasks/engines",
    "validators",
)
# The path that judges a candidate, and packages that it does without; `requirements/judge.in` lists those that it needs.
JUDGING = (
    *("tasks.evidence.load_data", "tasks.evidence.resolve_source", "tasks.evidence.target_inventory"),
    *(f"tasks.trials.{name}" for name in ("measure_baseline", "make_candidate", "inspect_variant", "measure_accuracy")),
    *(f"tasks.trials.{name}" for name in ("measure_latency", "judge", "confirm", "gather")),
    *("tasks.engines.catalog", "tasks.records.result_document", "tasks.reporting.page"),
)
UNNEEDED = {
    "boto3",
    "great_expectations",
    "httpx",
    "mlflow",
    "pandas",
    "prefect",
    "sklearn",
    "torch",
    "transformers",
} | {*("cryptography", "openvino", "pyarrow", "rich", "sympy", "tensorrt", "typer", "vl_convert")}
# Folders that go with versions, and the packages that each imports.
SHIPPED = {
    "tasks/engines/tensorrt/shipped": {"numpy"},
    "tasks/engines/openvino_decoder/shipped": {"numpy", "openvino", "tokenizers"},
    "tasks/engines/openvino/shipped": {"numpy", "openvino"},
    "tasks/engines/genai/shipped": {"numpy", "onnxruntime_genai"},
    "tasks/engines/inductor/shipped": {"numpy", "torch"},
    "tasks/runtimes/shipped": {"onnxruntime"},
    "tasks/champion/signed_evidence": {"cryptography", "yaml"},
}
# Modules of a package, without those of packages inside it; entries of tasks/ and of validators/.
MOST_MODULES, MOST_ENTRIES = 16, 18
LONGEST_TEST_NAME = 60


def modules(folder: str) -> list[Path]:
    """The Python files of a folder, with those below it."""
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, f"nothing in {folder}: the test would prove nothing"
    return found


def imports(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it, with all its parents: `a.b` and `from a import b` give a, a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # Consumers get these folders alone, whatever they are called there.
            relative = node.level == 1 and any(path.parent == ROOT / folder for folder in SHIPPED)
            assert node.module and (node.level == 0 or relative), f"{path}: imports are absolute"
            module = f"{name_of(path.parent)}.{node.module}" if relative else node.module
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return {name.rsplit(".", depth)[0] for name in names for depth in range(name.count(".") + 1)}


def room_of(module: str) -> str:
    """The room of a module of ours.

    >>> room_of("tasks.ptq.calibrate.collect"), room_of("validators.errors")
    ('tasks.ptq', 'validators')
    """
    parts = module.split(".")
    return ".".join(parts[:2]) if len(parts) > 2 else parts[0]


def name_of(path: Path) -> str:
    """The dotted name of a module by its file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def our_modules() -> dict[str, Path]:
    """Every module of ours by its dotted name, without `__init__`."""
    return {name_of(path): path for folder in PACKAGES for path in modules(folder) if path.stem != "__init__"}


def test_the_reader_of_imports_sees_all_forms(tmp_path: Path) -> None:
    """The tests below rest on it: plain, dotted, renamed, from, and inside a function."""
    (tmp_path / "x.py").write_text(
        "import a.b as c, d\nfrom e.f import g\ndef h():\n    from i import j\n    if True:\n        import k.l.m\n"
    )
    expected = {"a", "a.b", "d", "e", "e.f", "e.f.g", "i", "i.j", "k", "k.l", "k.l.m"}
    assert imports(tmp_path / "x.py") == expected


@pytest.mark.parametrize("folder", PURE)
def test_pure_folders_name_neither_prefect_nor_mlflow(folder: str) -> None:
    """By syntax, functions and all."""
    seen = {str(path): imports(path) & {"prefect", "mlflow"} for path in modules(folder)}
    assert {path: names for path, names in seen.items() if names} == {}


def test_pure_folders_load_neither_prefect_nor_mlflow() -> None:
    """In a fresh interpreter that imports every module of them, and through whatever they import."""
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for folder in PURE for path in modules(folder)]
    lines = [f"import {name.removesuffix('.__init__')}" for name in names]
    # Great Expectations imports what Python 3.11 deprecates; the product hides that, and here it does not matter.
    code = "\n".join(
        ["import sys", *lines, "print(sorted({'prefect', 'mlflow'} & set(sys.modules)), 'tasks' in sys.modules)"]
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "[] True"


def test_judging_imports_few_packages() -> None:
    """In a fresh interpreter where an import of any other fails; the error ends with the first module that has one."""
    absent = f"""
import sys
class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {UNNEEDED}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent)
"""
    names = [
        *JUDGING,
        *(name_of(path) for path in modules("tasks/run") if path.stem not in ("__init__", "prefect_server")),
    ]
    code = "\n".join([absent, *(f"import {name}" for name in names)])
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, "\n".join(done.stderr.splitlines()[-4:])


def test_rooms_import_downwards_only() -> None:
    """No room imports one beside or above it, so there is no cycle among rooms."""
    ours = our_modules()
    height = {room: level for level, rooms in enumerate(ORDER) for room in rooms}
    assert {room_of(name) for name in ours} == set(height)
    upward = [
        (name, other)
        for name, path in ours.items()
        for other in imports(path) & set(ours)
        if room_of(name) != room_of(other) and height[room_of(other)] >= height[room_of(name)]
    ]
    assert upward == []


def test_rooms_are_small_and_say_what_they_are_for() -> None:
    packages = {path.parent for folder in PACKAGES for path in modules(folder)}
    counts = {path: len([file for file in path.glob("*.py") if file.stem != "__init__"]) for path in packages}
    assert {str(path): count for path, count in counts.items() if count > MOST_MODULES} == {}
    for folder in ("tasks", "validators"):
        entries = [path.name for path in (ROOT / folder).iterdir() if path.name != "__pycache__"]
        assert len(entries) <= MOST_ENTRIES, folder
    silent = [
        str(path) for path in packages if not (path / "__init__.py").read_text(encoding="utf-8").startswith('"""')
    ]
    assert silent == []


def test_class_names_are_unique() -> None:
    """One name for one concept: two classes of one name could be taken for each other."""
    names: dict[str, list[str]] = {}
    for name, path in our_modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names.setdefault(node.name, []).append(name)
    assert len(names) > 200
    assert {name: homes for name, homes in names.items() if len(homes) > 1} == {}


def test_names_of_tests_are_short() -> None:
    """A name states the behaviour; the docstring has the details."""
    names = {
        node.name: str(path)
        for path in modules("tests")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    assert len(names) > 2000
    assert {name: path for name, path in names.items() if len(name) > LONGEST_TEST_NAME} == {}


@pytest.mark.parametrize("folder", SHIPPED)
def test_what_consumers_get_needs_nothing_of_ours(folder: str) -> None:
    """The standard library, numpy, itself, and the runtime; TensorRT and CUDA are loaded by name; evidence needs no numpy."""
    shipped = folder.replace("/", ".")
    found = {name for path in modules(folder) for name in imports(path)}
    outside = {name for name in found if not name.startswith(shipped) and not shipped.startswith(name)}
    assert {name.partition(".")[0] for name in outside} - sys.stdlib_module_names == SHIPPED[folder]


def test_the_consumer_imports_its_packages_alone() -> None:
    """The packages that come with a version are loaded from its folder."""
    names = {name.partition(".")[0] for name in imports(ROOT / "tasks" / "champion" / "consumer" / "consumer.py")}
    assert names - sys.stdlib_module_names == {"mlflow", "numpy"}


def test_flows_define_no_records_and_no_tasks() -> None:
    """What crosses a process border by pickle, or runs as a task, has its home one floor down."""
    faults = []
    for path in modules("flows"):
        if "prefect.task" in imports(path):
            faults.append(f"{path.name}: imports prefect.task")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            decorators = {
                name.id for item in node.decorator_list for name in ast.walk(item) if isinstance(name, ast.Name)
            }
            bases = {ast.unparse(base) for base in node.bases} if isinstance(node, ast.ClassDef) else set()
            if decorators & {"dataclass", "task"} or bases & {"BaseModel", "NamedTuple", "TypedDict", "Enum"}:
                faults.append(f"{path.name}: {node.name}")
    assert faults == []


def test_files_of_flows_are_not_named_like_libraries() -> None:
    """Loaded by file path, Prefect puts flows/ first on the path: a file there would shadow a library of its name."""
    libraries = set(sys.stdlib_module_names) | set(metadata.packages_distributions())
    assert {path.stem for path in modules("flows") if path.stem != "__init__"} & libraries == set()


def test_no_foreign_distribution_has_our_packages_names() -> None:
    """Only quantgate provides flows, tasks and validators, and what is imported is this checkout."""
    provided = metadata.packages_distributions()
    for package in PACKAGES:
        assert set(provided.get(package, [])) <= {"quantgate"}, package
        spec = util.find_spec(package)
        assert spec is not None and spec.origin is not None
        assert Path(spec.origin).resolve() == ROOT / package / "__init__.py"


def test_the_measuring_process_imports_little() -> None:
    """The standard library, numpy and the engine's shipped module: whatever else lives in the process could compute while it
    measures. Where the job names functions of the user's, what loads them comes along, on a GPU what opens models there."""
    found = {
        name
        for name in imports(ROOT / "tasks" / "measure" / "latency" / "worker.py")
        if name.partition(".")[0] not in sys.stdlib_module_names | {"__future__"}
    }
    ours = {name for name in found if name.partition(".")[0] in PACKAGES}
    assert found - ours == {"numpy"}
    assert {name for name in ours if not any(other.startswith(f"{name}.") for other in ours)} == {
        "tasks.measure.metrics.user_code.load_function",
        "tasks.measure.latency.gpu.load",
        "validators.errors.CandidateRefused",
    }
    worker = ast.parse((ROOT / "tasks" / "measure" / "latency" / "worker.py").read_text(encoding="utf-8"))
    assert {facts.loader for facts in BUILT_IN.values()} == {
        f"{folder.replace('/', '.')}.model" for folder in SHIPPED if folder != "tasks/champion/signed_evidence"
    } | {"tasks.engines.tensorrt.shipped.model"}
    at_the_top = [node.module or "" for node in worker.body if isinstance(node, ast.ImportFrom)]
    assert not any(name.partition(".")[0] in PACKAGES for name in at_the_top)
