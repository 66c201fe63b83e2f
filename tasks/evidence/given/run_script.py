"""A file that a script of the job's own makes: run in a process of its own, with limits, and kept by all that it depends on.

The script is the user's code, which the operator must allow by name; it gets the source and calibration samples, never the
evaluation samples.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from tasks.engines.given import files_of, only_file
from tasks.evidence.flavors import flavors_of
from tasks.evidence.given import script_process
from tasks.evidence.hugging_face import decoder_folder
from tasks.measure.metrics.user_code import check_allowed
from tasks.ptq.graph.edits import model_bytes
from tasks.registry.mlflow_registry import connect, download
from tasks.run.context import log
from tasks.run.loaded_run import LoadedRun
from tasks.storage.product import Product
from validators.child_environment import child_environment
from validators.deadline import check_deadline
from validators.digests import digest_file, digest_values, weights_of
from validators.errors import CandidateRefused
from validators.job.given_file import GivenFile
from validators.plain_text import shortened
from validators.redact import redact
from validators.untrusted.operator_allowlist import check_python
from validators.untrusted.paths import inside

# Lines of what a script said that a refusal shows, characters of each, and characters kept of all.
LINES, LINE, KEPT = 5, 200, 20_000
# The largest file that a script may write: a multiple of the source's size, plus bytes.
WRITTEN_SIZES, WRITTEN_BYTES = 8, 1 << 30
# Names a script's processes, wherever they went.
MARK = "QG_SCRIPT_RUN"
_VERSIONS = (
    "import importlib.metadata as m, sys; print(sys.version, sorted((d.name, d.version) for d in m.distributions()))"
)


def file_of_script(run: LoadedRun, given: GivenFile, endings: Collection[str]) -> Path:
    """Return the file that the script makes of the source; it is in the store.

    Raises:
        JobError: the operator does not allow the script, or the interpreter.
        CandidateRefused: `unsupported`: the job has no calibration data, or the script is no file of its `code` folder;
            `invalid`: it fails, or returns no model file of its work folder; `infrastructure`: the time is up.
    """
    assert given.make is not None
    path, place = (
        _adapter(given.make) if given.has_adapter else check_allowed(given.make, run.job.code, key="given.make")
    )
    calibration = run.evidence.calibration
    if place is None or calibration is None:
        lacking = f"no file {path}" if place is None else "a job without `data.calibration`"
        raise CandidateRefused(
            kind="unsupported",
            found=f"`make: {given.make}` and {lacking}",
            expected="a function in a Python file of the job's `code` folder, and calibration samples for it",
            fix="correct `code` or `make`, or name the data",
        )
    if given.python is not None:
        check_python(given.python)
    python = str(given.python or sys.executable)
    sources = sorted(place.resolve().rglob("*.py"))
    inputs = (
        given.make,
        [(str(file.relative_to(place.resolve())), digest_file(file)) for file in sources],
        digest_values(_versions(python)),
        run.source.digest,
        calibration.file.digest,
    )
    arrays = {name: np.asarray(array) for name, array in calibration.inputs.items()}
    make = partial(_make, run, given, path, python, arrays, endings)
    with run.clock.work("run scripts"):
        file, _ = run.store.make(Product("scripted", inputs, Path, make))
    return file


def _adapter(tool: str) -> tuple[Path, Path]:
    """Return the script that calls a tool, and its folder."""
    place = Path(__file__).parent / "adapters"
    return place / f"with_{tool.replace('-', '_')}.py", place


def _versions(python: str) -> str:
    """Return the version of an interpreter and of all that is installed for it."""
    try:
        done = subprocess.run([python, "-c", _VERSIONS], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise CandidateRefused(
            kind="invalid",
            found=f"`python: {python}` does not run: {error}",
            expected="the Python of an environment, such as environment/bin/python",
            fix="correct `python`",
        ) from error
    return done.stdout


def _make(
    run: LoadedRun,
    given: GivenFile,
    path: Path,
    python: str,
    arrays: dict[str, Any],
    endings: Collection[str],
    folder: Path,
) -> Path:
    with tempfile.TemporaryDirectory(prefix="quantgate-script-") as scratch:
        work = Path(scratch) / "work"
        work.mkdir()
        np.savez(Path(scratch) / "calibration.npz", **arrays)
        # A copy: the script could write to it.
        source = _copy_of_source(run, Path(scratch))
        orders = {
            "file": str(path),
            "function": "quantize" if given.has_adapter else (given.make or "").partition(":")[2],
            "source": str(source),
            "calibration": f"{scratch}/calibration.npz",
            "folder": str(work),
            "answer": f"{scratch}/answer.json",
            "written_bytes": model_bytes(run.source.onnx_path) * WRITTEN_SIZES + WRITTEN_BYTES,
            "memory_bytes": int((run.job.budgets.memory_mb or 0) * 1e6),
        }
        said = _run(given, python, orders)
        answer = Path(scratch) / "answer.json"
        told = (
            json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else {"error": "its process ended early"}
        )
        if "error" in told:
            raise _refused(given, str(told["error"]), said)
        made = only_file(Path(told["path"]), endings, given.make or "")
        if not made.is_file() or not made.resolve().is_relative_to(work.resolve()):
            raise _refused(given, f"it returned {made}, which is no file of its work folder", said)
        found = given.model_copy(update={"file": made})
        files, home = files_of(found, endings, custom_operators=bool(run.libraries)), made.parent.resolve()
        for file in files:
            if file.is_symlink() or not file.resolve().is_relative_to(home):
                raise _refused(given, f"its {file.name} lies elsewhere", said)
        for file in files:
            target = folder / file.resolve().relative_to(home)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(file, target)
        return inside(folder, made.name, said_by=given.make or "")


def _copy_of_source(run: LoadedRun, folder: Path) -> Path:
    """Return an ONNX file or, of a decoder, the folder of its version of transformers."""
    if run.source.companions:
        (folder / "source").mkdir()
        return fetch_decoder(run, folder / "source")
    source = folder / "source.onnx"
    for file, copy in ((run.source.onnx_path, source), (weights_of(run.source.onnx_path), weights_of(source))):
        shutil.copyfile(file, copy) if file.exists() else None
    return source


def fetch_decoder(run: LoadedRun, folder: Path) -> Path:
    """Download the version of a decoder into `folder` once more; return its configuration, weights and tokenizer in one folder.

    Raises:
        InfrastructureError: the registry does not answer.
    """
    uri = f"models:/{run.source.name}/{run.source.version}"
    with connect(run.tracking_uri):
        model = download(uri, folder)
    return decoder_folder(model, flavors_of(model, uri)["transformers"], uri)


def _run(given: GivenFile, python: str, orders: dict[str, Any]) -> str:
    """Run the script to its end, and end all that it started; return the end of what it said."""
    mark = uuid.uuid4().hex
    home = orders["folder"]
    environment = child_environment() | {"HOME": home, "TMPDIR": home, MARK: mark}
    process = subprocess.Popen(
        [python, "-P", script_process.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=home,
        env=environment,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    said: deque[bytes] = deque(maxlen=KEPT // 1000)
    reader = threading.Thread(target=_keep_end, args=(process.stdout, said), daemon=True)
    reader.start()
    end = time.monotonic() + given.seconds
    try:
        process.stdin.write(json.dumps(orders).encode())
        process.stdin.close()
        while process.poll() is None:
            check_deadline()
            if time.monotonic() > end:
                raise _refused(given, f"it did not end within `seconds: {given.seconds:g}`", _text(said))
            time.sleep(0.05)
    except BrokenPipeError:
        process.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        left = _end_marked(mark)
        reader.join(timeout=1)
        if not reader.is_alive():
            process.stdout.close()
    if left:
        log.warning("%s left %d processes running, which were ended", given.make, left)
    return _text(said)


def _keep_end(stream: IO[bytes], said: deque[bytes]) -> None:
    with suppress(ValueError, OSError):  # it is closed
        while part := stream.read1(1000):  # type: ignore[attr-defined]  # a buffered pipe has it
            said.append(part)


def _text(said: deque[bytes]) -> str:
    return b"".join(said).decode(errors="replace")


def _end_marked(mark: str) -> int:
    """End the processes that carry a mark in their environment, also those that left the session; return their number."""
    ended = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                ended += 1
    return ended


def _refused(given: GivenFile, found: str, said: str) -> CandidateRefused:
    last = " | ".join(shortened(line, LINE) for line in said.strip().splitlines()[-LINES:])
    return CandidateRefused(
        kind="invalid",
        found=redact(f"{given.make}: {found}" + (f"; it said: {last}" if last else "")),
        expected="a function of the paths of source, calibration samples and work folder, which returns that of a file there",
        fix="run the function alone with the same files",
    )
