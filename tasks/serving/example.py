"""Python example that loads a version's artifact with its runtime alone, under the approved settings, and runs one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.serving.openvino import openvino_options
from validators.target_facts import (
    CUDA_PROVIDER,
    GENAI,
    INDUCTOR_CUDA,
    INDUCTORS,
    OPENVINO,
    OPENVINO_DECODER,
)

# Folder of the artifact's files, beside the README.
FOLDER = "variant"


def example(manifest: Mapping[str, Any], request: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return the lines of a program that runs in the README's folder and defines `session`, `feed` and `outputs`.

    `request` holds the shape of each input by name.
    """
    needed = manifest.get("saturates_without")
    checked = _sums(needed) if needed else []
    if manifest["session"]["provider"] == GENAI:
        return [*checked, *_genai(manifest)]
    if manifest["session"]["provider"] == OPENVINO_DECODER:
        return [*checked, *_openvino_decoder(manifest)]
    get_names = "[one.name for one in session.get_outputs()]"
    answered = "session.run(names, feed)"
    if manifest["engine"]:
        opened, get_names, answered = _engine(), "[one.name for one in session.outputs]", "session.run(feed, names)"
    elif manifest["session"]["provider"] == OPENVINO:
        opened, get_names, answered = _openvino(manifest), repr(manifest["outputs"]), "session(feed).values()"
    elif manifest["session"]["provider"] in INDUCTORS:
        opened, get_names, answered = _inductor(manifest), repr(manifest["outputs"]), "run(feed)"
    else:
        opened = _session(manifest)
    feed = [
        f"    {name!r}: np.zeros({shape!r}, dtype={manifest['inputs'][name]!r}),  # your samples, along axis 0"
        for name, shape in request.items()
    ]
    return [
        *checked,
        *opened,
        "feed = {",
        *feed,
        "}",
        f"names = {get_names}",
        f"outputs = dict(zip(names, {answered}))",
        "for name, array in outputs.items():",
        "    print(name, array.dtype, array.shape)",
    ]


def _sums(needed: Sequence[str]) -> list[str]:
    """Return the lines that stop on a processor on which sums of the version's INT8 products saturate."""
    return [
        "from pathlib import Path",
        "",
        "# Sums of its INT8 products saturate on an x86 processor without these, which gives other answers.",
        f"needed = {{{', '.join(map(repr, needed))}}}",
        'cpuinfo = Path("/proc/cpuinfo")',
        "flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()",
        'assert "avx2" not in flags or flags & needed, "a processor on which the version is not what was approved"',
        "",
    ]


def _session(manifest: Mapping[str, Any]) -> list[str]:
    """Return the lines for ONNX Runtime: `tasks/champion/consumer/consumer.py`, specialized for this version."""
    settings = manifest["session"]
    provider = settings["provider"]
    packages = [library["package"] for library in manifest["libraries"] if "package" in library]
    lines = [
        "import numpy as np",
        "import onnxruntime as ort",
        *(f"import {name}" for name in packages),
        "",
        "options = ort.SessionOptions()",
        f"options.intra_op_num_threads = {settings['threads']}  # lower it where fewer cores are usable",
        f"options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_{settings['optimization'].upper()}",
        *(f"options.add_session_config_entry({key!r}, {value!r})" for key, value in settings["entries"].items()),
        *(f"options.register_custom_ops_library({_library(library)})" for library in manifest["libraries"]),
    ]
    requested: Any = provider
    if provider == CUDA_PROVIDER:
        lines.append("ort.preload_dlls()")
        requested = (provider, settings["provider_options"])
    return [
        *lines,
        f'session = ort.InferenceSession("{FOLDER}/model.onnx", options, providers={[requested]!r})',
        f"assert session.get_providers()[0] == {provider!r}, session.get_providers()",
        "",
    ]


def _openvino(manifest: Mapping[str, Any]) -> list[str]:
    """Return the lines for OpenVINO."""
    options = openvino_options(manifest["session"])
    return [
        "import numpy as np",
        "import openvino as ov",
        "",
        "core = ov.Core()",
        f'session = core.compile_model(core.read_model("{FOLDER}/model.onnx"), "CPU", {options!r})',
        "",
    ]


def _genai(manifest: Mapping[str, Any]) -> list[str]:
    """Return the lines for a decoder: one prompt, and the text that follows."""
    return [
        "import onnxruntime_genai as og",
        "",
        f'model = og.Model("{FOLDER}")',
        "tokenizer = og.Tokenizer(model)",
        'tokens = tokenizer.encode("your prompt")',
        "parameters = og.GeneratorParams(model)",
        f"length = len(tokens) + {manifest['session']['provider_options']['new_tokens']}",
        "parameters.set_search_options(do_sample=False, max_length=length)",
        "session = og.Generator(model, parameters)",
        "session.append_tokens(tokens)",
        "while not session.is_done():",
        "    session.generate_next_token()",
        "print(tokenizer.decode(session.get_sequence(0)))",
    ]


def _openvino_decoder(manifest: Mapping[str, Any]) -> list[str]:
    """Return the lines for a decoder in OpenVINO, which use the package that MLflow stores beside the artifacts."""
    settings = manifest["session"]
    return [
        "import sys",
        "from pathlib import Path",
        "",
        "import numpy as np",
        "from tokenizers import Tokenizer",
        "",
        'sys.path.insert(0, "../code")  # of the same version',
        "from quantgate_openvino_decoder.model import OpenVinoDecoder",
        "",
        f"options = {dict(settings['provider_options'])!r}",
        f'session = OpenVinoDecoder(Path("{FOLDER}/model.onnx"), {settings["threads"]}, options)',
        f'tokenizer = Tokenizer.from_file("{FOLDER}/tokenizer.json")',
        'tokens = np.array([tokenizer.encode("your prompt").ids])',
        "print(tokenizer.decode(session.generate(tokens)[0]))",
    ]


def _inductor(manifest: Mapping[str, Any]) -> list[str]:
    """Return the lines for a package of TorchInductor, which runs native code: check its digest first."""
    to_gpu, back = ('.to("cuda")', ".cpu()") if manifest["session"]["provider"] == INDUCTOR_CUDA else ("", "")
    return [
        "import json",
        "",
        "import numpy as np",
        "import torch",
        "",
        f"torch.set_num_threads({manifest['session']['threads']})",
        f'session = torch._inductor.aoti_load_package("{FOLDER}/model.pt2").loader',
        'inputs = [name for name, _, _ in json.loads(session.get_metadata()["quantgate"])["inputs"]]',
        "",
        "",
        "def run(feed):",
        f"    tensors = [torch.from_numpy(feed[name]){to_gpu} for name in inputs]",
        f"    return [tensor{back}.numpy() for tensor in session.run(tensors)]",
        "",
        "",
    ]


def _library(library: Mapping[str, str]) -> str:
    return repr(f"{FOLDER}/{library['file']}") if "file" in library else f"{library['package']}.get_library_path()"


def _engine() -> list[str]:
    """Return the lines for TensorRT, which use the package that MLflow stores beside the artifacts."""
    return [
        "import json",
        "import sys",
        "from pathlib import Path",
        "",
        "import numpy as np",
        "",
        'sys.path.insert(0, "../code")  # of the same version',
        "from quantgate_tensorrt.model import open_version",
        "",
        f'session = open_version(Path("{FOLDER}"), json.loads(Path("manifest.json").read_text(encoding="utf-8")))',
        "",
    ]
