"""README of a decoder of the target `openvino-decoder`, and its export as a folder that OpenVINO GenAI opens.

The folder has the judged graph with its caches as states in OpenVINO's own format, the tokenizer as two OpenVINO models, and
the tokens that end a text. Settings of the session that change numbers go into the graph's `runtime_options`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.engines.genai import exports as decoders
from tasks.runtimes.decoder_session import TOKENS
from tasks.serving.checkpoint.config import generation_config_of
from tasks.serving.decoder.graph_nodes import refusal
from tasks.serving.example import FOLDER, ExampleProgram
from tasks.serving.exporter import Exporter, RegisteredVersion, Written
from tasks.serving.handoff import folder_notes, handed_over
from tasks.serving.sections import code_block

if TYPE_CHECKING:
    import openvino as ov

GRAPH, CONFIG = "openvino_model.xml", "genai_config.json"
# Options that OpenVINO reads from a graph where nobody sets them (its documentation, "Runtime options in model").
OPTIONS = ("KV_CACHE_PRECISION", "DYNAMIC_QUANTIZATION_GROUP_SIZE")
LIBRARIES = {"openvino_tokenizers": "the extra `openvino`", "transformers": "the extra `genai`"}
# Tokens of the window on which the written graph is compared with the judged one.
PROBED = 16
# A decoder has the same settings in either engine.
settings = decoders.settings


def program(manifest: Mapping[str, Any]) -> ExampleProgram:
    """Return the lines for a decoder in OpenVINO, which use the package that MLflow stores beside the artifacts."""
    session, file = manifest["session"], manifest.get("artifact", "model.onnx")
    lines = [
        "import sys",
        "from pathlib import Path",
        "",
        "import numpy as np",
        "from tokenizers import Tokenizer",
        "",
        'sys.path.insert(0, "../code")  # of the same version',
        "from quantgate_openvino_decoder.model import OpenVinoDecoder",
        "",
        f"options = {dict(session['provider_options'])!r}",
        f'session = OpenVinoDecoder(Path("{FOLDER}/{file}"), {session["threads"]}, options)',
        f'tokenizer = Tokenizer.from_file("{FOLDER}/tokenizer.json")',
        'tokens = np.array([tokenizer.encode("your prompt").ids])',
        "print(tokenizer.decode(session.generate(tokens)[0]))",
    ]
    return ExampleProgram(lines, answered="")


def make_openvino_genai(variant: Path, folder: Path, options: Mapping[str, str]) -> None:
    """Write the decoder in the folder `variant` to the new folder `folder`; `options` are those of its approved session.

    Raises:
        JobError: a library is missing, or the written graph computes other scores than the judged one.
    """
    for library, extra in LIBRARIES.items():
        if util.find_spec(library) is None:
            raise refusal(f"{library} is not installed", "the library that converts tokenizers", f"install {extra}")
    import openvino as ov

    from tasks.engines.openvino_decoder.shipped.graph import with_states
    from tasks.engines.openvino_decoder.shipped.model import core

    config = json.loads((variant / CONFIG).read_text(encoding="utf-8"))["model"]
    judged = next(path for name in ("model.xml", "model.onnx") if (path := variant / name).exists())
    graph = with_states(core().read_model(judged), config, cut=False)
    for name in OPTIONS:
        graph.set_rt_info(options[name], ["runtime_options", name])
    folder.mkdir()
    # Weights stay in the type that was judged.
    ov.save_model(graph, folder / GRAPH, compress_to_fp16=False)
    _prove(judged, folder, config["vocab_size"], options)
    _write_tokenizer(variant, folder)
    text = json.dumps(generation_config_of(config), indent=1) + "\n"
    (folder / "generation_config.json").write_text(text, encoding="utf-8")


def _prove(judged: Path, folder: Path, vocabulary: int, options: Mapping[str, str]) -> None:
    """Check that the written graph computes the scores that the judged one does, bit for bit.

    Raises:
        JobError: it does not.
    """
    from tasks.engines.openvino_decoder.shipped.model import DEVICE, OpenVinoDecoder, core

    tokens = np.random.default_rng(0).integers(0, vocabulary, (1, PROBED))
    wanted = OpenVinoDecoder(judged, 1, options).scores(tokens)
    properties = {name: value for name, value in options.items() if name.isupper() and name not in OPTIONS}
    read = core().read_model(folder / GRAPH)
    request = core().compile_model(read, DEVICE, {**properties, "INFERENCE_NUM_THREADS": "1"}).create_infer_request()
    feed: dict[str, Any] = {
        TOKENS: tokens,
        "attention_mask": np.ones_like(tokens),
        "position_ids": np.arange(PROBED)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    found = request.infer(feed)[0]
    if not np.array_equal(found, wanted):
        raise refusal(
            f"the written graph differs from the judged one by {np.abs(found - wanted).max():.2g}",
            "the same scores",
            "report it with the source model",
        )


def _write_tokenizer(variant: Path, folder: Path) -> None:
    import openvino as ov
    from openvino_tokenizers import convert_tokenizer
    from transformers import PreTrainedTokenizerFast

    # Any: the library has no types.
    library: Any = PreTrainedTokenizerFast
    tokenizer = library.from_pretrained(str(variant), local_files_only=True)
    made: tuple[ov.Model, ov.Model] = convert_tokenizer(tokenizer, with_detokenizer=True)
    for model, name in zip(made, ("tokenizer", "detokenizer"), strict=True):
        ov.save_model(model, folder / f"openvino_{name}.xml")


def _write(version: RegisteredVersion, _folder: Path, _max_batch: int | None) -> Written:
    made, options = version.artifacts / "openvino-genai", version.manifest["session"]["provider_options"]
    make_openvino_genai(version.variant, made, options)
    precision = options["INFERENCE_PRECISION_HINT"]
    usage = [
        "OpenVINO GenAI opens this folder as it is. The type of the cache is a setting of the graph; name the type to compute "
        f"in, `{precision}`, since the default depends on the processor:",
        code_block(
            "import openvino_genai",
            "",
            f'pipeline = openvino_genai.LLMPipeline(".", "CPU", INFERENCE_PRECISION_HINT="{precision}")',
            'print(pipeline.generate("your prompt", max_new_tokens=64, do_sample=False, apply_chat_template=False))',
        ),
    ]
    files = {path.name: path for path in sorted(made.iterdir())}
    return handed_over(version, files, usage, folder_notes(version.manifest))


EXPORTS = {"--genai": Exporter(_write)}
