"""Olive's workflow with one pass, `OnnxStaticQuantization`; needs `olive-ai`, `onnxruntime` and `requests`."""

from __future__ import annotations

import json
from pathlib import Path

# Olive loads this file by its path to find what is registered here; `samples.py` lies beside it.
SCRIPT = """
import sys
sys.path.append({beside!r})
from olive.data.registry import Registry
from samples import batches


@Registry.register_dataset()
def calibration_samples(data_dir=None, **kwargs):
    return [(one, 0) for one in batches({calibration!r})]


@Registry.register_dataloader()
def one_by_one(dataset, **kwargs):
    return dataset
"""


def quantize(source: Path, calibration: Path, folder: Path) -> Path:
    """Run the workflow on the processor with all samples."""
    from olive import run

    script = folder / "olive_samples.py"
    script.write_text(SCRIPT.format(beside=str(Path(__file__).parent), calibration=str(calibration)))
    samples = {
        "name": "samples",
        "user_script": str(script),
        "load_dataset_config": {"type": "calibration_samples"},
        "pre_process_data_config": {"type": "skip_pre_process"},
        "post_process_data_config": {"type": "skip_post_process"},
        "dataloader_config": {"type": "one_by_one"},
    }
    workflow = {
        "input_model": {"type": "ONNXModel", "model_path": str(source)},
        "data_configs": [samples],
        "passes": {"quantize": {"type": "OnnxStaticQuantization", "data_config": "samples"}},
        "output_dir": str(folder / "out"),
        "cache_dir": str(folder / "cache"),
        "evaluate_input_model": False,
    }
    (folder / "workflow.json").write_text(json.dumps(workflow))
    run(str(folder / "workflow.json"))
    return max((folder / "out").rglob("*.onnx"), key=lambda path: path.stat().st_size)
