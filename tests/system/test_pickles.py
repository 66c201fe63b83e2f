"""No pickle of a model or of data is ever loaded, unless the operator names the model; then by a process without secrets."""

from __future__ import annotations

import contextlib
import json
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import hostile_programs
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from conftest import Tiny
from driving import Answer, environment, run_jobs, write_job
from exported_models import export_program
from hostile_programs import ATTACKS, MODEL, changed

from tasks.evidence.torch_export import Original, convert
from validators.errors import DataError, SourceError
from validators.samples.readers import read_arrays
from validators.untrusted.torch_program import check_program

TESTS = Path(__file__).parents[1] / "support"
# What torch 2.13 refuses by itself, at a later place.
HARMLESS = {"operator"}
# Attacks by members that quantgate does not read.
IGNORED = {"samples"}
SECRET = "zebra-crossing-4711"


class Touch:
    """Pickled, it touches a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.canary,)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """A folder of hostile programs, and those that worked when torch loaded them."""
    folder = tmp_path_factory.mktemp("programs")
    command = [sys.executable, str(TESTS / "hostile_programs.py"), str(folder)]
    done = subprocess.run(command, env=environment(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder, set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_the_attacks_work_where_nothing_guards_torch(programs: tuple[Path, set[str]]) -> None:
    """Else the test below would prove nothing."""
    assert programs[1] == set(ATTACKS) - HARMLESS


@pytest.mark.slow
@pytest.mark.parametrize("attack", sorted(set(ATTACKS) - IGNORED))
def test_a_program_that_would_run_code_is_refused(programs: tuple[Path, set[str]], attack: str) -> None:
    """Before torch sees it."""
    folder = programs[0]
    with pytest.raises(SourceError) as caught:
        export_program(folder / f"{attack}.pt2", folder / "out.onnx", lambda _: pytest.fail("exported"))
    assert "QUANTGATE_ALLOWED_PICKLES" in caught.value.fix and f"{attack}.pt2" in caught.value.found
    assert not list(folder.glob("*.canary")) and not (folder / "out.onnx").exists()


@pytest.mark.slow
def test_sample_inputs_of_a_program_are_not_unpickled(programs: tuple[Path, set[str]]) -> None:
    """Torch reads them as tensors alone, and where that fails as any pickle."""
    folder = programs[0]
    check_program(folder / "samples.pt2")
    convert(Original("program", folder / "samples.pt2"), folder / "samples.onnx")
    assert (folder / "samples.onnx").exists() and not list(folder.glob("*.canary"))


@pytest.mark.slow
@pytest.mark.parametrize("text", ['a"), 0)); run(); (("', "a\\", "a\nb", "a??/"])
def test_a_string_that_ends_one_of_cpp_is_refused(programs: tuple[Path, set[str]], tmp_path: Path, text: str) -> None:
    """Inductor quotes the message of an assertion in the code that it compiles."""

    def write(text: str) -> Path:
        def change(model: Any) -> None:
            arguments = model["graph_module"]["graph"]["nodes"][0]["inputs"]
            arguments.append({"name": "mode", "arg": {"as_string": text}, "kind": 1})

        with zipfile.ZipFile(programs[0] / "plain.pt2") as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        hostile_programs.write(tmp_path / "program.pt2", changed(members, MODEL, change))
        return tmp_path / "program.pt2"

    check_program(write("bhqk,bhkd->bhqd: 'floor', at 3.5!"))
    with pytest.raises(SourceError, match="the string"):
        check_program(write(text))


@pytest.mark.slow
def test_archives_of_another_shape_are_refused(programs: tuple[Path, set[str]], tmp_path: Path) -> None:
    """Compiled libraries, old formats, members twice or in another place, bytes before or behind, bombs."""
    with zipfile.ZipFile(programs[0] / "plain.pt2") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}

    def write(extra: dict[str, bytes], prefix: bytes = b"", comment: bytes = b"", method: int = 0) -> Path:
        path = tmp_path / "program.pt2"
        path.write_bytes(prefix)
        with zipfile.ZipFile(path, "a", method) as archive:
            for name, content in (members | extra).items():
                archive.writestr(name, content)
            archive.comment = comment
        return path

    check_program(write({}))
    library = "plain/data/aotinductor/model/model.wrapper.so"
    bad: list[Path] = []
    for number, path in enumerate(
        [
            lambda: write({library: b"\x7fELF"}),
            lambda: write({"serialized_exported_program.json": b"{}", "version": b"8.0"}),
            lambda: write({"plain/../../evil": b""}),
            lambda: write({"/etc/passwd": b""}),
            lambda: write({"other/models/model.json": b"{}"}),
            lambda: write({"plain/models/second.json": b"{}"}),
            lambda: write({}, prefix=b"#!/bin/sh\n"),
            lambda: write({}, comment=b"PK\x05\x06"),
            lambda: write({"plain/extra/bomb": b"\0" * 10_000_000}, method=zipfile.ZIP_DEFLATED),
        ]
    ):
        bad.append(path().rename(tmp_path / f"{number}.pt2"))
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(write({}), "a") as archive:
        archive.writestr("plain/models/model.json", members["plain/models/model.json"])
    for path in [*bad, tmp_path / "program.pt2"]:
        with pytest.raises(SourceError):
            check_program(path)


def test_object_arrays_are_refused(tmp_path: Path) -> None:
    """In an archive, and in an array of its own; unguarded they would run."""
    canary = tmp_path / "canary"
    objects = np.array([Touch(canary)], dtype=object)
    np.savez(tmp_path / "data.npz", x=np.ones(3), evil=objects)
    with pytest.raises(DataError, match="'evil' holds Python objects"):
        read_arrays(tmp_path / "data.npz", "evaluation")
    (tmp_path / "raw.npz").write_bytes(pickle.dumps(Touch(canary)))
    with pytest.raises(DataError):
        read_arrays(tmp_path / "raw.npz", "evaluation")
    assert not canary.exists()
    with np.load(tmp_path / "data.npz", allow_pickle=True) as archive:
        archive["evil"]
    assert canary.exists()


def test_extension_types_of_parquet_are_not_unpickled(tmp_path: Path) -> None:
    """Arrow once wrote Python's extension types as pickles into the schema, and read them back."""
    canary = tmp_path / "canary"
    told = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Touch(canary)),
    }
    schema = pyarrow.schema([pyarrow.field("x", pyarrow.int64(), metadata=told)])
    pyarrow.parquet.write_table(pyarrow.table({"x": [1, 2]}, schema=schema), tmp_path / "data.parquet")
    binary = pyarrow.table({"x": [pickle.dumps(Touch(canary))] * 2})
    pyarrow.parquet.write_table(binary, tmp_path / "binary.parquet")
    for name in ("data.parquet", "binary.parquet"):
        with contextlib.suppress(DataError):
            read_arrays(tmp_path / name, "evaluation")
    assert not canary.exists()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> tuple[Path, dict[str, Answer]]:
    """A pickled source without permission, and with it; and one whose pickle tells what it sees."""
    root = tmp_path_factory.mktemp("pickles")
    (root / "state").mkdir()
    plant = [sys.executable, str(TESTS / "hostile_model.py"), str(tiny.model.parent), str(root / "canary")]
    done = subprocess.run(plant, env=environment(root / "state"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not (root / "canary").exists()
    job = tiny.job(source="models:/innocent/1")
    good = str(write_job(root / "good.yaml", job))
    evil = str(write_job(root / "evil.yaml", tiny.job(source="models:/hostile/1")))
    denied = [{"name": "denied", "job": good}, {"name": "evil", "job": evil}]
    answers = run_jobs(
        root / "state", root / "one", denied, plain=True, QUANTGATE_ALLOWED_PICKLES="tiny,innocent/2,hostil,*"
    )
    assert not (root / "canary").exists()
    extra = {"QUANTGATE_ALLOWED_PICKLES": "other, innocent/1,hostile", "AWS_SECRET_ACCESS_KEY": SECRET}
    calls = [{"name": "allowed", "job": good}, {"name": "seen", "job": evil}]
    return root, answers | run_jobs(root / "state", root / "two", calls, plain=True, **extra)


@pytest.mark.slow
def test_a_pickled_model_needs_the_operators_word(runs: tuple[Path, dict[str, Answer]]) -> None:
    """For that model, or that version of it; and then the source is the model that was pickled."""
    for name in ("denied", "evil"):
        answer = runs[1][name]
        assert answer.code == 2 and "serialization_format='pt2'" in " ".join(answer.said.split()), answer.said
    assert runs[1]["allowed"].result is not None
    assert runs[1]["allowed"].result["outcome"] == "promoted", runs[1]["allowed"].said


@pytest.mark.slow
def test_what_an_allowed_pickle_sees(runs: tuple[Path, dict[str, Answer]]) -> None:
    """No secret, no address of a server, no home of the user's; that it ran is what the operator allowed."""
    seen = json.loads((runs[0] / "canary").read_text())
    assert SECRET not in json.dumps(seen)
    assert not [name for name in seen["environment"] if name.startswith(("AWS_", "MLFLOW_", "PREFECT_", "QUANTGATE_"))]
    assert seen["environment"]["HOME"] == seen["folder"] and seen["limits"]["core"] == 0
    assert seen["limits"]["processor_seconds"] == 3600
