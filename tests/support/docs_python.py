"""What the Python blocks of each page take for given, and what must be so after them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from databases import lend_mlflow
from driving import environment

# A champion of a registry on disk: a model of MLflow's own flavor onnx, with the inputs that the page names. That a version
# which quantgate promoted loads the same way is for tests/system/test_promotion.py.
_CHAMPION = """
    import warnings
    warnings.simplefilter("ignore")
    import mlflow, numpy as np, onnx
    from mlflow.models import infer_signature
    from onnx import TensorProto, helper, numpy_helper

    def register(name, inputs, width, dtype, uri):
        mlflow.set_tracking_uri(uri)
        mlflow.set_experiment(experiment_id=mlflow.create_experiment("user", (Path.cwd() / "artifacts").as_uri()))
        nodes = [helper.make_node("Cast", [i], [i + "_f"], to=TensorProto.FLOAT) for i in inputs]
        nodes += [helper.make_node("Sum", [i + "_f" for i in inputs], ["sum"])]
        nodes += [helper.make_node("MatMul", ["sum", "weight"], ["logits"])]
        weight = np.random.default_rng(1).normal(size=(width, 4)).astype(np.float32)
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info(i, kind, ["n", width]) for i in inputs],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 4])],
            [numpy_helper.from_array(weight, "weight")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        example = {i: np.zeros((2, width), dtype) for i in inputs}
        signature = infer_signature(example, {"logits": np.zeros((2, 4), np.float32)})
        with mlflow.start_run():
            info = mlflow.onnx.log_model(model, name="m", signature=signature, pip_requirements=["onnxruntime"])
        version = mlflow.register_model(info.model_uri, name).version
        for target in ("ort-cpu", "cpu"):
            mlflow.MlflowClient().set_registered_model_alias(name, f"champion-{target}", version)
        return {i: np.ones((3, width), dtype) for i in inputs}
"""
_TEXT = ("input_ids", "attention_mask")

# By page: what comes before its blocks, and what after.
PREPARED: dict[str, tuple[str, str]] = {
    "README.md": (
        f"""{_CHAMPION}
    given = register("sentiment-minilm-quantized", {_TEXT}, 16, "int64", "sqlite:///mlflow.db")
    input_ids, attention_mask = given.values()
    """,
        """
    assert model.predict({"input_ids": input_ids, "attention_mask": attention_mask})["logits"].shape == (3, 4)
    """,
    ),
    "docs/tutorial.md": (
        f"""{_CHAMPION}
    demo = Path(".quantgate/demo/text")
    demo.mkdir(parents=True)
    given = register("sentiment-minilm-quantized", {_TEXT}, 16, "int64", "sqlite:///.quantgate/mlflow.db")
    np.savez(demo / "evaluation.npz", label=np.arange(3), **given)
    mlflow.set_tracking_uri("sqlite:///elsewhere.db")
    """,
        "assert scores.shape == (3, 4)",
    ),
    "docs/given-files.md": (
        f"""{_CHAMPION}
    given = register("fraud-quantized", ("x",), 64, "float32", "sqlite:///mlflow.db")
    onnx.save(mlflow.onnx.load_model("models:/fraud-quantized/1"), "fraud.onnx")
    np.savez("calibration.npz", **given)
    """,
        """
    made = per_channel(Path("fraud.onnx"), Path("calibration.npz"), Path("."))
    assert "QuantizeLinear" in [node.op_type for node in onnx.load(made).graph.node]
    """,
    ),
    "docs/own-model.md": (
        f"""{_CHAMPION}
    register("fraud-quantized", ("x",), 64, "float32", "sqlite:///mlflow.db")
    onnx.save(mlflow.onnx.load_model("models:/fraud-quantized/1"), "fraud.onnx")
    """,
        """
    assert mlflow.MlflowClient().get_model_version("fraud", "1").status == "READY"
    from validators.samples.datasets import TensorSpec, load_samples
    for name, count in (("calibration", 200), ("evaluation", 800)):
        spec = (TensorSpec("x", "float32", ("n", 64)),)
        samples = load_samples(Path(f"{name}.npz"), spec, label="label", role=name)
        assert samples.file.rows == count and samples.labels is not None
    assert model.predict({"x": features})["logits"].shape == (1000, 4)
    """,
    ),
    "docs/consume.md": (
        f"""{_CHAMPION}
    features = register("fraud-quantized", ("x",), 64, "float32", "sqlite:///mlflow.db")["x"]
    """,
        """assert answers["logits"].shape == (3, 4)""",
    ),
    "docs/decoders.md": (
        f"""
    import sys, warnings
    warnings.simplefilter("ignore")
    sys.path.append({str(Path(__file__).parent)!r})
    import decoder_user, mlflow
    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("user", (Path.cwd() / "artifacts").as_uri()))
    model, tokenizer = decoder_user.parts().values()

    class Answers(mlflow.pyfunc.PythonModel):
        def predict(self, context, model_input, params=None):
            return ["text"]

        def predict_stream(self, context, model_input, params=None):
            yield "text"

    info = mlflow.pyfunc.log_model(name="m", python_model=Answers(), pip_requirements=[])
    version = mlflow.register_model(info.model_uri, "assistant-quantized").version
    mlflow.MlflowClient().set_registered_model_alias("assistant-quantized", "champion-cpu-decoder", version)
    """,
        """assert mlflow.MlflowClient().get_model_version("assistant", "1").status == "READY" and text == "text" """,
    ),
    "docs/own-metric.md": (
        "",
        """
    from tasks.measure.metrics.user_metric import user_metric
    metric = user_metric("costs:cost_of_errors", cost_of_errors, higher_is_better=False, version="")
    outputs, labels = np.eye(2)[[0, 1, 0, 1]], np.array([0, 1, 1, 0])
    assert metric.rows(outputs, labels, None)[:, 0].tolist() == [0.0, 0.0, 10.0, 1.0]
    """,
    ),
    "docs/new-target.md": (
        "",
        """
    from tasks.engines.ort.engine import CPU
    assert TARGET.name == "acme-npu" and TARGET.session is CPU.session and set(TARGET.passes) == {"fp32", "int8"}
    """,
    ),
    "docs/read-a-verdict.md": (
        """
    from validators.records.result import CandidateResult, Result, SecondsResult
    from validators.records.verdicts import Verdict
    measured = dict.fromkeys(CandidateResult.model_fields)
    verdicts = [
        Verdict("drop", "fail", 0.03, 0.02, "at_most", reason="beyond the bound"),
        Verdict("speedup", "pass", 2.0, 1.2, "at_least"),
    ]
    known = {"name": "int8-dynamic-pc@ort-cpu", "outcome": "failed", "verdicts": verdicts, "cached": False}
    needed = {key for key, field in CandidateResult.model_fields.items() if field.is_required()}
    candidate = CandidateResult(**{key: known.get(key) for key in needed})
    seconds = SecondsResult(total=1, overhead=0, by_step={})
    document = Result(outcome="no_variant", reason="none", candidates=[candidate], seconds=seconds)
    Path("result.json").write_text(document.model_dump_json())
    """,
        """assert (candidate["name"], reasons) == ("int8-dynamic-pc@ort-cpu", ["drop: beyond the bound"])""",
    ),
    "docs/verdicts.md": (
        """
    import numpy as np
    from contextlib import contextmanager
    from types import SimpleNamespace
    rng = np.random.default_rng(2)
    label, customer = rng.integers(0, 4, 100), np.repeat(["a", "b"], 50)
    x = np.eye(4)[np.where((customer == "b") & (np.arange(100) % 5 == 0), (label + 1) % 4, label)]
    np.savez("evaluation.npz", x=x, label=label, customer=customer)
    @contextmanager
    def runner():
        yield SimpleNamespace(run=lambda inputs, names: [inputs["x"]])
    logged = {}
    """,
        """
    mlflow.log_metric = logged.__setitem__
    fairness(SimpleNamespace(evaluation="evaluation.npz", runner=runner))
    assert {key: round(value, 6) for key, value in logged.items()} == {"gap": 0.2}
    """,
    ),
}


def run_blocks(page: str, texts: list[str], folder: Path) -> None:
    """Run blocks of a page in a process of its own, in `folder`, between what is prepared for them and what is asked after."""
    before, after = (textwrap.dedent(part.strip("\n")) for part in PREPARED[page])
    program = folder / "page.py"
    program.write_text("\n\n".join(["from pathlib import Path", before, *texts, after]), encoding="utf-8")
    lend_mlflow(folder / "mlflow.db")
    env = environment(folder / "state", MLFLOW_TRACKING_URI=f"sqlite:///{folder / 'mlflow.db'}", DO_NOT_TRACK="true")
    done = subprocess.run(
        [sys.executable, str(program)], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
