"""READMEs of folders that hand a decoder to a program: onnxruntime-genai, OpenVINO GenAI, llama.cpp, vLLM, TensorRT-LLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tasks.serving.sections import shown, unchecked_device
from validators.errors import JobError
from validators.target_facts import GENAI
from validators.targets import facts_of_provider

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tasks.serving.checkpoint.export import WrittenCheckpoint
    from tasks.serving.decoder.proof import Proof
    from tasks.serving.gguf.export import GgufFile


NEVER_EXECUTED = "a run: this folder was written, and never executed by TensorRT-LLM"


def check_decoder(manifest: Mapping[str, Any], providers: Collection[str] = (GENAI,)) -> None:
    """Check that a version is a decoder that one of `providers` runs.

    Raises:
        JobError: it was approved with another runtime.
    """
    if (provider := manifest["session"]["provider"]) not in providers:
        raise JobError(
            found=f"a variant that was approved with {manifest.get('runtime', 'onnxruntime')}",
            expected="a decoder of the target ort-genai",
            fix="export it with --genai"
            if facts_of_provider(provider).generates
            else "export it with --out or --triton",
        )


def genai_notes(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts of an approval that a folder for the runtime itself does not hold."""
    runtime = f"{manifest['runtime']} {manifest['runtime_version']}"
    return (
        f"the number of threads: the variant was approved with {manifest['session']['threads'] or 'all'}",
        f"the runtime is that of the program; the variant was approved with {runtime}",
        *unchecked_device(manifest),
    )


def genai_readme(title: str, about: Mapping[str, str], notes: tuple[str, ...]) -> str:
    """Render the README of a folder that `onnxruntime_genai.Model` opens."""
    lines = [
        *_head(title, about),
        "",
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
        *_limits(notes),
    ]
    return "\n".join(lines) + "\n"


def openvino_genai_readme(
    title: str, about: Mapping[str, str], manifest: Mapping[str, Any], notes: tuple[str, ...]
) -> str:
    """Render the README of a folder that `openvino_genai.LLMPipeline` opens."""
    precision = manifest["session"]["provider_options"]["INFERENCE_PRECISION_HINT"]
    lines = [
        *_head(title, about),
        "",
        "OpenVINO GenAI opens this folder as it is. The type of the cache is a setting of the graph; name the type to compute",
        f"in, `{precision}`, since the default depends on the processor:",
        "",
        "```python",
        "import openvino_genai",
        "",
        f'pipeline = openvino_genai.LLMPipeline(".", "CPU", INFERENCE_PRECISION_HINT="{precision}")',
        'print(pipeline.generate("your prompt", max_new_tokens=64, do_sample=False, apply_chat_template=False))',
        "```",
        *_limits(notes),
    ]
    return "\n".join(lines) + "\n"


def gguf_notes(made: GgufFile, manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts of an approval that a GGUF file does not hold."""
    notes = [*_differences("weights with float16 scales", made.proof), *_elsewhere("llama.cpp", manifest)]
    if made.has_small_cache:
        notes.append("the attention cache in few bits: set --cache-type-k and --cache-type-v in llama.cpp")
    return tuple(notes)


def vllm_notes(made: WrittenCheckpoint, manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts of an approval that a checkpoint for vLLM does not hold."""
    notes = _checkpoint_notes("vLLM", made, manifest)
    if 8 in made.bits:
        notes.append("weights of 8 bits need a GPU: vLLM has kernels for those of 4 bits alone on a CPU")
    if made.has_small_cache:
        notes.append("the attention cache in few bits: set --kv-cache-dtype in vLLM")
    return tuple(notes)


def tensorrt_llm_notes(made: WrittenCheckpoint, manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts of an approval that a checkpoint for TensorRT-LLM does not hold."""
    notes = [NEVER_EXECUTED, *_checkpoint_notes("TensorRT-LLM", made, manifest)]
    if made.has_small_cache:
        notes.append("the attention cache in few bits")
    return tuple(notes)


def vllm_readme(title: str, about: Mapping[str, str], made: WrittenCheckpoint, notes: tuple[str, ...]) -> str:
    """Render the README of a folder that vLLM opens."""
    lines = [
        *_head(title, about),
        "",
        f"A checkpoint in the format compressed-tensors, with the weights that were judged ({_kinds(made.proof)}), tokenizer",
        "included. vLLM and transformers open this folder as it is:",
        "",
        "```bash",
        "vllm serve .",
        "```",
        "",
        "```python",
        "from vllm import LLM, SamplingParams",
        "",
        'engine = LLM(".")',
        'print(engine.generate("your prompt", SamplingParams(temperature=0, max_tokens=64))[0].outputs[0].text)',
        "```",
        *_limits(notes),
    ]
    return "\n".join(lines) + "\n"


def tensorrt_llm_readme(title: str, about: Mapping[str, str], made: WrittenCheckpoint, notes: tuple[str, ...]) -> str:
    """Render the README of a folder for TensorRT-LLM."""
    lines = [
        *_head(title, about),
        "",
        "**Written, never executed**: no part of quantgate's tests runs TensorRT-LLM, which needs an NVIDIA GPU.",
        "",
        f"A unified checkpoint of ModelOpt with the weights that were judged ({_kinds(made.proof)}), tokenizer included:",
        "",
        "```bash",
        "trtllm-serve .",
        "```",
        *_limits(notes),
    ]
    return "\n".join(lines) + "\n"


def gguf_readme(title: str, about: Mapping[str, str], made: GgufFile, notes: tuple[str, ...]) -> str:
    """Render the README of a folder with a GGUF file."""
    name = made.path.name
    lines = [
        *_head(title, about),
        "",
        f"`{name}` has the weights that were judged ({_kinds(made.proof)}), tokenizer and chat template included:",
        "",
        "```bash",
        f'llama-cli -m "{name}" -p "your prompt" -n 64',
        f'llama-server -m "{name}"',
        "```",
        "",
        "The attention cache is a setting of llama.cpp, and no part of the file. It is float16 by default;",
        "`--cache-type-k q8_0 --cache-type-v q8_0` keeps it in 8 bits.",
        *_limits(notes),
    ]
    return "\n".join(lines) + "\n"


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


def _head(title: str, about: Mapping[str, str]) -> list[str]:
    return [
        f"# {shown(title)}",
        "",
        f"Written by quantgate: `{about['candidate']}`, {shown(about['version'])}, sha256 `{about['variant_sha256']}`.",
    ]


def _limits(notes: tuple[str, ...]) -> list[str]:
    return ["", "Not carried over from the approval:", "", *(f"- {shown(note, 400)}" for note in notes)]
