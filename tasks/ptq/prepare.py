"""What is done to the float graph before any quantization, once a source."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import onnx

from tasks.ptq.graph import name_nodes, save_model, scratch
from tasks.ptq.pool_means import pool_means
from tasks.runtimes.ort import open_session
from validators.errors import CandidateRefused
from validators.records import SessionSettings


def prepare_graph(source: Path, prepared: Path) -> dict[str, int]:
    """Fold constants, infer shapes and name every node; return what was changed, by description.

    The level is `basic`: it keeps standard operators, which the quantizers know.

    Raises:
        CandidateRefused: `invalid`: the runtime's tools cannot process the graph.
    """
    before = len(onnx.load(source, load_external_data=False).graph.node)
    with scratch() as folder:
        folded = folder / "folded.onnx"
        # Not quant_pre_process: where the runtime fails to fold, it logs that and goes on with the graph as it was.
        with open_session(source, SessionSettings("CPUExecutionProvider", 1, "basic"), optimized_model=folded):
            pass
        # Plain inference: the symbolic one fails on common exports (Expand, Where over dynamic axes).
        onnx.shape_inference.infer_shapes_path(str(folded), str(folder / "inferred.onnx"))
        model = onnx.load(folder / "inferred.onnx")
    changes = {"nodes folded": before - len(model.graph.node), "nodes named": name_nodes(model.graph)}
    changes["means made GlobalAveragePool"] = pool_means(model.graph)
    save_model(model, prepared)
    return changes


def fuse_graph(source: Path, fused: Path) -> dict[str, int]:
    """Apply ONNX Runtime's transformer fusions (attention, GELU, layer norm); return how many of each operator they made.

    The sum before a layer norm stays a node of its own: the one that is fused with it runs several times slower
    (`tasks.ptq.make.SLOW_FUSION`).

    Raises:
        CandidateRefused: `unsupported`: nothing could be fused, so that the result would be the baseline again.
    """
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    options = FusionOptions("bert")
    options.enable_skip_layer_norm = options.enable_bias_skip_layer_norm = False
    with scratch() as folder:
        copy = folder / "model.onnx"
        shutil.copyfile(source, copy)
        # Head count and hidden size of 0 are read from the graph; the tool's own runtime pass (opt_level 1) folds
        # constants first.
        optimized = optimizer.optimize_model(
            str(copy), model_type="bert", num_heads=0, hidden_size=0, optimization_options=options, opt_level=1
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
    name_nodes(model.graph)
    save_model(model, fused)
    return made
