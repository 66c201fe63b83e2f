"""Conversion of models of other flavors to ONNX in a separate process; the outputs of both must agree."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tasks.measure.inventory import usable_cores
from tasks.runtimes.confined import PATIENCE_SECONDS, WRITTEN_BYTES, WRITTEN_SIZES, confined_environment
from tasks.runtimes.ort import describe_inputs, describe_outputs, open_session, run_outputs, with_mapped_weights
from tasks.runtimes.parity import largest_difference, largest_magnitude
from validators.errors import CandidateRefused, DataError, InfrastructureError, SourceError
from validators.graph.source_graph import check_source_graph
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays, Feed, Samples, TensorSpec

log = logging.getLogger("quantgate")

PARITY_SAMPLES = 16
# A window of a decoder has a score for every word at each of its places.
PARITY_WINDOWS = 2
# Two float32 implementations of the same sums differ by rounding; a wrong operator differs by far more.
PARITY_TOLERANCE = 1e-3
# Exported program beside the ONNX file, from which other compilers than ONNX's runtimes start.
PROGRAM = "program.pt2"


Kind = Literal["program", "pickle", "transformers", "decoder", "sentence_transformers", "keras", "sklearn"]
# Advice for a model that cannot be converted.
EXPECTED: dict[Kind, str] = {
    "program": "an exported program whose operators exist in ONNX",
    "pickle": "a module that torch.export can trace, and whose operators exist in ONNX",
    "transformers": "an encoder of tokens, images or a signal that torch.export can trace",
    "decoder": "a decoder that the model builder of onnxruntime-genai writes",
    "sentence_transformers": "an encoder of tokens that torch.export can trace",
    "keras": "layers of Keras 3 itself (no Lambda, no class of your own), which torch.export can trace",
    "sklearn": "a fitted model of one table of numbers that skl2onnx converts",
}


@dataclass(frozen=True)
class Original:
    """A model to convert: its file or folder, and how to load it.

    `samples` are a few samples of the inputs of a pickled module. `code` are folders of code that a pickle imports.
    """

    kind: Kind
    path: Path
    samples: Arrays | None = None
    code: tuple[Path, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size of the file, or of all files in the folder."""
        files = self.path.rglob("*") if self.path.is_dir() else [self.path]
        return sum(file.stat().st_size for file in files if file.is_file())


def convert(
    original: Original, onnx_path: Path, samples: Callable[[tuple[TensorSpec, ...]], Samples] | None = None
) -> float | None:
    """Write a model as ONNX to `onnx_path`, and return the largest absolute difference of their outputs.

    The exported program of a PyTorch model is kept beside it, as `PROGRAM`.

    `samples(inputs)` returns the samples for the comparison, given the inputs of the export; without it nothing is compared.

    Raises:
        SourceError: the model cannot be read or exported, would run code, or the export's outputs differ from its own.
        DataError: the samples do not fit the inputs.
        InfrastructureError: the export process is killed.
    """
    with tempfile.TemporaryDirectory(prefix="quantgate-") as folder, _exporter(Path(folder)) as process:
        told = _ask(process, original, _order(original, onnx_path, Path(folder)))
        if "error" in told:
            raise SourceError(
                found=f"{original.path.name} cannot be exported to ONNX: {told['error']}",
                expected=EXPECTED[original.kind],
                fix="export it to ONNX yourself and log it with mlflow.onnx.log_model",
            )
        if told["has_network"]:
            log.info("the kernel does not allow the process that loads %s to drop network access", original.path.name)
        check_source_graph(onnx_path)
        return _check_parity(process, original, onnx_path, samples, Path(folder)) if samples else None


def _order(original: Original, onnx_path: Path, folder: Path) -> dict[str, Any]:
    if original.samples is not None:
        np.savez(folder / "samples.npz", **original.samples)  # type: ignore[arg-type]  # its stub: keywords for allow_pickle
    return {
        "kind": original.kind,
        "path": str(original.path.resolve()),
        "onnx": str(onnx_path.resolve()),
        "program": str(onnx_path.resolve().with_name(PROGRAM)),
        "samples": str(folder / "samples.npz") if original.samples is not None else None,
        "code": [str(path.resolve()) for path in original.code],
        "written_bytes": original.size_bytes * WRITTEN_SIZES + WRITTEN_BYTES,
    }


@contextmanager
def _exporter(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the export process, with a temporary folder as its home; kill it at the end of the block."""
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tasks.evidence.torch_export_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            cwd=folder,
            env=confined_environment(folder),
            start_new_session=True,
        )

    def end() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    patience = threading.Timer(PATIENCE_SECONDS, end)
    patience.start()
    try:
        yield process
    finally:
        patience.cancel()
        end()
        process.communicate()


def _ask(process: subprocess.Popen[str], original: Original, order: dict[str, Any]) -> dict[str, Any]:
    """Send one order to the process and return its answer."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    except BrokenPipeError:
        answer = ""
    if not answer:
        raise InfrastructureError(
            found=f"the process that exports {original.path.name} ended with exit status {process.wait(60)}",
            expected="a process that finishes the export",
            fix="check free memory and disk, and run again; status -9 may be the time limit",
        )
    told: dict[str, Any] = json.loads(answer)
    if "refused" in told:
        raise SourceError(**told["refused"])
    return told


def first_batch(samples: Samples, inputs: tuple[TensorSpec, ...], most: int = PARITY_SAMPLES) -> Feed:
    """Return the first samples as one batch, of the size that the model's inputs have or else of at most `most`.

    Raises:
        DataError: there are fewer samples than the fixed size of the batch.
    """
    fixed = (samples.feeds.samples if samples.feeds else inputs)[0].shape[0]
    size = fixed if isinstance(fixed, int) else most
    if isinstance(fixed, int) and len(samples) < fixed:
        raise DataError(
            found=f"{samples.file.path.name} has {len(samples)} samples, and the model a fixed batch size of {fixed}",
            expected=f"a multiple of {fixed}",
            fix="add samples, or export the model with a dynamic batch axis",
        )
    return next(samples.batches(size))


def _check_parity(
    process: subprocess.Popen[str],
    original: Original,
    onnx_path: Path,
    samples: Callable[[tuple[TensorSpec, ...]], Samples],
    folder: Path,
) -> float:
    settings = with_mapped_weights(SessionSettings.reference(usable_cores()), onnx_path)
    with open_session(onnx_path, settings) as session:
        inputs, names = describe_inputs(session), [spec.name for spec in describe_outputs(session)]
        found = samples(inputs)
        batch = first_batch(found, inputs, PARITY_WINDOWS if original.kind == "decoder" else PARITY_SAMPLES)
        try:
            ours = run_outputs(session, batch, names)
        except CandidateRefused as error:
            raise _fails(original, found, batch, f"exported to ONNX, it {error.found}") from error
    np.savez(folder / "batch.npz", **batch)  # type: ignore[arg-type]  # its stub: keywords for allow_pickle
    order = {"batch": str(folder / "batch.npz"), "outputs": str(folder / "outputs.npz")}
    told = _ask(process, original, order | {"names": [spec.name for spec in inputs]})
    if "error" in told:
        raise _fails(original, found, batch, told["error"])
    with np.load(folder / "outputs.npz", allow_pickle=False) as archive:
        originals = [archive[name] for name in archive.files]
    return compare_outputs(names, ours, originals)


def _fails(original: Original, samples: Samples, batch: Feed, reason: str) -> DataError:
    shapes = ", ".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in batch.items())
    return DataError(
        found=f"{original.path.name} fails on the first samples of {samples.file.path.name} ({shapes}): {reason}",
        expected="samples with the sizes and values that the model was exported for",
        fix="check the axes and values of the data, or export the model again with that axis dynamic",
    )


def compare_outputs(names: Sequence[str], ours: Sequence[NDArray[Any]], originals: Sequence[NDArray[Any]]) -> float:
    """Return the largest absolute difference over all outputs.

    Raises:
        SourceError: an output differs by more than rounding error, or has NaN or Inf at other positions.
    """
    scale = max(1.0, *(largest_magnitude(output) for output in ours))
    worst = 0.0
    for name, mine, original in zip(names, ours, originals, strict=True):
        difference = largest_difference(mine, original)
        if difference > PARITY_TOLERANCE * scale:
            how = _tell_difference(mine, original, difference)
            raise SourceError(
                found=f"output {name!r} of the ONNX export differs from the original model's {how}",
                expected=f"a difference of at most {PARITY_TOLERANCE * scale:.3g} on {len(ours[0])} calibration samples",
                fix="export it to ONNX yourself, check it, and log it with mlflow.onnx.log_model",
            )
        worst = max(worst, difference)
    return worst


def _tell_difference(mine: NDArray[Any], original: NDArray[Any], difference: float) -> str:
    if mine.shape != original.shape:
        return f"in shape: {mine.shape} instead of {original.shape}"
    if math.isfinite(difference):
        return f"by {difference:.3g}"
    places = int((np.isfinite(mine) != np.isfinite(original)).sum())
    return f"in the positions of NaN or Inf: {places} of {mine.size} values are finite in one of the two only"
