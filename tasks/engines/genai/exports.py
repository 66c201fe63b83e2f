"""READMEs and exports of decoders that onnxruntime-genai runs: as they are, for llama.cpp, vLLM and TensorRT-LLM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.serving.example import FOLDER, ExampleProgram
from tasks.serving.exporter import Exporter, RegisteredVersion, Written
from tasks.serving.handoff import (
    folder_notes,
    handed_over,
    write_gguf_folder,
    write_tensorrt_llm_folder,
    write_vllm_folder,
)
from tasks.serving.sections import code_block, shown
from validators.records.latencies import NEW_TOKENS, USUAL_NEW_TOKENS


def program(manifest: Mapping[str, Any]) -> ExampleProgram:
    """Return the lines for a decoder: one prompt, and the text that follows."""
    new_tokens = int(manifest["session"]["provider_options"][NEW_TOKENS])
    return ExampleProgram(answer_program(FOLDER, new_tokens), answered="")


def answer_program(folder: str, new_tokens: int) -> list[str]:
    """Return the lines of a program that opens a folder and prints an answer of at most `new_tokens`."""
    return [
        "import onnxruntime_genai as og",
        "",
        f'model = og.Model("{folder}")',
        "tokenizer = og.Tokenizer(model)",
        'tokens = tokenizer.encode("your prompt")',
        "parameters = og.GeneratorParams(model)",
        f"parameters.set_search_options(do_sample=False, max_length=len(tokens) + {new_tokens})",
        "session = og.Generator(model, parameters)",
        "session.append_tokens(tokens)",
        "while not session.is_done():",
        "    session.generate_next_token()",
        "print(tokenizer.decode(session.get_sequence(0)))",
    ]


def settings(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the approved settings of the session, by their names for people."""
    told = manifest["session"]
    options = told["provider_options"]
    return [
        ("Threads", str(told["threads"])),
        ("Tokens after a prompt", options[NEW_TOKENS]),
        *((f"Option {shown(key)}", shown(value)) for key, value in options.items() if key != NEW_TOKENS),
    ]


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
