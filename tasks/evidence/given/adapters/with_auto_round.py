"""AutoRound's INT4 weights of a decoder, written as ONNX by the model builder of onnxruntime-genai, which reads its checkpoint.

Needs `auto-round`, `onnxruntime-genai`, `onnxruntime`, `onnx` and `onnx-ir`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from auto_round import AutoRound
from onnxruntime_genai.models import builder
from samples import batches
from transformers import AutoModelForCausalLM, AutoTokenizer


def quantize(source: Path, calibration: Path, folder: Path) -> Path:
    """Call AutoRound with its defaults, symmetric blocks of 32 and all samples; then the builder, for a processor.

    AutoRound leaves the head in float, and the builder rounds it to INT8.
    """
    # Loaded here: AutoRound itself would run code that a folder brings along.
    model, tokenizer = (
        one.from_pretrained(source, local_files_only=True, trust_remote_code=False)
        for one in (AutoModelForCausalLM, AutoTokenizer)
    )
    samples: list[torch.Tensor] = [torch.from_numpy(one["input_ids"]) for one in batches(calibration)]
    tool = AutoRound(
        model,
        tokenizer,
        scheme="W4A16",
        group_size=32,
        dataset=samples,
        nsamples=len(samples),
        seqlen=samples[0].shape[1],
        trust_remote_code=False,
    )
    tool.quantize_and_save(str(folder / "checkpoint"), format="auto_gptq")
    (config,) = (folder / "checkpoint").rglob("config.json")
    places = ("", str(config.parent), str(folder / "out"), "int4", "cpu", str(folder / "cache"))
    options = builder.parse_extra_options(*places, ["hf_token=false", "hf_remote=false", "algo_config=rtn_last"])
    builder.create_model(*places, **options)
    return folder / "out"
