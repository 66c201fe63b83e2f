"""Files that other tools made, as artifacts of candidates: read as hostile, copied, and compared with the source.

A copy has the bytes of the file, unless its weights lie in files of their own or tensors are renamed.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from tasks.ptq.graph.edits import Names
from tasks.runtimes.decoder_session import LOGITS, TOKENS, decoder_specs, has_caches
from tasks.runtimes.runner import Runner, open_runner
from tasks.runtimes.torch_program import RANGES
from validators.digests import digest_file, weights_of
from validators.errors import CandidateRefused, SourceError
from validators.graph.interfaces import spec_of
from validators.graph.program_interface import read_interface
from validators.graph.source_graph import check_given_graph
from validators.graph.stored import load_model, save_model
from validators.job.given_file import GivenFile, TensorCodes
from validators.plain_text import plain, shortened
from validators.records.run import SessionSettings
from validators.samples.data_advice import yaml_line
from validators.samples.datasets import TensorSpec
from validators.untrusted.external_data import bodies_of, external_files, nodes
from validators.untrusted.paths import inside
from validators.untrusted.torch_program import check_program

if TYPE_CHECKING:  # the code of quantizers is no part of what a given file is made by
    from tasks.ptq.build_variant import Materials

# Copies or compiles a given file to the path of an artifact, with the names of the materials' source; returns what the file
# says of its maker.
TakeUp = Callable[[GivenFile, Path, "Materials"], str]


def files_of(given: GivenFile, endings: Collection[str], *, custom_operators: bool = False) -> list[Path]:
    """Return the files of a given model, the first of which names the others, after checks of what they point to.

    `endings` are those that its engine takes.

    Raises:
        CandidateRefused: `unsupported`: the engine takes no such file; `invalid`: one is missing, broken, or leads elsewhere.
    """
    if given.file.suffix not in endings:
        raise CandidateRefused(
            kind="unsupported",
            found=f"{given.file.name} for {given.engine}",
            expected=f"a file for {given.engine}: {' or '.join(endings) or 'it takes none of other tools'}",
            fix="name another `engine`, or save the model in another format",
        )
    if given.file.suffix == ".pt2":
        return [_checked_program(given)]
    if given.file.suffix != ".onnx":
        found = [given.file, *_files_beside(given.file)]
        if missing := [path.name for path in found if not path.is_file()]:
            raise _refused(given, f"there is no file {missing[0]}", "both files in one folder", "copy both")
        return found
    try:
        check_given_graph(given.file, custom_operators=custom_operators)
        return [given.file, *_files_beside(given.file)]
    except SourceError as error:
        raise CandidateRefused(kind="invalid", found=error.found, expected=error.expected, fix=error.fix) from error


def _files_beside(file: Path) -> list[Path]:
    return external_files(file) if file.suffix == ".onnx" else [weights_of(file)] if file.suffix == ".xml" else []


def only_file(place: Path, endings: Collection[str], said_by: str) -> Path:
    """Return the one model file of a folder that has one of the endings, `.xml` with a `.bin` beside it; a file as it is.

    Of several it is the one called `model` or `..._model`: tools write tokenizers beside decoders in the same format.

    Raises:
        CandidateRefused: `invalid`: there is none, or more than one, or it lies outside of the folder.
    """
    if not (endings and place.is_dir()):
        return place
    known = sorted(path for path in place.rglob("*") if path.suffix in endings)
    known = [path for path in known if path.suffix != ".xml" or weights_of(path).exists()]
    found = known if len(known) == 1 else [path for path in known if re.fullmatch(r"(.*_)?model", path.stem)]
    if len(found) != 1:
        names = ", ".join(str(path.relative_to(place)) for path in (found or known)[:5]) or "none"
        raise CandidateRefused(
            kind="invalid",
            found=f"{said_by} with the model files: {names}",
            expected=f"exactly one {' or '.join(endings)} with its weights beside it",
            fix="name the file itself, or leave it alone in its folder",
        )
    try:
        for path in (found[0], weights_of(found[0])):
            inside(place, str(path.relative_to(place)), said_by=said_by)
    except SourceError as error:
        raise CandidateRefused(kind="invalid", found=error.found, expected=error.expected, fix=error.fix) from error
    return found[0]


def _checked_program(given: GivenFile) -> Path:
    if not given.file.is_file() or given.codes:
        found = "codes" if given.codes else "no such file"
        raise _refused(
            given, found, "an exported program that takes and returns floats", "correct this file in the job"
        )
    try:
        check_program(given.file)
        read_interface(given.file)
    except SourceError as error:
        raise CandidateRefused(
            kind="invalid",
            found=error.found,
            expected=error.expected,
            fix="name what torch.export.save writes; unwrap what torchao's quantize_ made by unwrap_tensor_subclass before",
        ) from error
    return given.file


def take_up(
    take: TakeUp, given: GivenFile, path: Path, session: SessionSettings, materials: Materials
) -> dict[str, str]:
    """Copy a given file to the path of an artifact and check it; return notes on where it is from, by subject.

    Raises:
        CandidateRefused: `invalid`: it does not fit the source.
    """
    maker = take(given, path, materials)
    with open_runner(path, session.without_spinning()) as runner:
        compare_with_source(given, runner.inputs, runner.outputs, materials.source, runner)
    where = f" of {given.source}" if given.source else f", made by {given.make}" if given.make else ""
    told = [f"is {given.file.name}{where}, sha256 {digest_file(given.file)}"]
    told += [f"with {file.name}, sha256 {digest_file(file)}" for file in _files_beside(given.file)]
    told += [f"says that {plain(maker)} wrote it"] if maker else []
    told += [f"takes or gives floats in place of codes: {', '.join(given.codes)}"] if given.codes else []
    told += [f"was made, as the job says, by: {plain(given.command)}"] if given.command else []
    return {"the file": ", ".join(told)}


def take_onnx(given: GivenFile, path: Path, _materials: Materials) -> str:
    """Copy an ONNX file to `path`; see `TakeUp`."""
    model = onnx.load(given.file, load_external_data=False)
    maker = f"{model.producer_name} {model.producer_version}".strip()
    if given.inputs or given.outputs or given.codes or external_files(given.file):
        model = load_model(given.file)
        _rename(model.graph, given.inputs | given.outputs)
        for name, codes in given.codes.items():
            _take_floats(given, model.graph, name, codes)
        save_model(model, path)
    else:
        shutil.copyfile(given.file, path)
    return maker


def take_decoder(given: GivenFile, path: Path, materials: Materials) -> str:
    """Copy a decoder with its caches to `path`, where axes that it leaves open get the sizes of the source; see `TakeUp`.

    Raises:
        CandidateRefused: `invalid`: an input or output, caches among them, differs from the source's.
    """
    maker = take_onnx(given, path, materials)
    model, theirs = (onnx.load(one, load_external_data=False) for one in (path, materials.source))
    for what, ours in (("inputs", model.graph.input), ("outputs", model.graph.output)):
        values = {value.name: value for value in getattr(theirs.graph, what.removesuffix("s"))}
        _compare(given, what, *({value.name: spec_of(value) for value in one} for one in (ours, values.values())))
        for value in ours:
            value.CopyFrom(values[value.name])
    onnx.save(model, path)
    return maker


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename tensors of a graph wherever they are named, also in bodies."""
    for value in [*graph.input, *graph.output, *graph.value_info]:
        value.name = names.get(value.name, value.name)
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]
        for body in bodies_of(node):
            _rename(body, names)


def _take_floats(given: GivenFile, graph: onnx.GraphProto, name: str, codes: TensorCodes) -> None:
    """Let an input or output of 8-bit codes take or give floats: with a QuantizeLinear before it, or a DequantizeLinear after.

    Raises:
        CandidateRefused: `invalid`: the graph has no such input or output, or it holds no such codes.
    """
    ends = {value.name: (value, value in graph.input) for value in (*graph.output, *graph.input)}
    value, is_input = ends.get(name, (None, False))
    dtype = "nothing" if value is None else spec_of(value).dtype
    if value is None or dtype not in ("uint8", "int8") or not _holds(dtype, codes.zero_point):
        raise _refused(
            given,
            f"{name} is {dtype}, and its zero point {codes.zero_point}",
            "an input or output of UINT8 or INT8, with a zero point of that type",
            "correct `codes`",
        )
    names = Names(graph)
    inner, scale, zero = (names.new(f"{name}_{end}") for end in ("codes", "scale", "zero_point"))
    _rename(graph, {name: inner})
    value.name, value.type.tensor_type.elem_type = name, onnx.TensorProto.FLOAT
    constants = {scale: np.array(codes.scale, np.float32), zero: np.array(codes.zero_point, dtype)}
    graph.initializer.extend(onnx.numpy_helper.from_array(array, key) for key, array in constants.items())
    operator, ends_of = ("QuantizeLinear", (name, inner)) if is_input else ("DequantizeLinear", (inner, name))
    node = onnx.helper.make_node(
        operator, [ends_of[0], scale, zero], [ends_of[1]], name=names.new(f"{name}_{operator}")
    )
    graph.node.insert(0 if is_input else len(graph.node), node)


def _holds(dtype: str, number: int) -> bool:
    limits = np.iinfo(dtype)
    return bool(limits.min <= number <= limits.max)


@cache
def has_ranges_at_run_time(path: Path) -> bool:
    """Return True if an ONNX file or a compiled program takes the ranges of activations from each request."""
    if path.suffix == ".pt2":
        with zipfile.ZipFile(path) as archive:
            member = next(name for name in archive.namelist() if name.endswith("_metadata.json"))
            return bool(json.loads(json.loads(archive.read(member))["quantgate"])[RANGES])
    if path.suffix != ".onnx":
        return False
    model = onnx.load(path, load_external_data=False)
    return any(node.op_type.startswith("DynamicQuantize") for node in nodes(model))


def compare_with_source(
    given: GivenFile,
    found_inputs: Sequence[TensorSpec],
    found_outputs: Sequence[TensorSpec],
    source: Path,
    runner: Runner | None = None,
) -> None:
    """Check that a file takes what the source takes, and answers with the same outputs; of a decoder `runner` runs it.

    Raises:
        CandidateRefused: `invalid`: a name, type, axis or the order of outputs differs.
    """
    graph = onnx.load(source, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = {value.name: spec_of(value) for value in graph.input if value.name not in constants}
    outputs = {value.name: spec_of(value) for value in graph.output}
    if runner is not None and has_caches(inputs.values()):  # which its engine fills in, and `take` has compared
        inputs, outputs = ({one.name: one} for one in decoder_specs(None))
        _check_vocabulary(given, runner, graph)
    _compare(given, "inputs", {spec.name: spec for spec in found_inputs}, inputs)
    _compare(given, "outputs", {spec.name: spec for spec in found_outputs}, outputs)
    order = [spec.name for spec in found_outputs]
    if order != list(outputs):
        raise _refused(
            given,
            f"it has the outputs in the order {', '.join(order)}",
            f"{', '.join(outputs)}, as the source",
            "export it with the outputs in that order",
        )


def _check_vocabulary(given: GivenFile, runner: Runner, source: onnx.GraphProto) -> None:
    size = next(spec_of(value).shape[-1] for value in source.output if value.name == LOGITS)
    (scores,) = runner.run({TOKENS: np.zeros((1, 2), np.int64)}, [LOGITS])
    if scores.shape != (1, 2, size):
        raise _refused(
            given,
            f"its {LOGITS} of two tokens have the shape {scores.shape}",
            f"(1, 2, {size}), by the vocabulary of the source",
            "make it of this source, with the scores of every token",
        )


def _compare(given: GivenFile, what: str, found: Mapping[str, TensorSpec], expected: Mapping[str, TensorSpec]) -> None:
    if found.keys() != expected.keys():
        ours, theirs = (
            [name for name in one if name not in other] for one, other in ((found, expected), (expected, found))
        )
        names = yaml_line({what: dict(zip(ours, theirs, strict=True))}) if len(ours) == len(theirs) == 1 else ""
        # A decoder has two caches a layer: those that differ come first.
        told = [
            shortened("; ".join(str(one) for _, one in sorted(specs.items(), key=lambda item: item[0] in others)), 500)
            for specs, others in ((found, expected), (expected, found))
        ]
        raise _refused(
            given,
            f"it has the {what} {told[0]}",
            f"those of the source: {told[1]}",
            f"if that is its name for the same, set `{names}` for this file; else make it of this source"
            if names
            else f"make it of this source; where names alone differ, give them as `{what}` of this file",
        )
    for name, spec in found.items():
        if spec.dtype != expected[name].dtype or not _fits(spec.shape, expected[name].shape, is_input=what == "inputs"):
            raise _refused(
                given,
                f"its {what.removesuffix('s')} is {spec}",
                f"{expected[name]}, as in the source",
                "make it again with the types and the free axes of the source",
            )


def _fits(found: tuple[object, ...], expected: tuple[object, ...], *, is_input: bool) -> bool:
    """Return True if a tensor of shape `expected` is one of shape `found`; an output may say less, or more, than the source.

    >>> _fits((None, 3), ("batch", 3), is_input=True), _fits((1, 3), ("batch", 3), is_input=True)
    (True, False)
    """
    pairs = [*zip(found, expected, strict=False)]
    fixed = [(one, other) for one, other in pairs if isinstance(one, int) and (is_input or isinstance(other, int))]
    return len(found) == len(expected) and all(one == other for one, other in fixed)


def _refused(given: GivenFile, found: str, expected: str, fix: str) -> CandidateRefused:
    return CandidateRefused(kind="invalid", found=f"{given.file.name}: {found}", expected=expected, fix=fix)
