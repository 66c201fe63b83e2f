"""Checks of exported PyTorch programs (`.pt2`), because `torch.export.load` can run code from the file.

torch 2.13, by its source (`torch/export/pt2_archive/_package.py`, `torch/export/_unlift.py`, `torch/utils/_pytree.py`,
`torch/_export/serde/serialize.py`):

- unpickles weights marked as pickled, constants that are objects, and all older formats;
- loads shared libraries of compiled models;
- evaluates shapes by `sympy.sympify`, which is Python's `eval`, and executes guards;
- resolves an operator as any attribute below `torch`, and refuses it only later;
- imports any name that a container's description contains;
- writes strings into the C++ code that TorchInductor compiles, with their quotes.

This module refuses such a program before torch reads it. An archive may hold only the members that `torch.export.save` writes.
One of them is a pickle, the sample inputs: `tasks.runtimes.torch_program` does not read it.
"""

from __future__ import annotations

import ast
import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from validators.errors import SourceError
from validators.untrusted.bounded_json import load_json, read_member

_MEMBERS = re.compile(
    r"models/model\.json|archive_format|archive_version|byteorder|\.data/(version|serialization_id)|data/sample_inputs/model\.pt"
    r"|data/(weights/(weight_\d+|model_weights_config\.json)|constants/(tensor_\d+|model_constants_config\.json))"
    r"|extra/[\w.-]+"
)
_OPERATOR = re.compile(
    r"torch\.ops\.\w+\.\w+\.\w+|torch\.ops\.higher_order\.\w+|torch\.sym_\w+|_operator\.(?!attrgetter|methodcaller|call)\w+"
    r"|math\.\w+"
)
_NAME = re.compile(r"[A-Za-z_]?[\w.]*")
_WORD = re.compile(r"[\w. +*/-]*")
# Characters that end a string of C++, or a line of it.
_UNQUOTED = re.compile(r'["\\\x00-\x1f\x7f]|\?\?/')
_CONTAINERS = (None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict")
# Containers of other libraries, such as ModelOutput of transformers. They are read as lists; nothing is imported for them.
_FOREIGN = re.compile(r"(?!(builtins|collections|torch)\.)[A-Za-z_]\w*(\.\w+)+")
# Shape functions of sympy and torch.
_FUNCTION = re.compile(
    r"Symbol|Integer|Rational|Float|Add|Mul|Pow|Mod|Max|Min|Abs|Eq|Ne|Lt|Le|Gt|Ge|Equality|Unequality|And|Or|Not|floor|ceiling"
    r"|StrictLessThan|LessThan|StrictGreaterThan|GreaterThan|FloorDiv|ModularIndexing|Where|PythonMod|CleanDiv|CeilDiv|CeilToInt"
    r"|FloorToInt|IntTrueDiv|FloatTrueDiv|LShift|RShift|PowByNatural|FloatPow|RoundToInt|RoundDecimal|ToFloat|TruncToFloat"
    r"|TruncToInt|Identity"
)
_SHAPES = frozenset({"size", "stride", "storage_offset", "isnan", "inf", "nan"})
_HARMLESS = (
    *(ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Call, ast.keyword, ast.Attribute, ast.Subscript),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)


class _Refused(Exception):
    """A forbidden content of a program, described in words."""


def check_program(path: Path) -> None:
    """Check that loading an exported program runs nothing but operators.

    Raises:
        SourceError: the file is not an archive of `torch.export.save`, or torch would unpickle, evaluate or load code from it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(archive)
            _check_payload(_read(archive, "data/weights/model_weights_config.json"))
            _check_payload(_read(archive, "data/constants/model_constants_config.json"))
            _check(_read(archive, "models/model.json"), "")
    except Exception as error:  # zipfile, json and ast raise a dozen unrelated classes for a damaged file
        reason = str(error) if isinstance(error, _Refused) else f"{type(error).__name__}: {error}"
        raise SourceError(
            found=f"{path.name}: {reason}",
            expected="an exported program that torch loads without running the program's own code",
            fix="log it again with mlflow.pytorch.log_model(model, serialization_format='pt2', input_example=...), or, if you "
            "trust it, have the operator name the model in QUANTGATE_ALLOWED_PICKLES",
        ) from error


def _check_members(archive: zipfile.ZipFile) -> None:
    names = [info.filename for info in archive.infolist()]
    folder = names[0].partition("/")[0] if names else ""
    if any("/data/aotinductor/" in name for name in names):
        raise _Refused("the archive is a compiled package: native code, which loading it would run")
    strange = sorted(name for name in names if not _MEMBERS.fullmatch(name.removeprefix(f"{folder}/")))
    if strange or len(set(names)) < len(names) or any(not name.startswith(f"{folder}/") for name in names):
        raise _Refused(f"the archive has members that torch.export.save does not write: {(strange or names)[:3]}")
    # Two readers can see different archives in one file, so leave no room for a second one.
    if archive.comment or min(info.header_offset for info in archive.infolist()):
        raise _Refused("the archive's file has bytes outside its members")
    if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
        raise _Refused("the archive has compressed members, which torch.export.save does not write")


def _read(archive: zipfile.ZipFile, name: str) -> Any:
    folder = archive.infolist()[0].filename.partition("/")[0]
    return load_json(read_member(archive, f"{folder}/{name}"))


def _check_payload(config: Any) -> None:
    for name, meta in config["config"].items():
        if meta["use_pickle"] is not False:
            raise _Refused(f"the weight {name!r} is pickled")
        if not re.fullmatch(r"(weight|tensor)_\d+", meta["path_name"]):
            raise _Refused(f"the constant {name!r} in {meta['path_name']!r} is not a tensor")


def _check(value: Any, key: str) -> None:
    """Check a part of the program's description, found under `key`, and all parts below it."""
    if isinstance(value, dict):
        for name, part in value.items():
            if key == "range_constraints":
                _check_expression(name)
            if name != "metadata":  # origin of nodes, as text that nothing evaluates
                _check(part, name)
    elif isinstance(value, list):
        for part in value:
            _check(part, key)
    elif isinstance(value, str):
        _check_text(value, key)


def _check_text(text: str, key: str) -> None:
    if key in ("target", "as_operator") and not _OPERATOR.fullmatch(text):
        raise _Refused(f"the operator {text[:100]!r} is not allowed")
    if key in ("expr_str", "guards_code"):
        _check_expression(text)
    if key in ("in_spec", "out_spec", "treespec") and text:
        _check_container(json.loads(text)[1])
    if key == "class_fqn":
        raise _Refused(f"an object of the class {text[:100]!r} is not allowed")
    if key == "as_string" and _UNQUOTED.search(text):
        raise _Refused(f"the string {text[:100]!r} is not allowed")
    if (key.endswith("name") or key == "as_str_name") and not _NAME.fullmatch(text):
        raise _Refused(f"the name {text[:100]!r} is not allowed")


def _check_expression(text: str) -> None:
    """Accept only arithmetic on shapes with the allowed functions, and no attribute or string that could reach other code."""
    for node in ast.walk(ast.parse(text.strip(), mode="eval")):
        fine = isinstance(node, _HARMLESS)
        if isinstance(node, ast.Attribute):
            fine = node.attr in _SHAPES
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            fine = bool(_FUNCTION.fullmatch(node.func.id))
        elif isinstance(node, ast.Call):
            fine = isinstance(node.func, ast.Attribute)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            fine = bool(_WORD.fullmatch(node.value))
        elif isinstance(node, ast.Name):
            fine = not node.id.startswith("_")
        if not fine:
            raise _Refused(f"the expression {text[:100]!r} is not allowed")


def _check_container(spec: Any) -> None:
    known = spec["type"] in _CONTAINERS or _FOREIGN.fullmatch(spec["type"])
    if not known or "__enum__" in json.dumps(spec["context"]):
        raise _Refused(f"a container of type {spec['type']!r} is not allowed")
    for child in spec["children_spec"]:
        _check_container(child)


def container_types(path: Path) -> set[str]:
    """Return the names of the containers of other libraries in a program's inputs and outputs."""
    with zipfile.ZipFile(path) as archive:
        description = _read(archive, "models/model.json")
    found: set[str] = set()

    def look(spec: Any) -> None:
        if spec["type"] and _FOREIGN.fullmatch(spec["type"]):
            found.add(spec["type"])
        for child in spec["children_spec"]:
            look(child)

    for text in _specs(description):
        look(json.loads(text)[1])
    return found


def _specs(value: Any) -> Iterator[str]:
    """Yield the descriptions of containers in a program's description."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key in ("in_spec", "out_spec", "treespec") and isinstance(part, str) and part:
                yield part
            yield from _specs(part)
    elif isinstance(value, list):
        for part in value:
            yield from _specs(part)


def leaf_names(spec: Any, is_tensor: Sequence[bool], taken: Sequence[str] = ()) -> list[str]:
    """Return names for the outputs of a program by the keys of its dictionaries; empty if it has no dictionary.

    `spec` is the description of the container, `is_tensor` tells for each leaf whether it is an output. Keys and positions
    are joined by dots. A name in `taken`, or one that occurs twice, gets an underscore.

    >>> leaf = {"type": None, "context": None, "children_spec": []}
    >>> pair = {"type": "builtins.tuple", "context": "null", "children_spec": [leaf, leaf]}
    >>> keys = {"type": "builtins.dict", "context": '["logits", "states"]', "children_spec": [leaf, pair]}
    >>> leaf_names(keys, [True, True, False], ["logits"])
    ['logits_', 'states.0']
    >>> leaf_names(pair, [True, True])
    []
    """
    has_keys = False

    def walk(part: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        nonlocal has_keys
        if part["type"] is None:
            yield path
            return
        keys = _keys(part)
        has_keys = has_keys or keys is not None
        for index, child in enumerate(part["children_spec"]):
            yield from walk(child, (*path, keys[index] if keys else str(index)))

    names: list[str] = []
    for path, is_one in zip(list(walk(spec, ())), is_tensor, strict=True):
        name = ".".join(path)
        while name in taken or name in names:
            name += "_"
        if is_one:
            names.append(name)
    return names if has_keys else []


def _keys(spec: Any) -> list[str] | None:
    """Return the keys of a dictionary, or the fields of a class like one; None for a sequence."""
    context = spec["context"]
    try:
        context = json.loads(context) if isinstance(context, str) else context
    except ValueError:
        return None
    # A dataclass lists its fields, and then those that are None.
    first = context[0] if isinstance(context, list) and context else None
    for keys in (context, first):
        if (
            isinstance(keys, list)
            and 0 < len(keys) == len(spec["children_spec"])
            and all(isinstance(key, str) for key in keys)
        ):
            return keys
    return None
