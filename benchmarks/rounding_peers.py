"""AutoRound's own package beside quantgate's methods: what INT4 weights of SmolLM2-135M lose, all else in float.

    python benchmarks/decoders.py --losses    # once: it writes the windows
    python -m venv ~/auto-round && ~/auto-round/bin/pip install auto-round torch
    python benchmarks/rounding_peers.py --peer ~/auto-round/bin/python    # 25 minutes on two cores

Symmetric blocks of 32, the head in float, 64 calibration windows of 256 tokens of Wikipedia articles for each method, and the
loss on windows of others. AutoRound (Cheng et al. 2023) learns block by block by signed gradients, with the settings that its
authors call light: 50 steps at a learning rate of 0.005, where its default of 200 takes four times as long.
"""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from figures import save
from jobs import state_of

from tasks.demo.language import hugging_face_model
from tasks.measure.metrics.perplexity import score_windows
from tasks.ptq.weight_only.roundings import BLOCKS

BLOCK = 32
# Runs in the other environment, with folders of the float model and of the result, and the calibration windows.
LIGHT = """
import sys
import numpy as np, torch
from importlib import metadata
from auto_round import AutoRound
from transformers import AutoModelForCausalLM, AutoTokenizer
source, target, windows = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
samples = [torch.from_numpy(one[None]) for one in np.load(windows)["input_ids"]]
options = dict(scheme="W4A16", group_size=32, iters=50, lr=5e-3, batch_size=8, device_map="cpu", trust_remote_code=False)
tool = AutoRound(
    model, AutoTokenizer.from_pretrained(source), dataset=samples, nsamples=len(samples), seqlen=samples[0].shape[1], **options
)
tool.quantize_and_save(target, format="auto_gptq")
open(target + "/version", "w").write(metadata.version("auto-round"))
"""


def main(peer: Annotated[Path, typer.Option(help="Python of an environment with auto-round.")]) -> None:
    """Measure each method and write `rounding_peers.json`."""
    import torch
    from safetensors.torch import load_file

    state = state_of("benchmark-decoders")
    folder = state / "rounding-peers"
    model, tokenizer = hugging_face_model(state)
    tokens = np.load(state / "evaluation.npz")["input_ids"]
    if not (folder / "auto-round" / "version").exists():
        model.save_pretrained(folder / "float")
        tokenizer.save_pretrained(folder / "float")
        subprocess.run(
            [peer, "-c", LIGHT, folder / "float", folder / "auto-round", state / "calibration.npz"], check=True
        )
    (stored,) = (folder / "auto-round").rglob("*.safetensors")
    rounded = {"AutoRound, light": unpacked(load_file(stored))}
    grams = _grams(model, np.load(state / "calibration.npz")["input_ids"])
    for method in ("rtn", "gptq", "learned"):
        rounded[method] = {}
        for name, layer in _layers(model).items():
            weight = layer.weight.detach().numpy().T
            made = BLOCKS[method](weight, grams[name].copy(), block_size=BLOCK, symmetric=True, dtype=np.float32)
            rounded[method][name] = torch.from_numpy(np.ascontiguousarray(made.dequantized().T, np.float32))
    before = _losses(model, tokens)
    version = (folder / "auto-round" / "version").read_text()
    found: dict[str, Any] = {"auto-round": version, "float loss": before.mean(), "methods": {}}
    for method, weights in rounded.items():
        other = copy.deepcopy(model)
        for name, layer in _layers(other).items():
            layer.weight.data = weights[name]
        added = _losses(other, tokens) - before
        half = 1.96 * added.std(ddof=1) / len(added) ** 0.5
        low, high = added.mean() - half, added.mean() + half
        found["methods"][method] = {"added loss": added.mean(), "interval": [low, high]}
    save("rounding_peers", found)


def _layers(model: Any) -> dict[str, Any]:
    import torch

    linear = {name: one for name, one in model.named_modules() if isinstance(one, torch.nn.Linear)}
    return {name: one for name, one in linear.items() if name != "lm_head"}


def unpacked(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the weights `[N, K]` of a file of GPTQ: codes of 4 bits along K in integers of 32, the first one lowest."""
    import torch

    shifts, weights = torch.arange(0, 32, 4), {}
    for key in stored:
        if not key.endswith(".qweight"):
            continue
        name = key.removesuffix(".qweight")
        # The zero points are stored less one.
        codes = (stored[key][:, None] >> shifts[:, None] & 15).flatten(0, 1)
        zeros = (stored[f"{name}.qzeros"][:, :, None] >> shifts & 15).flatten(1) + 1
        scales, block = stored[f"{name}.scales"].float(), torch.arange(len(codes)) // BLOCK
        weights[name] = ((codes - zeros[block]) * scales[block]).T.contiguous()
    return weights


def _losses(model: Any, tokens: np.ndarray) -> np.ndarray:
    """Return the mean loss of each window of int64 `(windows, tokens)`, in nats a token."""
    import torch

    with torch.inference_mode():
        return np.concatenate(
            [score_windows(model(torch.from_numpy(one[None])).logits.numpy(), one[None]) for one in tokens]
        )


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
