"""Preparation of the float graph before quantization, once per source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx

from tasks.ptq.float.widen import has_half, widen
from tasks.ptq.graph.edits import add_note, name_nodes, operator_of, scratch
from tasks.ptq.graph.equal_floats import refuse_unequal
from tasks.ptq.graph.pool_means import pool_means
from tasks.runtimes.ort import open_session, with_mapped_weights
from validators.errors import CandidateRefused
from validators.graph.source_graph import KNOWN_DOMAINS, opset_of
from validators.graph.stored import load_model, save_model, spilling
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays

# External weights for any size: the runtime otherwise writes one protobuf message, which is limited to 2 GB.
FOLDING = SessionSettings.reference(
    1,
    "basic",
    {"session.optimized_model_external_initializers_file_name": "folded.onnx.data"},
)

# Names of the two passes in a refusal, and what to take instead.
FOLDED = "constant folding by ONNX Runtime", "a file that was simplified before, or another version of ONNX Runtime"
FUSED = "the transformer fusions of ONNX Runtime", "candidates without +fused, and without fp32-fused"

FewSamples = Callable[[], Arrays]

LAYER_NORM_OPSET, LAYER_NORM_IR_VERSION = 17, 8


def prepare_graph(source: Path, prepared: Path, libraries: Libraries = ()) -> dict[str, int]:
    """Fold constants, widen to float32, infer shapes and name every node; return the count of each kind of change.

    Folding uses the level `basic`, which keeps the standard operators that the quantizers know.

    Raises:
        CandidateRefused: `invalid`: the runtime's tools cannot process the graph; `unsupported`: it has no float32 form.
    """
    with scratch() as folder:
        plain, widened = source, None
        model = onnx.load(source, load_external_data=False)
        if has_half(model):
            plain, widened = folder / "float32.onnx", _copy_widened(source, folder / "float32.onnx")
        before = len(model.graph.node)
        folded = folder / "folded.onnx"
        # Not quant_pre_process: when folding fails, it only logs the failure and continues with the original graph.
        settings = with_mapped_weights(replace(FOLDING, libraries=libraries), plain)
        with open_session(plain, settings, optimized_model=folded):
            pass
        # Plain inference: symbolic inference fails on common exports (Expand, Where over dynamic axes).
        onnx.shape_inference.infer_shapes_path(str(folded), str(folder / "inferred.onnx"))
        model = load_model(folder / "inferred.onnx")
        changes = {"nodes folded": before - len(model.graph.node), "nodes named": name_nodes(model.graph)}
        changes["means made GlobalAveragePool"] = pool_means(model.graph)
        save_model(model, prepared)
    return changes | ({"constants widened to float32": widened} if widened is not None else {})


def make_prepared(source: Path, libraries: Libraries, folder: Path, *, samples: FewSamples | None = None) -> Path:
    """Write the prepared graph into a folder; return its file. It is compared with the source on `samples`."""
    return _compared(prepare_graph, source, folder / "prepared.onnx", libraries, samples, *FOLDED)


def make_fused(source: Path, libraries: Libraries, folder: Path, *, samples: FewSamples | None = None) -> Path:
    """Write the fused graph into a folder; return its file. It is compared with the source on `samples`."""
    return _compared(fuse_graph, source, folder / "fused.onnx", libraries, samples, *FUSED)


def _compared(
    make: Callable[[Path, Path, Libraries], dict[str, int]],
    source: Path,
    made: Path,
    libraries: Libraries,
    samples: FewSamples | None,
    work: str,
    instead: str,
) -> Path:
    make(source, made, libraries)
    # The kernels of a float16 source round to float16 after each operator, those of the widened graph do not.
    if samples is not None and not has_half(onnx.load(source, load_external_data=False)):
        refuse_unequal(source, made, samples(), libraries, work, instead)
    return made


def fuse_graph(source: Path, fused: Path, libraries: Libraries = ()) -> dict[str, int]:
    """Apply ONNX Runtime's transformer fusions (attention, GELU, layer norm); return the number of new nodes by operator.

    The sum before a layer norm is not fused: the fused node runs several times slower (`tasks.engines.ort.cpu`).
    Embeddings stay Gather nodes: EmbedLayerNormalization cannot read an INT8 table in blocks, so the embedding, often the
    largest weight, would stay in float.

    Raises:
        CandidateRefused: `unsupported`: nothing could be fused, so that the result would equal the baseline; a custom
            operator has the name of a standard one; onnx cannot raise the opset; or a tensor name is taken twice.
    """
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    options = FusionOptions("bert")
    # The default replaces the mask by row lengths, which is wrong for rows padded on the left.
    options.use_raw_attention_mask()
    options.enable_skip_layer_norm = options.enable_bias_skip_layer_norm = options.enable_embed_layer_norm = False
    with scratch() as folder:
        copy, folded = folder / "model.onnx", folder / "folded.onnx"
        _copy_widened(source, copy)
        # Replaces the tool's own runtime pass (opt_level 1), which cannot load libraries of custom operators.
        folding = with_mapped_weights(replace(FOLDING, libraries=libraries), copy)
        with open_session(copy, folding, optimized_model=folded, without=("ConstantSharing",)):
            pass
        _refuse_namesakes(folded)
        _raise_to_layer_norm(folded)
        # With 0, the tool reads head count and hidden size from the graph.
        optimized = optimizer.optimize_model(
            str(folded), model_type="bert", num_heads=0, hidden_size=0, optimization_options=options, opt_level=0
        )
        model = optimized.model
    before = Counter(node.op_type for node in onnx.load(source, load_external_data=False).graph.node)
    made = {name: count for name, count in optimized.get_fused_operator_statistics().items() if count > before[name]}
    if not made:
        raise CandidateRefused(
            kind="unsupported",
            found="no attention, layer normalization or GELU pattern in the graph",
            expected="a transformer that ONNX Runtime's fusions recognize",
            fix="none is needed: for this model the baseline already is what the runtime makes of it",
        )
    _refuse_twice_named(model.graph)
    name_nodes(model.graph)
    save_model(model, fused)
    return made


def _raise_to_layer_norm(path: Path) -> None:
    """Convert a model, in place, to an opset with LayerNormalization, which the fusions write at any opset.

    Raises:
        CandidateRefused: `unsupported`: onnx cannot convert the model.
    """
    model = onnx.load(path, load_external_data=False)
    if opset_of(model) >= LAYER_NORM_OPSET:
        return
    try:
        # The converter reads attributes and small constants only, so external weights need not be loaded.
        converted = onnx.version_converter.convert_version(model, LAYER_NORM_OPSET)
    except Exception as error:  # RuntimeError, ConvertError, or the bindings' translation of an assertion
        raise CandidateRefused(
            kind="unsupported",
            found=f"opset {opset_of(model)}, and onnx cannot convert the model: {str(error).splitlines()[0][:300]}",
            expected=f"opset {LAYER_NORM_OPSET} or above, the first with LayerNormalization, which the fusions write",
            fix=f"export the model with opset {LAYER_NORM_OPSET} or above, or take a candidate on the plain graph",
        ) from error
    converted.ir_version = max(model.ir_version, LAYER_NORM_IR_VERSION)
    onnx.save_model(converted, path)


def _refuse_namesakes(model: Path) -> None:
    """Refuse custom operators with the name of a standard one: the fusions ignore the domain."""
    nodes = onnx.load(model, load_external_data=False).graph.node
    found = [operator_of(node) for node in nodes if node.domain not in KNOWN_DOMAINS and onnx.defs.has(node.op_type)]
    if found:
        raise CandidateRefused(
            kind="unsupported",
            found=f"custom operator {found[0]}, which ONNX Runtime's fusions would take for {found[0].rpartition(':')[2]}",
            expected="custom operators with names of their own",
            fix="take a candidate on the plain graph, or rename the operator",
        )


def _refuse_twice_named(graph: onnx.GraphProto) -> None:
    """Refuse a graph in which two tensors have one name: the fusions do not check that their names are free."""
    made = [
        *(tensor.name for tensor in graph.initializer),
        *(name for node in graph.node for name in node.output if name),
    ]
    twice = [name for name, count in Counter(made).items() if count > 1]
    if twice:
        raise CandidateRefused(
            kind="unsupported",
            found=f"a tensor {twice[0]!r} in the source, a name that ONNX Runtime's fusions give to one of their own",
            expected="a source without the names of the fusions",
            fix="rename the tensor, or take a candidate on the plain graph",
        )


@spilling()
def _copy_widened(source: Path, copy: Path) -> int | None:
    """Write the source, widened to float32 with a note if any of it is float16; return the number of widened constants.

    Return None if the source has no float16.
    """
    model = load_model(source)
    widened = None
    if has_half(model):
        widened = widen(model)
        add_note(model, "widened", f"from float16 to float32, which CPU kernels compute in; {widened} constants")
    save_model(model, copy)
    return widened
