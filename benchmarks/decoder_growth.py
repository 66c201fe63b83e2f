"""Memory and time to quantize a decoder, by its size: Llama's layers with random weights in bfloat16, in shards.

    python benchmarks/decoder_growth.py run [--variant int8 ...] [0.1 0.4 1 3]    # 3: 6 GB of weights, 50 GB of TMPDIR

Each step of a run up to the variants is a process of its own, watched from outside. Own memory is what no file backs: pages of
mapped weights are given back when others need the room. Writes `results/decoder_growth.json`.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from figures import RESULTS, earlier, save
from processes import run_step

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
TOKENS, WINDOW, WINDOWS = 32_000, 128, 64
# Billions of weights: width, inner width, layers, heads, heads of keys.
SIZES = {
    0.1: (768, 2048, 12, 12, 4),
    0.4: (1024, 2816, 32, 16, 8),
    1.0: (2048, 5632, 22, 32, 4),
    3.0: (3072, 8192, 28, 24, 8),
}
VARIANTS = {
    "int8": "int8-g32-rtn@ort-genai",
    "int8-dynamic": "int8-dynamic-pc@ort-genai",
    "int4-rtn": "int4-g32-rtn@ort-genai",
    "int4-gptq": "int4-g32-gptq-asym@ort-genai",
    "int4-openvino": "int4-g64-rtn@openvino-decoder",
}


def make_source(folder: Path, billions: float) -> None:
    """Write a folder as transformers saves one, a layer a shard."""
    import torch
    import transformers
    from decoder_user import trained
    from safetensors.torch import save_file

    width, inner, layers, heads, kv_heads = SIZES[billions]
    config = transformers.LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        dtype="bfloat16",
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(folder)
    names: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=trained(), **names)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    places: dict[str, str] = {}
    with torch.device("meta"):
        weights = transformers.LlamaForCausalLM(config).state_dict()
    for part, names in groupby(weights, key=lambda name: ".".join(name.split(".")[:3])):
        file = f"{part}.safetensors"
        shard = {}
        for name in names:
            shape = weights[name].shape
            drawn = torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * shape[1] ** -0.5
            shard[name] = drawn.to(torch.bfloat16)
        save_file(shard, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(shard, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    rng = np.random.default_rng(0)
    np.savez(folder.parent / "windows.npz", input_ids=rng.integers(2, TOKENS, (WINDOWS, WINDOW)))


def convert_source(root: Path) -> None:
    """Convert it to a float graph, and compare the two."""
    from tasks.evidence.torch_export import Original, convert

    (root / "decoder").mkdir()
    convert(Original("decoder", root / "source"), root / "decoder" / "model.onnx", lambda _: _windows(root))


def prepare(root: Path) -> None:
    """Make the graph that all passes start from."""
    from tasks.ptq.graph.prepare import make_prepared
    from tasks.trials.materials import few_samples

    (root / "prepared").mkdir()
    make_prepared(
        root / "decoder" / "model.onnx", (), root / "prepared", samples=partial(few_samples, _windows(root), None)
    )


def make(root: Path, name: str) -> None:
    """Make a variant, and answer a prompt with it."""
    from tasks.engines.variants import make_variant
    from tasks.measure.inventory import this_processor
    from tasks.ptq.build_variant import Materials
    from tasks.ptq.calibrate.grams import collect_grams
    from tasks.ptq.weight_only.sites import tensors_to_collect
    from validators.job.candidate_name import decode

    windows, folder = _windows(root), root / name
    folder.mkdir()

    def grams(candidate: Any, graph: Path) -> Any:
        tensors = tensors_to_collect(graph, block_size=candidate.block_size or 32)
        return collect_grams(graph, tensors, lambda: windows.batches(8), max_memory_mb=1000, threads=2)

    prepared = root / "prepared" / "prepared.onnx"
    companions = [one for one in (root / "decoder").iterdir() if not one.name.startswith("model.onnx")]
    materials = Materials(
        prepared=lambda: prepared,
        fused=lambda: prepared,
        smoothed=_unused,
        statistics=_unused,
        ranking=_unused,
        batches=lambda: list(windows.batches(8)),
        grams=grams,
        processor=this_processor(),
        companions=tuple(companions),
    )
    variant = make_variant(decode(VARIANTS[name]), materials, folder, threads=2)
    print(json.dumps({"file_mb": round(variant.size_bytes / 1e6)}))


def answer(root: Path, name: str) -> None:
    """Load a variant in the library that serves it, and answer a prompt of 16 tokens with 8."""
    from tasks.engines.variants import session_settings
    from validators.job.candidate_name import decode

    candidate = decode(VARIANTS[name])
    if candidate.target == "ort-genai":
        from tasks.engines.genai.shipped.model import GenaiModel as Model
    else:
        from tasks.engines.openvino_decoder.shipped.model import OpenVinoDecoder as Model
    settings = session_settings(candidate, 2)
    path = next((root / name).rglob("model.onnx"))
    tokens = Model(path, 2, settings.provider_options).generate(_windows(root).inputs["input_ids"][:1, :16], 8)
    assert np.shape(tokens)[-1] >= 8, tokens


def _windows(root: Path) -> Any:
    from validators.records.run import DataFile
    from validators.samples.datasets import Samples

    with np.load(root / "windows.npz", allow_pickle=False) as archive:
        tokens = archive["input_ids"]
    return Samples(DataFile(root / "windows.npz", "", len(tokens)), {"input_ids": tokens}, None, {})


def _unused(*_: object) -> Any:
    raise AssertionError("no pass of a decoder reads it")


@app.command()
def step(name: str, root: Path) -> None:
    """Do one step in this process."""
    steps: dict[str, Callable[[Path], None]] = {"convert": convert_source, "prepare": prepare}
    steps |= {one: partial(make, name=one) for one in VARIANTS}
    steps |= {f"{one}-answer": partial(answer, name=one) for one in VARIANTS}
    steps[name](root)


@app.command()
def run(
    billions: Annotated[list[float] | None, typer.Argument()] = None,
    variant: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(VARIANTS)}; all by default.")] = None,
    limit: Annotated[int | None, typer.Option(help="Most memory in MB, cached files with it, of a step.")] = None,
) -> None:
    """Do all steps for each size, and write the figures; those of other sizes stay."""
    figures: dict[str, Any] = earlier("decoder_growth").get("sizes", {})
    for size in billions or list(SIZES):
        with tempfile.TemporaryDirectory(prefix="quantgate-growth-") as folder:
            root = Path(folder)
            (root / "source").mkdir()
            make_source(root / "source", size)
            figures[str(size)] = {"limit_mb": limit}
            for name in ("convert", "prepare", *(variant or VARIANTS)):
                told = figures[str(size)][name] = run_step(__file__, name, root, limit)
                if name in VARIANTS:
                    told["answer"] = run_step(__file__, f"{name}-answer", root, None)
                    shutil.rmtree(root / name, ignore_errors=True)
                print(size, name, told, flush=True)
                if name == "convert":
                    shutil.rmtree(root / "source")
    save("decoder_growth", {"sizes": figures})
    draw(figures)


def draw(sizes: dict[str, Any]) -> None:
    """Memory and time of each step by the size of the model, as `decoder_growth.png`."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10.5, 3.6), layout="constrained")
    counts = sorted(sizes, key=float)
    for axis, key, label in zip(axes, ("own_mb", "seconds"), ("own memory, GB", "seconds"), strict=True):
        for step, marker in zip(("convert", "prepare", *VARIANTS), "osv^Dx*", strict=True):
            told = [(float(count), sizes[count][step][key]) for count in counts if step in sizes[count]]
            scale = 1e-3 if key == "own_mb" else 1
            name = VARIANTS.get(step, step).partition("@")[0] + (" (OpenVINO)" if step == "int4-openvino" else "")
            axis.plot([one for one, _ in told], [scale * one for _, one in told], marker=marker, label=name)
        axis.set(xscale="log", xlabel="billions of weights", ylabel=label)
        axis.set_xticks([float(count) for count in counts], counts)
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
    axes[1].set(yscale="log", ylim=(1, None))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    figure.savefig(RESULTS / "decoder_growth.png", dpi=150)


if __name__ == "__main__":
    app()
