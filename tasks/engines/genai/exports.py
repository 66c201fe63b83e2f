"""Exports of decoders that onnxruntime-genai runs: as they are, for llama.cpp, vLLM and TensorRT-LLM."""

from __future__ import annotations

from pathlib import Path

from tasks.engines.genai.document import answer_program
from tasks.serving.exporter import Exporter, RegisteredVersion, Written
from tasks.serving.handoff import (
    folder_notes,
    handed_over,
    write_gguf_folder,
    write_tensorrt_llm_folder,
    write_vllm_folder,
)
from tasks.serving.sections import code_block
from validators.records.latencies import USUAL_NEW_TOKENS


def _write(version: RegisteredVersion, _folder: Path, _max_batch: int | None) -> Written:
    usage = [
        "`onnxruntime_genai.Model` opens this folder as it is:",
        code_block(*answer_program(".", USUAL_NEW_TOKENS)),
    ]
    return handed_over(version, version.files, usage, folder_notes(version.manifest))


EXPORTS = {
    "--genai": Exporter(_write),
    "--gguf": Exporter(write_gguf_folder),
    "--vllm": Exporter(write_vllm_folder),
    "--tensorrt-llm": Exporter(write_tensorrt_llm_folder),
}
