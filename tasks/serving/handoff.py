"""READMEs of folders that hand a decoder to another program: onnxruntime-genai by itself, and llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tasks.serving.sections import shown
from validators.errors import JobError
from validators.providers import GENAI

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tasks.serving.gguf.export import GgufFile


def check_decoder(manifest: Mapping[str, Any]) -> None:
    """Check that a version is a decoder.

    Raises:
        JobError: it was approved with another runtime.
    """
    if manifest["session"]["provider"] != GENAI:
        raise JobError(
            found=f"a variant that was approved with {manifest.get('runtime', 'onnxruntime')}",
            expected="a decoder of the target ort-genai",
            fix="export it with --out or --triton",
        )


def genai_notes(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts of an approval that a folder for onnxruntime-genai does not hold."""
    return (
        f"the number of threads: the variant was approved with {manifest['session']['threads'] or 'all'}",
        f"the runtime is that of the program; the variant was approved with onnxruntime-genai {manifest['runtime_version']}",
        f"the device is not checked; the variant was approved on {manifest['device']}",
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


def gguf_notes(made: GgufFile, manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts of an approval that a GGUF file does not hold."""
    proof = made.proof
    notes = [
        f"quality and speed were measured in onnxruntime-genai {manifest['runtime_version']}, and not in llama.cpp",
        f"the device is not checked; the variant was approved on {manifest['device']}",
    ]
    if proof.difference:
        notes.insert(
            0,
            f"weights with float16 scales: the largest difference from a judged weight is {proof.difference:.2g}, in "
            f"{proof.tensor}, whose largest weight is {proof.largest:.2g}",
        )
    if made.has_small_cache:
        notes.append("the attention cache in few bits: set --cache-type-k and --cache-type-v in llama.cpp")
    return tuple(notes)


def gguf_readme(title: str, about: Mapping[str, str], made: GgufFile, notes: tuple[str, ...]) -> str:
    """Render the README of a folder with a GGUF file."""
    name = made.path.name
    kinds = ", ".join(f"{count} in {kind}" for kind, count in sorted(made.proof.kinds.items()))
    lines = [
        *_head(title, about),
        "",
        f"`{name}` has the weights that were judged ({kinds}), tokenizer and chat template included:",
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


def _head(title: str, about: Mapping[str, str]) -> list[str]:
    return [
        f"# {shown(title)}",
        "",
        f"Written by quantgate: `{about['candidate']}`, {shown(about['version'])}, sha256 `{about['variant_sha256']}`.",
    ]


def _limits(notes: tuple[str, ...]) -> list[str]:
    return ["", "Not carried over from the approval:", "", *(f"- {shown(note, 400)}" for note in notes)]
