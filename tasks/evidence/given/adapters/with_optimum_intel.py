"""optimum-intel's export of a decoder with INT4 weights; needs `optimum-intel[openvino]`."""

from __future__ import annotations

from pathlib import Path

import nncf
import torch
from optimum.intel import OVConfig, OVModelForCausalLM, OVQuantizer, OVWeightQuantizationConfig
from samples import batches


def quantize(source: Path, calibration: Path, folder: Path) -> Path:
    """Quantize to INT4 in blocks of 64, with AWQ and scale estimation on all samples; embedding and head to INT8."""
    model = OVModelForCausalLM.from_pretrained(
        source, export=True, compile=False, load_in_8bit=False, local_files_only=True
    )
    samples: list[torch.Tensor] = [torch.from_numpy(one["input_ids"]) for one in batches(calibration)]
    settings = OVWeightQuantizationConfig(
        bits=4,
        group_size=64,
        group_size_fallback="adjust",
        quant_method="awq",
        scale_estimation=True,
        num_samples=len(samples),
    )

    def inputs(tokens: torch.Tensor) -> object:
        return model.prepare_inputs(input_ids=tokens, attention_mask=torch.ones_like(tokens))

    OVQuantizer.from_pretrained(model).quantize(
        calibration_dataset=nncf.Dataset(samples, inputs),
        ov_config=OVConfig(quantization_config=settings),
        save_directory=folder / "out",
    )
    return folder / "out"
