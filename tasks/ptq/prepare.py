"""What is done to the float graph before any quantization, once a source."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx

from tasks.ptq.graph import name_nodes, save_model, scratch
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
    renamed = name_nodes(model.graph)
    save_model(model, prepared)
    return {"nodes folded": before - len(model.graph.node), "nodes named": renamed}


def fuse_graph(source: Path, fused: Path) -> dict[str, int]:
    """Apply ONNX Runtime's transformer fusions (attention, layer norm, GELU); return how many of each operator they made.

    Raises:
        CandidateRefused: `unsupported`: nothing could be fused, so that the result would be the baseline again.
    """
    from onnxruntime.transformers import optimizer

    with scratch() as folder:
        copy = folder / "model.onnx"
        shutil.copyfile(source, copy)
        # Head count and hidden size of 0 are read from the graph; the tool's own runtime pass (opt_level 1) folds
        # constants first.
        optimized = optimizer.optimize_model(str(copy), model_type="bert", num_heads=0, hidden_size=0, opt_level=1)
        made = {name: count for name, count in optimized.get_fused_operator_statistics().items() if count}
        model = optimized.model
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
