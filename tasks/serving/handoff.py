"""Exports that hand a decoder to another program: llama.cpp, vLLM, TensorRT-LLM; and the README of such a folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tasks.serving.checkpoint.compressed_tensors import CompressedTensors
from tasks.serving.checkpoint.export import WrittenCheckpoint, make_checkpoint
from tasks.serving.checkpoint.modelopt import ModelOpt
from tasks.serving.decoder.proof import Proof
from tasks.serving.exporter import RegisteredVersion, Written
from tasks.serving.gguf.export import make_gguf
from tasks.serving.sections import code_block, shown, unchecked_device

NEVER_EXECUTED = "a run: this folder was written, and never executed by TensorRT-LLM"


def folder_notes(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts of an approval that a folder for the runtime itself does not hold."""
    runtime = f"{manifest['runtime']} {manifest['runtime_version']}"
    return (
        f"the number of threads: the variant was approved with {manifest['session']['threads'] or 'all'}",
        f"the runtime is that of the program; the variant was approved with {runtime}",
        *unchecked_device(manifest),
    )


def handed_over(
    version: RegisteredVersion, files: Mapping[str, Path], usage: Iterable[str], notes: Iterable[str]
) -> Written:
    """Return these files with a README: what they are, blocks on how to use them, and what does not hold there."""
    notes = tuple(notes)
    blocks = [
        f"# {shown(version.name)}",
        f"Written by quantgate: `{version.candidate}`, {shown(version.uri)}, sha256 `{version.digest}`.",
        *usage,
        "Not carried over from the approval:",
        "\n".join(f"- {shown(note, 400)}" for note in notes),
    ]
    return Written({**files, "README.md": "\n\n".join(blocks) + "\n"}, notes)


def write_gguf_folder(version: RegisteredVersion, _folder: Path, _max_batch: int | None) -> Written:
    """A GGUF file for llama.cpp, with a README; see `Exporter`."""
    file = version.artifacts / f"{version.name}-{version.recipe}.gguf"
    made = make_gguf(version.variant, file, version.name, version.origin)
    notes = [*_differences("weights with float16 scales", made.proof), *_elsewhere("llama.cpp", version.manifest)]
    if made.has_small_cache:
        notes.append("the attention cache in few bits: set --cache-type-k and --cache-type-v in llama.cpp")
    usage = [
        f"`{file.name}` has the weights that were judged ({_kinds(made.proof)}), tokenizer and chat template included:",
        code_block(
            f'llama-cli -m "{file.name}" -p "your prompt" -n 64', f'llama-server -m "{file.name}"', language="bash"
        ),
        "The attention cache is a setting of llama.cpp, and no part of the file. It is float16 by default; "
        "`--cache-type-k q8_0 --cache-type-v q8_0` keeps it in 8 bits.",
    ]
    return handed_over(version, {file.name: file}, usage, notes)


def write_vllm_folder(version: RegisteredVersion, _folder: Path, _max_batch: int | None) -> Written:
    """A checkpoint of compressed-tensors for vLLM, with a README; see `Exporter`."""
    made = make_checkpoint(version.variant, version.artifacts / "checkpoint", version.origin, CompressedTensors())
    notes = _checkpoint_notes("vLLM", made, version.manifest)
    if 8 in made.bits:
        notes.append("weights of 8 bits need a GPU: vLLM has kernels for those of 4 bits alone on a CPU")
    if made.has_small_cache:
        notes.append("the attention cache in few bits: set --kv-cache-dtype in vLLM")
    usage = [
        f"A checkpoint in the format compressed-tensors, with the weights that were judged ({_kinds(made.proof)}), tokenizer "
        "included. vLLM and transformers open this folder as it is:",
        code_block("vllm serve .", language="bash"),
        code_block(
            "from vllm import LLM, SamplingParams",
            "",
            'engine = LLM(".")',
            'print(engine.generate("your prompt", SamplingParams(temperature=0, max_tokens=64))[0].outputs[0].text)',
        ),
    ]
    return handed_over(version, made.files, usage, notes)


def write_tensorrt_llm_folder(version: RegisteredVersion, _folder: Path, _max_batch: int | None) -> Written:
    """A checkpoint of ModelOpt for TensorRT-LLM, which was never executed, with a README; see `Exporter`."""
    made = make_checkpoint(version.variant, version.artifacts / "checkpoint", version.origin, ModelOpt())
    notes = [NEVER_EXECUTED, *_checkpoint_notes("TensorRT-LLM", made, version.manifest)]
    if made.has_small_cache:
        notes.append("the attention cache in few bits")
    usage = [
        "**Written, never executed**: no part of quantgate's tests runs TensorRT-LLM, which needs an NVIDIA GPU.",
        f"A unified checkpoint of ModelOpt with the weights that were judged ({_kinds(made.proof)}), tokenizer included:",
        code_block("trtllm-serve .", language="bash"),
    ]
    return handed_over(version, made.files, usage, notes)


def _kinds(proof: Proof) -> str:
    return ", ".join(f"{count} in {kind}" for kind, count in sorted(proof.kinds.items()))


def _differences(name: str, proof: Proof) -> list[str]:
    if not proof.difference:
        return []
    return [
        f"{name}: the largest difference from a judged weight is {proof.difference:.2g}, in {proof.tensor}, whose largest "
        f"weight is {proof.largest:.2g}"
    ]


def _checkpoint_notes(program: str, made: WrittenCheckpoint, manifest: Mapping[str, Any]) -> list[str]:
    return [
        *_differences("tables of tokens in float16", made.proof),
        f"scales are those that were judged; {program} rounds them, and all activations, to the type that it computes in",
        *_elsewhere(program, manifest),
    ]


def _elsewhere(program: str, manifest: Mapping[str, Any]) -> list[str]:
    return [
        f"quality and speed were measured in onnxruntime-genai {manifest['runtime_version']}, and not in {program}",
        f"the device is not checked; the variant was approved on {manifest['device']}",
    ]
