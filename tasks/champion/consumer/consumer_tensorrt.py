"""What a consumer of TensorRT runs: `mlflow.pyfunc.load_model("models:/<name>@champion-tensorrt").predict({...})`.

MLflow copies this one file beside the variant, and by `code_paths` the folder `trt_engine`, which it puts on the path as a
package of that name. Both may import mlflow, numpy, TensorRT and CUDA's bindings, and nothing of quantgate.

The artifacts are `variant`, the folder with `model.onnx`, `engine.plan` and, if there is one, `timing.cache`, and `manifest`,
whose keys `trt_engine.load` describes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlflow
import mlflow.pyfunc
import numpy as np


class EngineChampion(mlflow.pyfunc.PythonModel):  # type: ignore[misc,name-defined,unused-ignore]  # mlflow exports it untyped
    """The promoted variant, on the engine that was approved or one that is built here in its place, with a warning."""

    def load_context(self, context: Any) -> None:
        """Check the files, and open the engine if it is this machine's; else build it again or, if told to, refuse.

        Raises:
            RuntimeError: a file is not the one that was approved, there is no GPU, the engine is stale and
                QUANTGATE_MISMATCH=refuse, or it cannot be built or loaded here.
            ImportError: there is no TensorRT.
        """
        # MLflow runs this file where it is registered too, and there the package is not on the path.
        from trt_engine.load import open_version  # type: ignore[import-not-found,unused-ignore]  # on the path where this runs

        manifest = json.loads(Path(context.artifacts["manifest"]).read_text(encoding="utf-8"))
        self.engine = open_version(Path(context.artifacts["variant"]), manifest)
        self.dtypes = manifest["inputs"]

    # mlflow warns each consumer of any hint but this one, and of none; most callers pass a dict of arrays.
    def predict(self, context: Any, model_input: np.ndarray, params: Any = None) -> dict[str, np.ndarray]:
        """Outputs by name, for inputs by name (a dict of arrays, samples along axis 0) or one array for one input."""
        given: Any = model_input if hasattr(model_input, "keys") else {next(iter(self.dtypes)): model_input}
        feed = {name: np.asarray(given[name], dtype=dtype) for name, dtype in self.dtypes.items()}
        names = [output.name for output in self.engine.outputs]
        return dict(zip(names, self.engine.run(feed, names), strict=True))


mlflow.models.set_model(EngineChampion())
