"""Score windows and continue prompts with vLLM: `python tests/support/vllm_answers.py REQUEST`, in vLLM's own environment.

Its own environment also has transformers with compressed-tensors, which dequantizes the weights of any checkpoint.

REQUEST is a JSON file: `runs` are pairs of a folder and the type to compute in, `windows` a `.npz` with `input_ids`,
`vocabulary` and `new_tokens` numbers. Beside each folder, `<folder>.<dtype>.npz` gets `scores`, the log-probabilities of all
tokens after each token of a window but the last; `answers`, the tokens that follow the first 16 of a window; and `text`, the
answer to "hello world", with the tokens of that `prompt`. For each folder of `weights`, `<folder>.weights.npz` gets the
weights that transformers reads, and its `scores` in float32.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
}


def main(request: dict[str, Any]) -> None:
    from vllm import LLM, SamplingParams

    with np.load(request["windows"]) as archive:
        windows = archive["input_ids"]
    vocabulary, count = request["vocabulary"], request["new_tokens"]
    for folder in request["weights"]:
        dequantize(folder, windows)
    for model, dtype in request["runs"]:
        engine = LLM(model, dtype=dtype, enforce_eager=True, max_model_len=128, max_logprobs=vocabulary, max_num_seqs=4)
        ask = SamplingParams(max_tokens=1, prompt_logprobs=vocabulary)
        told = engine.generate([{"prompt_token_ids": window.tolist()} for window in windows], ask, use_tqdm=False)
        scores = np.full((len(windows), windows.shape[1] - 1, vocabulary), np.nan)
        for index, one in enumerate(told):
            for at, row in enumerate(one.prompt_logprobs[1:]):
                for token, value in row.items():
                    scores[index, at, token] = value.logprob
        greedy = SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)
        prompts = [{"prompt_token_ids": window[:16].tolist()} for window in windows]
        answers = [list(one.outputs[0].token_ids) for one in engine.generate(prompts, greedy, use_tqdm=False)]
        text = engine.generate(["hello world"], greedy, use_tqdm=False)[0]
        np.savez(
            f"{Path(model)}.{dtype}.npz",
            scores=scores,
            answers=np.array(answers),
            prompt=np.array(text.prompt_token_ids),
            text=text.outputs[0].text,
        )
        # An engine ends what the process shares with the next one.
        del engine
        gc.collect()


def dequantize(folder: str, windows: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, quantization_config=CompressedTensorsConfig(dequantize=True)
    )
    with torch.no_grad():
        scores = torch.log_softmax(model(torch.from_numpy(windows[:, :-1])).logits, dim=-1)
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    np.savez(f"{folder}.weights.npz", scores=scores.numpy(), **weights)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
