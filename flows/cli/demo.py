"""The demos: each builds and registers a real model from public assets, and completes its job from `examples/`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml

from tasks.demo import image, language, text
from tasks.demo.registry import register
from tasks.evidence.flavors import need_libraries
from tasks.run.context import log
from tasks.run.settings import beside_the_packages, tracking_uri
from validators.targets import facts_of

DemoKind = Literal["text", "image", "llm"]
# Its engine is built ahead of time, without a GPU, and looked at.
BUILT_ONLY = "int8-static-minmax-pc@tensorrt"
# Libraries that build the model, the extra of quantgate that has them, and the demo's name in an error.
NEEDS: dict[DemoKind, tuple[tuple[str, ...], str, str]] = {
    "text": (("tokenizers", "safetensors"), "demo", "the text demo"),
    "image": (("safetensors",), "demo", "the image demo"),
    "llm": (("transformers", "onnxruntime_genai", "gguf"), "genai", "the language demo"),
}
EXAMPLES = beside_the_packages("examples")


def prepare_demo(state: Path, kind: DemoKind = "text", *, every: bool = False) -> Path:
    """Fetch, build and register what is missing; return the path of the job file to run.

    `every` tries all default candidates of the job's target, and one for TensorRT that is only built; for the language demo,
    all sensible recipes.

    Raises:
        InfrastructureError: an asset cannot be fetched, or the registry does not answer.
        SourceError: the demo's libraries are not installed.
    """
    libraries, extra, title = NEEDS[kind]
    need_libraries(libraries, extra, title)
    state.mkdir(parents=True, exist_ok=True)
    log.info("demo: fetching assets and building the model (once)")
    built = {"text": text, "image": image, "llm": language}[kind].build(state)
    uri = register(built, tracking_uri(state), kind)
    figures = ", ".join(f"{key} {value}" for key, value in sorted(built.notes.items()))
    log.info("demo: %s is registered as %s (%s)", built.name, uri, figures)
    _link(state / "demo" / kind, built.calibration_path.parent)
    job = yaml.safe_load((EXAMPLES / f"{kind}.yaml").read_text(encoding="utf-8")) | {"source": uri}
    job["data"] |= {"calibration": str(built.calibration_path), "evaluation": str(built.evaluation_path)}
    if every:
        job["candidates"] = "wide" if kind == "llm" else [*facts_of(job["target"]).default_candidates, BUILT_ONLY]
    path = state / "demo" / f"{kind}.yaml"
    path.write_text(yaml.safe_dump(job, sort_keys=False), encoding="utf-8")
    return path


def _link(link: Path, folder: Path) -> None:
    """Point `link` at `folder`, so that the job in `examples/` finds the data under a stable name."""
    temporary = link.with_name(f".{link.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.name)
    temporary.replace(link)
