"""READMEs of packages that TorchInductor compiled, and no exports: no other program reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.serving.example import FOLDER, ExampleProgram
from tasks.serving.exporter import Exporter
from tasks.serving.sections import shown
from validators.targets import facts_of_provider

EXPORTS: dict[str, Exporter] = {}


def program(manifest: Mapping[str, Any]) -> ExampleProgram:
    """Return the lines for a package of TorchInductor, which runs native code: check its digest first."""
    to_gpu, back = ('.to("cuda")', ".cpu()") if facts_of_provider(manifest["session"]["provider"]).on_gpu else ("", "")
    lines = [
        "import json",
        "",
        "import numpy as np",
        "import torch",
        "",
        f"torch.set_num_threads({manifest['session']['threads']})",
        f'session = torch._inductor.aoti_load_package("{FOLDER}/model.pt2").loader',
        'inputs = [name for name, _, _ in json.loads(session.get_metadata()["quantgate"])["inputs"]]',
        "",
        "",
        "def run(feed):",
        f"    tensors = [torch.from_numpy(feed[name]){to_gpu} for name in inputs]",
        f"    return [tensor{back}.numpy() for tensor in session.run(tensors)]",
        "",
        "",
    ]
    return ExampleProgram(lines, repr(manifest["outputs"]), "run(feed)")


def settings(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the approved settings of the session, by their names for people."""
    return [
        ("Threads", str(manifest["session"]["threads"])),
        ("Compiled for", shown(manifest["device"])),
    ]
