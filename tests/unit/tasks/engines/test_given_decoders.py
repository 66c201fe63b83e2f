"""Decoders of other tools as candidates: caches are compared with the source's, by name, before anything is judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino as ov
import pytest
from onnx import TensorProto, helper
from processors import AMX, source_alone
from tiny_decoder import CONTEXT, HEAD_WIDTH, KV_HEADS, TOKENS, tiny_weights, write_decoder

from tasks.engines.catalog import find_target
from tasks.engines.given import only_file, take_decoder, take_up
from tasks.engines.openvino_decoder.ir import bytes_of_ir
from tasks.engines.openvino_decoder.session import measure
from tasks.engines.openvino_decoder.shipped.graph import with_states
from tasks.engines.openvino_decoder.shipped.model import OpenVinoDecoder, core
from tasks.engines.variants import refuse_other_targets
from tasks.ptq.weight_only.matmul_nbits import BlockWeights, quantize_weights
from tasks.runtimes.decoder_bytes import decoder_bytes
from tasks.runtimes.runner import open_runner
from validators.digests import digest_file
from validators.errors import CandidateRefused
from validators.job.candidate_name import Candidate, decode
from validators.job.given_file import GivenFile
from validators.records.run import SessionSettings
from validators.target_facts import OPENVINO_DECODER

OPTIONS = {
    "new_tokens": "6",
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}
SETTINGS = SessionSettings(OPENVINO_DECODER, 1, provider_options=OPTIONS)
WINDOWS = np.random.default_rng(1).integers(0, TOKENS, (2, 20))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return decoder(tmp_path / "source")


def decoder(folder: Path, *, layers: int = 2, edit: Callable[[onnx.ModelProto], object] = lambda _: None) -> Path:
    """A decoder with its configuration and the names of caches that the model builder gives them."""
    folder.mkdir()
    path = write_decoder(folder / "model.onnx", tiny_weights(3, layers=layers))
    model = onnx.load(path)
    for value in model.graph.input:
        value.name = value.name.replace("past.", "past_key_values.")
    for node in model.graph.node:
        node.input[:] = [name.replace("past.", "past_key_values.") for name in node.input]
    edit(model)
    onnx.save(model, path)
    config = {"model": {"context_length": CONTEXT, "vocab_size": TOKENS, "decoder": {}}}
    (folder / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def exported(path: Path, folder: Path, change: Callable[[ov.Model], ov.Model] = lambda model: model) -> GivenFile:
    """A folder as OpenVINO's exporters write it: caches are states, and a tokenizer lies beside the decoder."""
    folder.mkdir()
    graph = with_states(core().read_model(path), {}, cut=False)
    ov.save_model(change(graph), folder / "openvino_model.xml", compress_to_fp16=False)
    for name in ("openvino_tokenizer.xml", "openvino_tokenizer.bin"):
        (folder / name).write_text("")
    return given_of(only_file(folder, [".xml"], "the job"), "openvino-decoder")


def given_of(path: Path, engine: str) -> GivenFile:
    return GivenFile.model_validate({"name": "theirs", "file": path, "engine": engine, "precision": "int4"})


def taken(given: GivenFile, source: Path, folder: Path) -> tuple[Path, str]:
    """The copy of a decoder in OpenVINO's own format, with the source's configuration, and what is said about it."""
    folder.mkdir()
    (folder / "genai_config.json").write_bytes(source.with_name("genai_config.json").read_bytes())
    path = folder / "model.xml"
    told = take_up(find_target(given.engine).takes[".xml"], given, path, SETTINGS, source_alone(source))
    return path, told["the file"]


def test_states_of_an_exporter_score_and_answer_as_the_source(source: Path, tmp_path: Path) -> None:
    given = exported(source, tmp_path / "theirs")
    path, told = taken(given, source, tmp_path / "taken")
    for file in (given.file, given.file.with_suffix(".bin")):
        assert f"{file.name}, sha256 {digest_file(file)}" in told
    with open_runner(path, SETTINGS) as ours, open_runner(source, SETTINGS) as theirs:
        (found, expected) = (one.run({"input_ids": WINDOWS}, ["logits"])[0] for one in (ours, theirs))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    ours, theirs = (OpenVinoDecoder(one, 1, OPTIONS).generate(WINDOWS) for one in (path, source))
    np.testing.assert_array_equal(ours, theirs)
    assert bytes_of_ir(path).cache == decoder_bytes(source).cache == 2 * 2 * KV_HEADS * HEAD_WIDTH * 4


def test_coverage_of_states_is_that_of_the_weights(source: Path, tmp_path: Path) -> None:
    """Of INT4 weights all products, of float ones none; the embedding is read by rows."""
    whole = taken(exported(source, tmp_path / "float"), source, tmp_path / "taken-float")[0]
    quantize_weights(source, source, BlockWeights("rtn", 32, symmetric=True, bits=4, accuracy_level=0))
    path, _ = taken(exported(source, tmp_path / "theirs"), source, tmp_path / "taken")
    for one, share in ((path, 1), (whole, 0)):
        assert measure(one, SETTINGS, {"input_ids": WINDOWS}, None).share == share
    found, floats = bytes_of_ir(path), bytes_of_ir(whole)
    assert floats.weights - floats.read_weights >= 4 * TOKENS * 64 and found.read_weights < floats.read_weights / 3


def without_a_state(model: ov.Model) -> ov.Model:
    return ov.Model(model.get_results(), model.get_sinks()[1:], model.get_parameters())


def with_another_name(model: ov.Model) -> ov.Model:
    model.input("beam_idx").get_tensor().set_names({"beams"})
    return model


@pytest.mark.parametrize(
    ("layers", "change", "words"),
    [
        (1, lambda model: model, r"no state for past_key_values\.1\.key"),
        (3, lambda model: model, "it has 6 states"),
        (2, with_another_name, "the inputs attention_mask, beams, input_ids"),
    ],
)
def test_states_of_another_decoder_are_refused(
    layers: int, change: Any, words: str, source: Path, tmp_path: Path
) -> None:
    given = exported(decoder(tmp_path / "other", layers=layers), tmp_path / "theirs", change)
    with pytest.raises(CandidateRefused, match=words):
        taken(given, source, tmp_path / "taken")


def test_states_of_another_size_are_refused_by_name(source: Path, tmp_path: Path) -> None:
    given = exported(source, tmp_path / "theirs")
    wide = onnx.load(source)
    next(v for v in wide.graph.input if v.name == "past_key_values.1.value").type.tensor_type.shape.dim[1].dim_value = 4
    onnx.save(wide, source)
    with pytest.raises(CandidateRefused, match=r"a state \[\?,2,\?,16\] for past_key_values\.1\.value"):
        taken(given, source, tmp_path / "taken")


def test_another_vocabulary_is_refused(source: Path, tmp_path: Path) -> None:
    given = exported(source, tmp_path / "theirs")
    larger = onnx.load(source)
    larger.graph.output[0].type.tensor_type.shape.dim[2].dim_value = TOKENS + 1
    onnx.save(larger, source)
    with pytest.raises(CandidateRefused, match=r"shape \(1, 2, 40\)\nexpected: \(1, 2, 41\)"):
        taken(given, source, tmp_path / "taken")


@pytest.mark.parametrize("engine", ["ort-genai", "openvino-decoder"])
def test_rules_for_recipes_do_not_refuse_a_file_in_int8(engine: str) -> None:
    """No recipe makes a decoder with fixed ranges; a file may have them, or INT8 weights alone."""
    refuse_other_targets(Candidate("int8", engine, given="theirs"), AMX)
    with pytest.raises(CandidateRefused, match="fixed ranges"):
        refuse_other_targets(decode(f"int8-static-mse-pc@{engine}"), AMX)


def cache_of(model: onnx.ModelProto) -> onnx.TypeProto.Tensor:
    return next(value for value in model.graph.input if value.name == "past_key_values.1.key").type.tensor_type


def test_axes_that_an_onnx_decoder_leaves_open_get_sizes(source: Path, tmp_path: Path) -> None:
    """The model builder leaves the size of a head open, by which bytes are counted and caches made."""

    def leave_open(model: onnx.ModelProto) -> None:
        cache_of(model).shape.dim[3].dim_param = "size"

    theirs = decoder(tmp_path / "theirs", edit=leave_open)
    take_decoder(given_of(theirs, "ort-genai"), tmp_path / "model.onnx", source_alone(source))
    assert cache_of(onnx.load(tmp_path / "model.onnx")).shape.dim[3].dim_value == HEAD_WIDTH


@pytest.mark.parametrize(
    ("layers", "edit", "words"),
    [
        (2, lambda model: setattr(cache_of(model), "elem_type", TensorProto.INT8), r"past_key_values\.1\.key: int8"),
        (
            2,
            lambda model: setattr(cache_of(model).shape.dim[1], "dim_value", 1),
            r"past_key_values\.1\.key: float32\[batch, 1,",
        ),
        (2, lambda model: model.graph.output.append(extra()), "has the outputs extra"),
        (1, lambda _: None, r"those of the source: past_key_values\.1\.key"),
    ],
)
def test_caches_of_another_onnx_decoder_are_refused(
    layers: int, edit: Any, words: str, source: Path, tmp_path: Path
) -> None:
    theirs = decoder(tmp_path / "theirs", layers=layers, edit=edit)
    with pytest.raises(CandidateRefused, match=words):
        take_decoder(given_of(theirs, "ort-genai"), tmp_path / "model.onnx", source_alone(source))


def extra() -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info("extra", TensorProto.FLOAT, ["batch"])


def test_a_folder_has_one_model_and_stays_in_itself(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    with pytest.raises(CandidateRefused, match="none"):
        only_file(folder, [".onnx"], "theirs")
    for name in ("a.onnx", "b.onnx", "c.xml"):
        (folder / name).write_text("")
    with pytest.raises(CandidateRefused, match=r"a\.onnx, b\.onnx"):
        only_file(folder, [".onnx"], "theirs")
    with pytest.raises(CandidateRefused, match="none"):  # an .xml without weights is no model
        only_file(folder, [".xml"], "theirs")
    (folder / "model.onnx").write_text("")
    assert only_file(folder, [".onnx"], "theirs") == folder / "model.onnx"
    (tmp_path / "weights.bin").write_text("")
    (folder / "c.bin").symlink_to(tmp_path / "weights.bin")
    with pytest.raises(CandidateRefused, match=r"'c\.bin', which lies outside"):
        only_file(folder, [".xml"], "theirs")
