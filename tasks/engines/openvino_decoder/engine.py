"""The target `openvino-decoder`: decoders with their caches, run by OpenVINO on the processor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx

from tasks.engines.engine import Engine, Pass, RefusedPrecision
from tasks.engines.openvino import engine as openvino
from tasks.engines.openvino_decoder.facts import FACTS
from tasks.engines.openvino_decoder.session import refuse_attention
from tasks.ptq.build_variant import Materials, int8_form, weights_form
from tasks.ptq.eight_bit.tied import retie
from tasks.runtimes.decoder_bytes import decoder_bytes
from validators.errors import CandidateRefused
from validators.graph.stored import load_model, save_model
from validators.job.candidate_name import Candidate
from validators.job.given_file import GivenFile
from validators.records.generation import DecoderBytes
from validators.records.latencies import NEW_TOKENS, USUAL_NEW_TOKENS
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.target_facts import OPENVINO_DECODER

# Type of the cached keys and values, for what its plugin would choose itself: UINT8.
CACHE = "KV_CACHE_PRECISION"
FLOAT_BITS = 32


def _session(
    candidate: Candidate, threads: int, libraries: Libraries, provider_options: Mapping[str, str]
) -> SessionSettings:
    if CACHE in provider_options:
        raise CandidateRefused(
            kind="unsupported",
            found=f"{CACHE} in `provider_options`",
            expected="options of OpenVINO other than the type of the cache",
            fix="name candidates with +kv8 or +kv4",
        )
    settings = openvino.session(candidate, threads, libraries, provider_options)
    chosen = {
        CACHE: f"u{candidate.cache_bits}" if candidate.cache_bits else "f32",
        NEW_TOKENS: str(USUAL_NEW_TOKENS),
    }
    # Activations of products with weights in blocks are quantized in groups of 32 channels, which every block divides into.
    grouped = {} if candidate.dynamic or openvino.GROUP in provider_options else {openvino.GROUP: "32"}
    return replace(settings, provider=OPENVINO_DECODER, provider_options=settings.provider_options | grouped | chosen)


def _float_form(_candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
    """Write the float graph, with one table for a tied embedding and head."""
    proto = load_model(materials.prepared())
    tied = retie(proto.graph)
    save_model(proto, path)
    return {"embedding and head as one table": tied} if tied else {}


def _for_decoders(make: Pass) -> Pass:
    """Return a pass for graphs that OpenVINO reads."""

    def form(candidate: Candidate, materials: Materials, path: Path) -> dict[str, int]:
        refuse_attention(onnx.load(materials.prepared(), load_external_data=False).graph)
        return make(candidate, materials, path)

    return form


def _take_ir(given: GivenFile, path: Path, materials: Materials) -> str:
    # It needs the package, which the catalogue of engines does not.
    from tasks.engines.openvino_decoder.ir import take_decoder_ir

    return take_decoder_ir(given, path, materials.source)


def _read_bytes(path: Path) -> DecoderBytes:
    if path.suffix != ".xml":
        return decoder_bytes(path)
    from tasks.engines.openvino_decoder.ir import bytes_of_ir

    return bytes_of_ir(path)


def _bytes(candidate: Candidate, path: Path) -> DecoderBytes:
    """Return the bytes of the file, with a cache in as many bits as the candidate asks for, without its scales."""
    found = _read_bytes(path)
    return replace(found, cache=found.cache * (candidate.cache_bits or FLOAT_BITS) // FLOAT_BITS)


ENGINE = Engine(
    facts=FACTS[0],
    passes={
        "bf16": _for_decoders(_float_form),
        "int8": _for_decoders(int8_form),
        "int8-weights": _for_decoders(weights_form),
        "int4": _for_decoders(weights_form),
    },
    pairs=openvino.ENGINE.pairs,
    session=_session,
    availability=openvino.ENGINE.availability,
    refused={
        **openvino.ENGINE.refused,
        "fp32": RefusedPrecision("float32 for {target}", "bf16, or the baseline, which OpenVINO fuses when it loads"),
    },
    check_device=openvino.ENGINE.check_device,
    artifact="decoder/model.onnx",
    searches=frozenset({"int4"}),
    takes={".xml": _take_ir},
    decoder_bytes=_bytes,
)
ENGINES = (ENGINE,)
