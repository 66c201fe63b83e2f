"""AutoRound's own package beside quantgate's methods: what INT4 weights of SmolLM2-135M lose, all else in float.

    python -m venv ~/auto-round && ~/auto-round/bin/pip install auto-round torch
    python benchmarks/rounding_peers.py --peer ~/auto-round/bin/python    # an hour and a half on two cores

Symmetric blocks of 32, the head in float, 64 calibration windows of 256 tokens of Wikipedia articles for each method, and the
loss on 16 windows of 512 tokens of others. AutoRound (Cheng et al. 2023) learns block by block by signed gradients, with the
settings that its authors call light: 50 steps at a learning rate of 0.005, where its default of 200 takes four times as long.
"""

from __future__ import annotations

import copy
import subprocess
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from figures import earlier, save
from jobs import state_of

from tasks.demo.language import hugging_face_model
from tasks.measure.metrics.perplexity import score_windows
from tasks.ptq.weight_only.roundings import BLOCKS

BLOCK = 32
# Runs in the other environment, with folders of the float model and of the result, and the calibration windows.
LIGHT = """
import sys, time
import numpy as np, torch
from auto_round import AutoRound
from transformers import AutoModelForCausalLM, AutoTokenizer
source, target, windows = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
samples = [torch.from_numpy(one[None]) for one in np.load(windows)["input_ids"]]
options = dict(scheme="W4A16", group_size=32, iters=50, lr=5e-3, batch_size=8, device_map="cpu", trust_remote_code=False)
tool = AutoRound(
    model, AutoTokenizer.from_pretrained(source), dataset=samples, nsamples=len(samples), seqlen=samples[0].shape[1], **options
)
tool.quantize_and_save(target, format="fake")
"""


def main(peer: Annotated[Path, typer.Option(help="Python of an environment with auto-round.")]) -> None:
    """Measure each method and write `rounding_peers.json`."""
    import torch
    from transformers import AutoModelForCausalLM

    # Windows of articles, as `decoders.py` writes them.
    state = state_of("benchmark-decoders")
    folder = state / "rounding-peers"
    model, tokenizer = hugging_face_model(state)
    tokens = np.load(state / "evaluation.npz")["input_ids"]
    calibration = np.load(state / "calibration.npz")["input_ids"]
    before = _loss(model, tokens)
    found = {"float loss": before, "methods": earlier("rounding_peers").get("methods", {})}
    grams = _grams(model, calibration)
    for method in ("rtn", "gptq", "learned"):
        started, rounded = time.monotonic(), copy.deepcopy(model)
        for name, layer in _layers(rounded).items():
            weight = layer.weight.detach().numpy().T
            made = BLOCKS[method](weight, grams[name], block_size=BLOCK, symmetric=True, dtype=np.float32)
            layer.weight.data = torch.from_numpy(np.ascontiguousarray(made.dequantized().T, np.float32))
        seconds = time.monotonic() - started
        found["methods"][method] = {"added loss": _loss(rounded, tokens) - before, "seconds": round(seconds)}
        print(method, found["methods"][method], flush=True)
        save("rounding_peers", found, quiet=True)
    if not (folder / "auto-round").exists():
        model.save_pretrained(folder / "float")
        tokenizer.save_pretrained(folder / "float")
        places = [folder / "float", folder / "auto-round", state / "calibration.npz"]
        subprocess.run([peer, "-c", LIGHT, *places], check=True)
    (config,) = (folder / "auto-round").rglob("config.json")
    other = AutoModelForCausalLM.from_pretrained(config.parent, dtype=torch.float32)
    found["methods"]["AutoRound, light"] = {"added loss": _loss(other, tokens) - before}
    save("rounding_peers", found)


def _layers(model: Any) -> dict[str, Any]:
    import torch

    linear = {name: one for name, one in model.named_modules() if isinstance(one, torch.nn.Linear)}
    return {name: one for name, one in linear.items() if name != "lm_head"}


def _loss(model: Any, tokens: np.ndarray) -> float:
    """Return the mean loss of windows, int64 `(windows, tokens)`, in nats a token."""
    import torch

    with torch.inference_mode():
        losses = [score_windows(model(torch.from_numpy(one[None])).logits.numpy(), one[None]) for one in tokens]
    return float(np.mean(losses))


def _grams(model: Any, windows: np.ndarray) -> dict[str, np.ndarray]:
    """Return the Gram matrix of what each layer reads, float64 `(K, K)`, by its name."""
    import torch

    sums: dict[str, np.ndarray] = {}

    def add(name: str, read: Any) -> None:
        rows = read.reshape(-1, read.shape[-1]).double().numpy()
        sums[name] = sums.get(name, 0.0) + rows.T @ rows

    hooks = [
        layer.register_forward_pre_hook(lambda _layer, read, name=name: add(name, read[0]))
        for name, layer in _layers(model).items()
    ]
    with torch.inference_mode():
        for window in windows:
            model(torch.from_numpy(window[None]))
    for hook in hooks:
        hook.remove()
    return sums


if __name__ == "__main__":
    typer.run(main)
