"""Exports of decoders that onnxruntime-genai runs: as they are, for llama.cpp, vLLM and TensorRT-LLM."""

from __future__ import annotations

from pathlib import Path

from tasks.serving.exporter import Exporter, RegisteredVersion, Written
from tasks.serving.handoff import (
    folder_notes,
    handed_over,
    write_gguf_folder,
    write_tensorrt_llm_folder,
    write_vllm_folder,
)

LINES = (
    "`onnxruntime_genai.Model` opens this folder as it is:",
    "",
    "```python",
    "import onnxruntime_genai as og",
    "",
    'model = og.Model(".")',
    "tokenizer = og.Tokenizer(model)",
    'tokens = tokenizer.encode("your prompt")',
    "parameters = og.GeneratorParams(model)",
    "parameters.set_search_options(do_sample=False, max_length=len(tokens) + 64)",
    "session = og.Generator(model, parameters)",
    "session.append_tokens(tokens)",
    "while not session.is_done():",
    "    session.generate_next_token()",
    "print(tokenizer.decode(session.get_sequence(0)))",
    "```",
)


def _write(version: RegisteredVersion, _folder: Path, _max_batch: int | None) -> Written:
    notes = folder_notes(version.manifest)
    return Written({**version.files, "README.md": handed_over(version, LINES, notes)}, notes)


EXPORTS = {
    "--genai": Exporter(_write),
    "--gguf": Exporter(write_gguf_folder),
    "--vllm": Exporter(write_vllm_folder),
    "--tensorrt-llm": Exporter(write_tensorrt_llm_folder),
}
