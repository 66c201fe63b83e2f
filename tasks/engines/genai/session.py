"""onnxruntime-genai: what it needs here, decoders opened as runners or refused, and their coverage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.runtimes.ort import failures_refused
from tasks.runtimes.runner import DecoderRunner
from validators.errors import CandidateRefused, Missing
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays

if TYPE_CHECKING:
    from validators.records.measurements import Coverage

DISTRIBUTION, MODULE = "onnxruntime-genai", "onnxruntime_genai"


def installed_version() -> str | None:
    """Return the version of the library; None if it is not installed."""
    return metadata.version(DISTRIBUTION) if util.find_spec(MODULE) else None


def why_missing() -> Missing | None:
    """Return why no decoder can run here; None if one can."""
    if installed_version() is None:
        return Missing(f"{DISTRIBUTION} is not installed", f"{DISTRIBUTION} with its model builder", "install `genai`")
    return None


@contextmanager
def open_model(model: Path, settings: SessionSettings) -> Iterator[DecoderRunner]:
    """Load the decoder in the folder of a model file.

    Raises:
        CandidateRefused: `unsupported`: the library is not installed; `invalid`: it does not load the folder.
    """
    if missing := why_missing():
        raise missing.refused()
    from tasks.engines.genai.shipped.model import GenaiModel

    try:
        loaded = GenaiModel(model, settings.threads, settings.provider_options)
    except Exception as error:  # its bindings raise RuntimeError, and reading the folder OSError and ValueError
        raise CandidateRefused(
            kind="invalid",
            found=f"{DISTRIBUTION} {installed_version()} does not load {model.name}: {str(error).splitlines()[0][:300]}",
            expected="a decoder with its genai_config.json and tokenizer",
            fix="take another candidate, or another version of the library",
        ) from error
    yield DecoderRunner(loaded, loaded.config["model"]["vocab_size"], partial(failures_refused, DISTRIBUTION))


def measure(model: Path, settings: SessionSettings, batch: Arrays, folder: Path | None) -> Coverage:
    """Return the coverage of whole windows in a session of ONNX Runtime, whose kernels the library runs.

    Raises:
        CandidateRefused: the runtime does not load or run the model.
    """
    from tasks.runtimes.coverage import measure_coverage

    plain = SessionSettings.reference(settings.threads)
    return replace(measure_coverage(model, plain, batch, folder=folder), providers=(settings.provider,))
