"""Code behind `mlflow.pyfunc.load_model("models:/<name>@champion-tensorrt").predict({...})` for a consumer of TensorRT.

MLflow copies this file beside the variant, and by `code_paths` the folder `quantgate_tensorrt`, which it puts on the path.
 Both may import mlflow, numpy, TensorRT and CUDA's bindings, but nothing of quantgate.

The artifacts are `variant`, the folder with `model.onnx`, `engine.plan` and, if there is one, `timing.cache`, and `manifest`,
whose keys `quantgate_tensorrt.load` describes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import mlflow
import mlflow.pyfunc
import numpy as np


class EngineChampion(mlflow.pyfunc.PythonModel):  # type: ignore[misc,name-defined,unused-ignore]  # mlflow exports it untyped
    """The promoted variant, run by the approved engine or, with a warning, by one that is rebuilt here."""

    def load_context(self, context: Any) -> None:
        """Check the files, and load the engine if it fits this machine; otherwise rebuild it or, by policy, refuse.

        Raises:
            RuntimeError: a file differs from the approved one, there is no GPU, the engine is stale and
                QUANTGATE_MISMATCH=refuse, or it cannot be built or loaded here.
            ImportError: TensorRT is missing.
        """
        if os.environ.get("QUANTGATE_REQUIRE_EVIDENCE"):
            from signed_evidence.check import require_evidence  # type: ignore[import-not-found,unused-ignore]  # beside this

            require_evidence(context.artifacts)
        # Imported here: MLflow also runs this file at registration, where the package is not on the path.
        from quantgate_tensorrt.load import open_version  # type: ignore[import-not-found,unused-ignore]  # on the path where this runs

        manifest = json.loads(Path(context.artifacts["manifest"]).read_text(encoding="utf-8"))
        self.engine = open_version(Path(context.artifacts["variant"]), manifest)
        self.dtypes = manifest["inputs"]

    # mlflow warns consumers about any other type hint, and about none; most callers pass a dict of arrays.
    def predict(self, context: Any, model_input: np.ndarray, params: Any = None) -> dict[str, np.ndarray]:
        """Return the outputs by name, for a dict of arrays by input name (samples along axis 0), or one array for one input."""
        given: Any = model_input if hasattr(model_input, "keys") else {next(iter(self.dtypes)): model_input}
        feed = {name: np.asarray(given[name], dtype=dtype) for name, dtype in self.dtypes.items()}
        names = [output.name for output in self.engine.outputs]
        return dict(zip(names, self.engine.run(feed, names), strict=True))


mlflow.models.set_model(EngineChampion())
