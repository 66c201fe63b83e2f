"""Inputs and outputs of an exported PyTorch program (`.pt2`), read from its archive without loading it."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from validators.errors import SourceError
from validators.samples.datasets import TensorSpec
from validators.untrusted.bounded_json import load_json, read_member
from validators.untrusted.external_data import MOST_ELEMENTS
from validators.untrusted.torch_program import leaf_names

# torch/_export/serde/schema.py, ScalarType.
_TORCH_DTYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    12: "bool",
    13: "bfloat16",
}
# numpy's limit.
_MOST_AXES = 64


@dataclass(frozen=True)
class ProgramInterface:
    """Inputs and outputs of a program, the dtype of most of its weights, and the version of torch that wrote it.

    Outputs have names of their own, the keys of dictionaries, if `names_outputs`; else those of the nodes that compute them.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    names_outputs: bool
    precision: str
    torch: str


def read_interface(path: Path) -> ProgramInterface:
    """Return the interface of a program.

    Raises:
        SourceError: its archive or description is damaged.
    """
    try:
        return _read(path)
    except Exception as error:  # zipfile raises several classes for damaged archives
        raise SourceError(
            found=f"{path.name} cannot be read: {type(error).__name__}: {error}",
            expected="an exported program as torch.export.save writes it",
            fix="save the model again with the torch version that quantgate uses",
        ) from error


def _read(path: Path) -> ProgramInterface:
    with zipfile.ZipFile(path) as archive:
        member = next(name for name in archive.namelist() if name.endswith("models/model.json"))
        model = load_json(read_member(archive, member))
    module = model["graph_module"]
    tensors, signature = module["graph"]["tensor_values"], module["signature"]
    inputs = _specs((spec.get("user_input") for spec in signature["input_specs"]), tensors)
    answers = [spec["user_output"] for spec in signature["output_specs"] if "user_output" in spec]
    outputs = _specs(answers, tensors)
    keys = leaf_names(
        json.loads(module["module_call_graph"][0]["signature"]["out_spec"])[1],
        ["as_tensor" in answer["arg"] for answer in answers],
        [spec.name for spec in inputs],
    )
    if keys:
        outputs = tuple(replace(spec, name=key) for spec, key in zip(outputs, keys, strict=True))
    kept = [spec["parameter"]["arg"]["name"] for spec in signature["input_specs"] if "parameter" in spec]
    sizes: Counter[str] = Counter()
    for name in kept:
        spec = _spec(name, tensors[name])
        sizes[spec.dtype] += int(np.prod([axis for axis in spec.shape if isinstance(axis, int)], dtype=np.int64))
    precision = sizes.most_common(1)[0][0] if sizes else ""
    return ProgramInterface(inputs, outputs, bool(keys), precision, str(model.get("torch_version", "")))


def _specs(arguments: Iterable[Any], tensors: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    names = [one["arg"]["as_tensor"]["name"] for one in arguments if one and "as_tensor" in one["arg"]]
    return tuple(_spec(name, tensors[name]) for name in names)


def _spec(name: str, tensor: Mapping[str, Any]) -> TensorSpec:
    shape = tuple(size.get("as_int") for size in tensor["sizes"])
    fine = all(axis is None or (isinstance(axis, int) and 0 <= axis <= MOST_ELEMENTS) for axis in shape)
    if not fine or len(shape) > _MOST_AXES:
        raise ValueError(f"the tensor {name!r} has the shape {list(shape[:8])}")
    return TensorSpec(name, _TORCH_DTYPES.get(tensor["dtype"], "unknown"), shape)
