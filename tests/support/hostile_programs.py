"""Exported PyTorch programs that run code when torch loads or calls them: `python tests/support/hostile_programs.py FOLDER`.

Writes `FOLDER/<attack>.pt2`, of which each would touch `FOLDER/<attack>.canary`, and the harmless `FOLDER/plain.pt2`; then
loads each as quantgate would without its checks, and prints the attacks that worked as a list in JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import pickle
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Members = dict[str, bytes]
MODEL = "plain/models/model.json"
WEIGHTS, CONSTANTS = (
    "plain/data/weights/model_weights_config.json",
    "plain/data/constants/model_constants_config.json",
)


class Touch:
    """Pickled, it is a command."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.canary}",)


class Program(torch.nn.Module):
    """One layer and a constant, with a dynamic batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.shift = torch.ones(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x) + self.shift)


def pickled(canary: Path) -> bytes:
    """As `torch.load` takes it."""
    stream = io.BytesIO()
    torch.save(Touch(canary), stream)
    return stream.getvalue()


def changed(members: Members, name: str, change: Callable[[Any], object]) -> Members:
    content = json.loads(members[name])
    change(content)
    return members | {name: json.dumps(content).encode()}


def weight(members: Members, canary: Path) -> Members:
    def change(config: Any) -> None:
        config["config"]["layer.weight"]["use_pickle"] = True

    return changed(members, WEIGHTS, change) | {"plain/data/weights/weight_0": pickled(canary)}


def constant(members: Members, canary: Path) -> Members:
    def change(config: Any) -> None:
        config["config"]["shift"]["use_pickle"] = True

    return changed(members, CONSTANTS, change) | {"plain/data/constants/tensor_0": pickled(canary)}


def opaque(members: Members, canary: Path) -> Members:
    def change(config: Any) -> None:
        config["config"]["shift"] |= {"path_name": "opaque_obj_0", "use_pickle": True}

    plain = pickle.dumps(Touch(canary))
    return changed(members, CONSTANTS, change) | {"plain/data/constants/opaque_obj_0": plain}


def legacy_weights(members: Members, canary: Path) -> Members:
    return members | {"plain/data/weights/model.pt": pickled(canary)}


def expression(members: Members, canary: Path) -> Members:
    """A shape that is Python."""
    code = f"__import__('os').system('touch {canary}')"
    text = members[MODEL].decode()
    start = text.index('"expr_str": "') + len('"expr_str": "')
    return members | {MODEL: (text[:start] + code + text[text.index('"', start) :]).encode()}


def guard(members: Members, canary: Path) -> Members:
    def change(model: Any) -> None:
        model["guards_code"] = [f"__import__('os').system('touch {canary}') == 0"]

    return changed(members, MODEL, change)


def guard_in_a_string(members: Members, canary: Path) -> Members:
    """The guard is quoted in the message of its own failure."""

    def change(model: Any) -> None:
        system, command = (f"bytes({list(text.encode())}).decode()" for text in ("os", f"touch {canary}"))
        inner = f"__import__({system}).system({command})"  # without a quote, which would end the string too early
        model["guards_code"] = [f"L['x'].size()[0] != 'a\" + str({inner}) + \"b'"]

    return changed(members, MODEL, change)


def operator(members: Members, canary: Path) -> Members:
    """`torch.os.system`, with a string for an argument."""

    def change(model: Any) -> None:
        node = model["graph_module"]["graph"]["nodes"][-1]
        node["target"] = "torch.os.system"
        node["inputs"] = [{"name": "", "arg": {"as_string": f"touch {canary}"}, "kind": 1}]

    return changed(members, MODEL, change)


def container(members: Members, canary: Path) -> Members:
    """A description of inputs that imports a module."""
    (canary.parent / "planted_container.py").write_text(f"open({str(canary)!r}, 'w')\n")

    def change(model: Any) -> None:
        signature = model["graph_module"]["module_call_graph"][0]["signature"]
        leaf = {"type": None, "context": None, "children_spec": []}
        context = {"default_factory_module": "planted_container", "default_factory_name": "x", "dict_context": ["a"]}
        spec = [1, {"type": "collections.defaultdict", "context": context, "children_spec": [leaf]}]
        signature["out_spec"] = json.dumps(spec)

    return changed(members, MODEL, change)


def samples(members: Members, canary: Path) -> Members:
    return members | {"plain/data/sample_inputs/model.pt": pickled(canary)}


ATTACKS = {
    attack.__name__: attack
    for attack in (
        *(weight, constant, opaque, legacy_weights, samples),
        *(expression, guard, guard_in_a_string, operator, container),
    )
}


def write(path: Path, members: Members) -> None:
    """As torch would: stored, in a folder."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def load(path: Path) -> None:
    """What an export does with a program, unguarded."""
    module = torch.export.load(path).module()
    module(torch.zeros(2, 4))


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    logging.disable()
    sys.path.append(str(folder))
    torch.manual_seed(1)
    program = torch.export.export(Program(), (torch.zeros(4, 4),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, folder / "plain.pt2")
    with zipfile.ZipFile(folder / "plain.pt2") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    worked = []
    for name, attack in ATTACKS.items():
        canary = folder / f"{name}.canary"
        write(folder / f"{name}.pt2", attack(members, canary))
        with contextlib.suppress(Exception):
            load(folder / f"{name}.pt2")
        if canary.exists():
            worked.append(name)
            canary.unlink()
    print(json.dumps(worked))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
