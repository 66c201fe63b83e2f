"""Decoders opened in OpenVINO with exactly the requested settings, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx

from tasks.engines.openvino.session import failures_refused_here, installed_version, why_missing
from tasks.runtimes.decoder_session import MASK, POSITIONS, TOKENS
from tasks.runtimes.runner import DecoderRunner
from validators.errors import CandidateRefused
from validators.records.measurements import Coverage
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays

ATTENTION = "GroupQueryAttention"
# Input of a decoder with states: the row of the states that each row continues.
BEAMS = "beam_idx"
# Index of its first input that is refused: positions; then come a bias, a sink, and scales of caches.
FIRST_OTHER = 9


@contextmanager
def open_model(model: Path, settings: SessionSettings) -> Iterator[DecoderRunner]:
    """Compile a decoder with these settings, and release it at the end of the block.

    Raises:
        CandidateRefused: `unsupported`: OpenVINO is missing, or has no such attention; `invalid`: it does not load the file.
    """
    if missing := why_missing():
        raise missing.refused()
    from tasks.engines.openvino.shipped.model import message_of
    from tasks.engines.openvino_decoder.shipped.model import OpenVinoDecoder

    if model.suffix == ".onnx":
        refuse_attention(onnx.load(model, load_external_data=False).graph)
    try:
        compiled = OpenVinoDecoder(model, settings.threads, settings.provider_options)
    except Exception as error:  # the bindings raise RuntimeError, TypeError and ValueError alike
        raise CandidateRefused(
            kind="invalid",
            found=f"OpenVINO {installed_version()} does not load {model.name}: {message_of(error)}",
            expected="a decoder that OpenVINO compiles",
            fix="use the target ort-genai, or a newer OpenVINO",
        ) from error
    yield DecoderRunner(compiled, compiled.config["vocab_size"], failures_refused_here)


def measure(model: Path, settings: SessionSettings, batch: Arrays, folder: Path | None) -> Coverage:
    """Return the coverage of whole windows, as OpenVINO runs them; see `tasks.engines.openvino.coverage.measure`.

    Raises:
        CandidateRefused: OpenVINO does not load or run the model.
    """
    from tasks.engines.openvino.coverage import measure as measure_opened

    if model.suffix == ".xml":
        # Its products are counted in the shapes of all its inputs.
        rows, length = batch[TOKENS].shape
        batch = {
            **batch,
            MASK: np.ones((rows, length), np.int64),
            POSITIONS: np.tile(np.arange(length), (rows, 1)),
            BEAMS: np.arange(rows, dtype=np.int32),
        }
    return measure_opened(model, settings, batch, folder, open_model)


def refuse_attention(graph: onnx.GraphProto) -> None:
    """Refuse attention that OpenVINO would compute without saying that it leaves something out.

    Raises:
        CandidateRefused: `unsupported`.
    """
    for node in graph.node:
        if node.op_type != ATTENTION:
            continue
        softcap = next((one.f for one in node.attribute if one.name == "softcap"), 0.0)
        found = f"a soft cap of {softcap:g} on the scores" if softcap else ""
        if any(node.input[FIRST_OTHER:]):
            found = "positions, a bias, a sink or scales of caches as inputs"
        if found:
            raise CandidateRefused(
                kind="unsupported",
                found=f"{found} in {node.name or ATTENTION} for OpenVINO",
                expected="attention with rotary embedding, caches and a window at most",
                fix="use the target ort-genai",
            )
