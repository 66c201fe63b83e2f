"""What a consumer does where version or device are others than those of the approval: it warns, or refuses if it is told to."""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from cgroup_trees import CPU_V1, UNIFIED, plant
from conftest import Tiny

from tasks.champion.manifest import hardware_of
from tasks.champion.promote import CONSUMER
from tasks.measure.inventory import take_inventory
from tasks.measure.latency.cgroup import quota_cores
from validators.digests import digest_file
from validators.records.run import Gpu

H200 = {"name": "NVIDIA H200", "compute_capability": "9.0", "driver": "580.95"}


@pytest.fixture(scope="module")
def consumer() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mlflow's, about its own type hints
        return importlib.import_module("tasks.champion.consumer.consumer")


@pytest.fixture
def version(tiny: Tiny, tmp_path: Path) -> dict[str, Any]:
    """The manifest of a version that was approved here, its files in `tmp_path / "variant"`."""
    (tmp_path / "variant").mkdir()
    file = Path(shutil.copy(tiny.model, tmp_path / "variant" / "model.onnx"))
    return {
        "files": {"model.onnx": digest_file(file)},
        "session": {
            "provider": "CPUExecutionProvider",
            "threads": 1,
            "optimization": "basic",
            "entries": {"session.intra_op.allow_spinning": "0"},
            "provider_options": {},
        },
        "libraries": [],
        "engine": None,
        "loader": "tasks.runtimes.shipped.model",
        "artifact": "model.onnx",
        "compiled": False,
        "inputs": {"x": "float32"},
        "outputs": ["logits"],
        "runtime": "onnxruntime",
        "runtime_version": onnxruntime.__version__,
        "hardware": hardware_of(take_inventory("ort-cpu")),
    }


def opened(consumer: ModuleType, folder: Path, manifest: dict[str, Any]) -> Any:
    """The champion, as MLflow opens it."""
    path = folder / "manifest.json"
    path.write_text(json.dumps(manifest), encoding="utf-8")
    champion = consumer.OnnxChampion()
    champion.load_context(SimpleNamespace(artifacts={"manifest": str(path), "variant": str(folder / "variant")}))
    return champion


def test_where_it_was_approved_it_is_loaded_without_a_word(
    consumer: ModuleType, version: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused or not; with every setting of the session as it was approved."""
    for policy in ("warn", "refuse"):
        monkeypatch.setenv(consumer.POLICY, policy)
        champion = opened(consumer, tmp_path, version)
    options = champion.session.get_session_options()
    assert options.intra_op_num_threads == 1
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert champion.predict(None, {"x": np.zeros((2, 64))})["logits"].shape == (2, 4)


def older(manifest: dict[str, Any]) -> None:
    manifest["runtime_version"] = "1.2.3"


def other_processor(manifest: dict[str, Any]) -> None:
    manifest["hardware"]["processor"] = "Z80"


def lacks(manifest: dict[str, Any]) -> None:
    manifest["hardware"]["isa"]["made_up"] = True


def has_more(manifest: dict[str, Any]) -> None:
    flag = next(name for name, had in manifest["hardware"]["isa"].items() if had)
    manifest["hardware"]["isa"][flag] = False


def more_cores(manifest: dict[str, Any]) -> None:
    manifest["hardware"]["cores"] += 1000


def on_a_gpu(manifest: dict[str, Any]) -> None:
    manifest["hardware"]["gpu"] = dict(H200)


MISMATCHES: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (older, rf"found onnxruntime {onnxruntime.__version__}; .* 1\.2\.3"),
    (other_processor, "found processor .* Z80"),
    (lacks, "found a processor without made_up"),
    (has_more, "found a processor with "),
    (more_cores, r"found \d+ cores to compute on"),
]


@pytest.mark.parametrize(("change", "told"), MISMATCHES)
def test_a_mismatch_is_a_warning_by_default(
    consumer: ModuleType,
    version: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[dict[str, Any]], None],
    told: str,
) -> None:
    """It answers all the same."""
    monkeypatch.delenv(consumer.POLICY, raising=False)
    change(version)
    with pytest.warns(UserWarning, match=told):
        champion = opened(consumer, tmp_path, version)
    assert champion.predict(None, np.zeros((1, 64)))["logits"].shape == (1, 4)


@pytest.mark.parametrize(("change", "told"), MISMATCHES)
def test_a_mismatch_is_refused_if_told_so(
    consumer: ModuleType,
    version: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[dict[str, Any]], None],
    told: str,
) -> None:
    monkeypatch.setenv(consumer.POLICY, "refuse")
    change(version)
    with pytest.raises(RuntimeError, match=f"{told}.*set QUANTGATE_MISMATCH=warn"):
        opened(consumer, tmp_path, version)


AVX2, VNNI = {"avx2"}, {"avx2", "avx_vnni"}


@pytest.mark.parametrize("policy", [None, "warn", "refuse"])
def test_saturating_sums_are_refused_by_default(
    consumer: ModuleType, version: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str | None
) -> None:
    monkeypatch.delenv(consumer.POLICY, raising=False)
    if policy:
        monkeypatch.setenv(consumer.POLICY, policy)
    version["saturates_without"] = ["avx512_vnni", "avx_vnni", "amx_int8"]
    monkeypatch.setattr(consumer, "_processor_here", lambda: (version["hardware"]["processor"], AVX2, 8))
    with pytest.raises(
        RuntimeError, match=r"without avx512_vnni, avx_vnni and amx_int8.*portable: true.*=allow to open"
    ):
        opened(consumer, tmp_path, version)


def test_saturating_sums_are_warned_of_where_they_are_allowed(
    consumer: ModuleType, version: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else differs is a warning as well."""
    monkeypatch.setenv(consumer.POLICY, "allow")
    version["saturates_without"] = ["avx_vnni"]
    older(version)
    monkeypatch.setattr(consumer, "_processor_here", lambda: (version["hardware"]["processor"], AVX2, 8))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opened(consumer, tmp_path, version)
    told = [str(one.message) for one in caught]
    assert "saturate: it gives other answers" in told[0] and "found onnxruntime" in told[1]


@pytest.mark.parametrize(
    ("flags", "needed"),
    [(VNNI, ["avx512_vnni", "avx_vnni"]), ({"asimddp"}, ["avx512_vnni", "avx_vnni"]), (AVX2, []), (AVX2, None)],
    ids=["VNNI", "ARM", "a portable version", "a version of an earlier release"],
)
def test_sums_that_are_exact_here_are_no_mismatch(
    consumer: ModuleType, monkeypatch: pytest.MonkeyPatch, flags: set[str], needed: list[str] | None
) -> None:
    monkeypatch.setattr(consumer, "_processor_here", lambda: ("Z80", flags, 8))
    consumer._check_sums({} if needed is None else {"saturates_without": needed})


def test_differing_instructions_of_a_processor_are_one_mismatch(
    consumer: ModuleType, version: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(consumer.POLICY, raising=False)
    version["hardware"] |= {"isa": {"one": True, "two": True, "three": False, "same": True}, "cores": 1}
    flags = {"three", "same"}
    monkeypatch.setattr(consumer, "_processor_here", lambda: (version["hardware"]["processor"], flags, 8))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        consumer._check_device(version["hardware"])
    lacking, more = (str(one.message) for one in caught)
    assert "without one, two; the variant was approved on one with them" in lacking
    assert "with three; the variant was approved on one without it" in more


def test_fewer_cores_than_here_are_no_mismatch(
    consumer: ModuleType, version: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session has the threads that it was approved with."""
    monkeypatch.setenv(consumer.POLICY, "refuse")
    monkeypatch.setattr(consumer, "_usable_cores", lambda: version["hardware"]["cores"] + 6)
    opened(consumer, tmp_path, version)


@pytest.mark.parametrize(
    ("told", "approved", "usable", "threads"),
    [
        (None, 16, 2, 2),
        (None, 2, 8, 2),
        (None, 16, 16, 16),
        (None, 20, 16, 20),  # more threads than cores, as they were measured
        (None, 0, 2, 2),
        ("5", 16, 2, 5),
        ("", 16, 2, 2),
    ],
)
def test_threads_are_capped_at_the_usable_cores(
    consumer: ModuleType,
    version: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    told: str | None,
    approved: int,
    usable: int,
    threads: int,
) -> None:
    """Approved on 16 cores, loaded where fewer are usable: with a warning, unless the environment names a number."""
    monkeypatch.delenv(consumer.POLICY, raising=False)
    monkeypatch.delenv(consumer.THREADS, raising=False)
    if told is not None:
        monkeypatch.setenv(consumer.THREADS, told)
    monkeypatch.setattr(consumer, "_usable_cores", lambda: usable)
    version["hardware"]["cores"] = 16
    version["session"]["threads"] = approved
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        champion = opened(consumer, tmp_path, version)
    assert champion.session.get_session_options().intra_op_num_threads == threads
    fewer = [f"found {usable} cores to compute on"] if usable < 16 else []
    assert [str(one.message).partition(";")[0] for one in caught] == fewer
    assert all("threads are capped at the usable cores" in str(one.message) for one in caught)


@pytest.mark.parametrize("told", ["0", "-1", "2.5", "all"])
def test_a_wrong_number_of_threads_is_refused(
    consumer: ModuleType, version: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    monkeypatch.setenv(consumer.THREADS, told)
    with pytest.raises(RuntimeError, match=f"found QUANTGATE_THREADS={told}; expected an integer above 0"):
        opened(consumer, tmp_path, version)


@pytest.mark.parametrize("cgroup", ["0::/\n", "0::/pod/box\n", "0::/../x\n", "4:cpu,cpuacct:/box\n0::/\n", ""])
@pytest.mark.parametrize("start", ["/", "/pod", "/pod/box"])
def test_it_reads_quotas_as_the_measurement_does(consumer: ModuleType, tmp_path: Path, cgroup: str, start: str) -> None:
    """It has a copy of that code too."""
    files = {
        "cpu.max": "700000 100000\n",
        "pod/cpu.max": "max 100000\n",
        "pod/box/cpu.max": "250000 100000\n",
        "box/cpu.max": "300000 100000\n",
        "cpu/box/cpu.cfs_quota_us": "150000\n",
        "cpu/box/cpu.cfs_period_us": "100000\n",
        "cpu/cpu.cfs_quota_us": "-1\n",
    }
    root = plant(tmp_path, cgroup, UNIFIED.format(start=start) + CPU_V1.format(start="/"), **files)
    assert consumer._quota_cores(root) == quota_cores(root) is not None
    assert consumer._quota_cores(tmp_path / "none") is None


def test_a_policy_that_is_misspelt_is_said_at_once(
    consumer: ModuleType, version: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing to be refused."""
    monkeypatch.setenv(consumer.POLICY, "Refuse")
    with pytest.raises(RuntimeError, match="found QUANTGATE_MISMATCH=Refuse; expected warn, refuse or allow"):
        opened(consumer, tmp_path, version)


class Nvml(ModuleType):
    """In the place of `pynvml`, of GPUs of these names."""

    NVMLError = OSError

    def __init__(self, *names: str, driver: str = H200["driver"], fails: bool = False) -> None:
        super().__init__("pynvml")
        self.names, self.driver, self.fails = names, driver, fails

    def nvmlInit(self) -> None:  # noqa: N802  # its name
        if self.fails:
            raise self.NVMLError("no driver")

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlDeviceGetCount": lambda: len(self.names),
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetName": lambda handle: self.names[handle],
            "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
            "nvmlSystemGetDriverVersion": lambda: self.driver,
        }
        return answers[name]


@pytest.mark.parametrize(
    ("nvml", "told"),
    [
        (Nvml("NVIDIA H200", "NVIDIA H200"), []),
        (Nvml("NVIDIA H100"), ["found NVIDIA H100, compute capability 9.0; "]),
        (Nvml("NVIDIA H200", "NVIDIA L4"), ["found NVIDIA H200, compute capability 9.0 and NVIDIA L4"]),
        (Nvml("NVIDIA H200", driver="590.1"), ["found NVIDIA driver 590.1; "]),
        (Nvml(), ["found no GPU; "]),
        (Nvml(fails=True), ["found an unknown GPU (no driver)", "found NVIDIA driver unknown"]),
        (None, ["found an unknown GPU (nvidia-ml-py is not installed)", "found NVIDIA driver unknown"]),
    ],
    ids=["the same", "another", "a second kind", "driver", "none", "no driver", "no bindings"],
)
def test_on_a_gpu_it_is_the_gpu_that_counts(
    consumer: ModuleType,
    version: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    nvml: Nvml | None,
    told: list[str],
) -> None:
    """Its model, compute capability and driver, and not the processor beside it."""
    monkeypatch.delenv(consumer.POLICY, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    other_processor(version)
    on_a_gpu(version)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        consumer._check_device(version["hardware"])
    found = [str(one.message) for one in caught]
    assert len(found) == len(told) and all(line.startswith(start) for line, start in zip(found, told, strict=True)), (
        found
    )


def test_it_looks_at_the_device_as_the_inventory_does(consumer: ModuleType) -> None:
    """It has a copy of that code, since it goes where quantgate is not."""
    here = take_inventory("ort-cpu")
    name, flags, cores = consumer._processor_here()
    told = hardware_of(here)
    assert (name, cores) == (told["processor"], told["cores"])
    assert {flag for flag, had in told["isa"].items() if had} == flags & set(told["isa"]) == set(here.isa)
    gpu = Gpu("NVIDIA H200", "GPU-1", "9.0", "580.95", 1)
    assert hardware_of(replace(here, gpu=gpu))["gpu"] == H200


TOKENS = [["ids", "int64", ["s0", "s1"]], ["mask", "int64", ["s0", "s1"]], ["image", "float32", ["s0", 3, 8]]]


@pytest.mark.parametrize(
    ("name", "array", "fits"),
    [
        ("mask", np.zeros((4, 5), np.int64), True),
        # Axes of one symbol have one size, as the compiled code takes for granted.
        ("mask", np.zeros((4, 6), np.int64), False),
        ("mask", np.zeros((3, 5), np.int64), False),
        ("mask", np.zeros((4, 5), np.int32), False),
        ("mask", np.zeros((4,), np.int64), False),
        ("image", np.zeros((4, 3, 7), np.float32), False),
    ],
)
def test_arrays_of_a_compiled_package_are_checked(name: str, array: np.ndarray, fits: bool) -> None:
    from tasks.engines.inductor.shipped.model import InductorModel

    feed = {key: np.zeros((4, 5), np.int64) for key in ("ids", "mask")} | {"image": np.zeros((4, 3, 8), np.float32)}
    model = object.__new__(InductorModel)
    model.about, model._on_gpu = {"inputs": TOKENS}, False
    with nullcontext() if fits else pytest.raises(RuntimeError) as caught:
        assert len(model._tensors(feed | {name: array})) == 3
    assert fits or str(caught.value).startswith(f"found {name} with {array.dtype} {list(array.shape)}")


def test_processor_without_instructions_of_a_package_is_refused(
    consumer: ModuleType, version: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning would be followed by the end of the process."""
    here = hardware_of(take_inventory("ort-cpu"))
    hardware = here | {"isa": here["isa"] | {"avx2": True}}
    name, flags, cores = consumer._processor_here()
    monkeypatch.setattr(consumer, "_processor_here", lambda: (name, flags - {"avx2"}, cores))
    version |= {"hardware": hardware, "compiled": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="found a processor without avx2; expected one with"):
            opened(consumer, tmp_path, version)


def test_each_version_is_opened_by_its_own_module(tmp_path: Path) -> None:
    """Of one name, in one process: a service opens what several releases of quantgate made."""
    told = []
    for release in ("first", "second"):
        folder = tmp_path / release / "code" / "quantgate_engine"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        (folder / "beside.py").write_text(f"RELEASE = {release!r}\n")
        (folder / "model.py").write_text("from .beside import RELEASE\n")
        file = shutil.copy(CONSUMER, tmp_path / release / "consumer.py")
        spec: Any = importlib.util.spec_from_file_location(f"consumer_{release}", file)
        consumer = importlib.util.module_from_spec(spec)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # mlflow's, about its own type hints
            spec.loader.exec_module(consumer)
        told += [consumer._shipped("quantgate_engine.model").RELEASE for _ in range(2)]
    assert told == ["first", "first", "second", "second"]
