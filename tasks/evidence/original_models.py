"""Loaders of models of other flavors; they run in the export process alone (`torch_export_process`).

Each writes the model as ONNX and returns a function that runs the original on named arrays.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tasks.evidence.sklearn_file import TRUSTED
from tasks.runtimes.torch_program import load_program
from validators.graph.source_form import normalize
from validators.graph.stored import save_model
from validators.untrusted.external_data import check_weights
from validators.untrusted.torch_program import leaf_names

if TYPE_CHECKING:
    import torch

# Arrays of one batch by input name -> the outputs, in the order of the ONNX model's.
Run = Callable[[Mapping[str, NDArray[Any]]], list[NDArray[Any]]]

# The newest opset that all the pinned runtimes read, with its IR version.
OPSET = 21
IR_VERSION = 10
# Batch and length of the tokens, or of the signal, that an encoder is traced on.
TRACED, TRACED_SIGNAL = (2, 16), (2, 16000)
TOKENS = ("input_ids", "attention_mask", "token_type_ids")
# Input of a converted scikit-learn model: float32 [samples, features].
FEATURES = "X"


def from_program(order: dict[str, Any]) -> Run:
    """Load an exported program (`.pt2`)."""
    import torch
    from torch.utils import _pytree as pytree

    exported = load_program(Path(order["path"]))
    shutil.copyfile(order["path"], order["program"])
    write_program(exported, order["onnx"])

    def run(batch: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        tensors = [torch.from_numpy(array) for array in batch.values()]
        args, kwargs = pytree.tree_unflatten(tensors, exported.call_spec.in_spec)
        with torch.no_grad():
            return _arrays_of(exported.module()(*args, **kwargs))

    return run


def from_pickle(order: dict[str, Any]) -> Run:
    """Load a pickled module and trace it on the samples whose names are parameters of `forward`."""
    import torch

    sys.path[:0] = order["code"]
    module = torch.load(order["path"], map_location="cpu", weights_only=False)
    assert isinstance(module, torch.nn.Module), f"the file holds a {type(module).__name__}, not a torch.nn.Module"
    with np.load(order["samples"], allow_pickle=False) as archive:
        samples = {name: archive[name] for name in archive.files}
    taken = list(inspect.signature(module.forward).parameters)
    names = [name for name in taken if name in samples]
    assert names, f"`forward` takes {taken}, but the data has {sorted(samples)}: the names must match"
    return _trace(module.eval(), {name: samples[name] for name in names}, order, axes=1)


def from_transformers(order: dict[str, Any]) -> Run:
    """Load an encoder of transformers from its configuration and safetensors."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(order["path"], local_files_only=True, trust_remote_code=False)
    kinds = config.architectures or []
    kind = getattr(transformers, kinds[0], None) if kinds else transformers.AutoModel
    assert kind is not None, f"transformers {transformers.__version__} has no {kinds[0]}"
    config.use_cache = False
    model = kind.from_pretrained(
        order["path"],
        config=config,
        local_files_only=True,
        use_safetensors=True,
        attn_implementation="eager",
        dtype="float32",
    )
    return _trace(model.eval(), _inputs_of(model, config), order)


def from_decoder(order: dict[str, Any]) -> Run:
    """Load a decoder of transformers; onnxruntime-genai's builder writes it in float32, with its cache, and beside the file
    its configuration and tokenizer.
    """
    import torch

    # The builder imports its parts by names without a package, from a folder that this module adds to the path.
    from onnxruntime_genai.models import builder

    path, onnx_path = order["path"], Path(order["onnx"])
    places = ("", path, str(onnx_path.parent), "fp32", "cpu", str(onnx_path.parent / "cache"))
    options = builder.parse_extra_options(*places, ["hf_token=false", "hf_remote=false"])
    builder.create_model(*places, **options)
    shutil.rmtree(onnx_path.parent / "cache", ignore_errors=True)
    _complete_decoder(onnx_path)
    model = load_decoder(path)

    def run(batch: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        (tokens,) = batch.values()
        with torch.no_grad():
            return [model(torch.from_numpy(tokens), use_cache=False).logits.numpy()]

    return run


def load_decoder(path: str) -> Any:
    """Return a decoder of transformers that computes in float32, with the weights of its files mapped into memory."""
    import transformers
    from transformers.initialization import no_init_weights

    # In the type of the files, of which transformers then maps the weights.
    mapped: Any = transformers.AutoModelForCausalLM.from_pretrained(
        path, local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype="auto"
    )
    # What is no weight, such as Gemma's scale of the embedding, is rounded to that type there, and is not here.
    with no_init_weights():
        model: Any = type(mapped)(mapped.config)
    model.load_state_dict(mapped.state_dict(), assign=True)
    in_float32(model.eval())
    return model


def in_float32(model: torch.nn.Module) -> None:
    """Let each module compute in float32, with weights that are cast while it runs: no more than its own take memory."""

    def cast(module: torch.nn.Module, _given: Any) -> None:
        for weight in module.parameters(recurse=False):
            stored[weight] = weight.data
            weight.data = weight.data.float()

    def give_back(module: torch.nn.Module, _given: Any, _made: Any) -> None:
        for weight in module.parameters(recurse=False):
            weight.data = stored.pop(weight)

    stored: dict[torch.nn.Parameter, torch.Tensor] = {}
    for module in model.modules():
        if any(True for _ in module.parameters(recurse=False)):
            module.register_forward_pre_hook(cast)
            module.register_forward_hook(give_back)


def from_sentence_transformers(order: dict[str, Any]) -> Run:
    """Load a sentence encoder: its transformer, pooling, and what follows, up to `sentence_embedding`."""
    import torch
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(
        order["path"],
        device="cpu",
        local_files_only=True,
        trust_remote_code=False,
        model_kwargs={"use_safetensors": True, "attn_implementation": "eager", "dtype": "float32"},
    )

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stages = torch.nn.ModuleList(loaded)

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
            features = {"input_ids": input_ids, "attention_mask": attention_mask}
            features |= {} if token_type_ids is None else {"token_type_ids": token_type_ids}
            for stage in self.stages:
                features = stage(features)
            return {"sentence_embedding": features["sentence_embedding"]}

    encoder = Encoder().eval()
    first: Any = loaded[0]
    return _trace(encoder, _inputs_of(encoder, first.auto_model.config), order)


def from_keras(order: dict[str, Any]) -> Run:
    """Load a model of Keras 3, whichever backend it was trained on, on torch. Unknown sizes are traced as batch and length."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import torch

    model = keras.saving.load_model(order["path"], compile=False, safe_mode=True)
    inputs = list(model.inputs)

    class Positional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *arrays: Any) -> Any:
            # In the model's own structure: one input, a list or a dictionary of inputs.
            is_plain = isinstance(model, keras.Sequential)
            given = arrays[0] if is_plain else keras.tree.pack_sequence_as(model.input, list(arrays))
            return self.model(given, training=False)

    module = Positional().eval()
    sizes = [[TRACED[min(axis, 1)] if size is None else size for axis, size in enumerate(i.shape)] for i in inputs]
    tensors = tuple(torch.zeros(size, dtype=getattr(torch, i.dtype)) for size, i in zip(sizes, inputs, strict=True))
    dynamic = tuple({axis: torch.export.Dim.AUTO for axis, size in enumerate(i.shape) if size is None} for i in inputs)
    with torch.no_grad():
        exported = torch.export.export(module, tensors, dynamic_shapes=(dynamic,))
    outputs = getattr(model, "output_names", None) or [model.layers[-1].name]
    write_program(exported, order["onnx"], [i.name for i in inputs], outputs)

    def run(batch: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        with torch.no_grad():
            return _arrays_of(module(*(torch.from_numpy(array) for array in batch.values())))

    return run


def from_sklearn(order: dict[str, Any]) -> Run:
    """Load a fitted model of scikit-learn, stored by skops or, if the operator allowed it, by pickle."""
    import onnx
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import FloatTensorType

    path = Path(order["path"])
    if path.suffix == ".skops":
        import skops.io

        model = skops.io.load(path, trusted=TRUSTED)
    else:
        import cloudpickle

        sys.path[:0] = order["code"]
        model = cloudpickle.loads(path.read_bytes())
    options = {"zipmap": False} if hasattr(model, "predict_proba") else None
    kinds = [(FEATURES, FloatTensorType([None, model.n_features_in_]))]
    converted = convert_sklearn(model, initial_types=kinds, options=options, target_opset={"": 21, "ai.onnx.ml": 3})
    normalize(converted)
    onnx.save(converted, order["onnx"])

    def run(batch: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        (array,) = batch.values()
        outputs = [model.predict(array)]
        if hasattr(model, "predict_proba"):
            return [*outputs, model.predict_proba(array)]
        return [np.asarray(outputs[0]).reshape(len(array), -1)]

    return run


def write_program(
    exported: torch.export.ExportedProgram, path: str, inputs: Sequence[str] = (), outputs: Sequence[str] = ()
) -> None:
    """Write a program as ONNX with these names, in two files where one cannot hold the weights.

    The keys of dictionaries name its outputs, if it returns any.

    Raises:
        SourceError: a weight is too large for an ONNX tensor.
    """
    import torch
    from torch.utils import _pytree as pytree

    check_weights("the program", {name: weight.nbytes for name, weight in exported.state_dict.items()})
    # The exporter also logs that torchvision is not installed; no operator here needs it.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    spec = json.loads(pytree.treespec_dumps(exported.call_spec.out_spec))[1]
    taken = inputs or exported.graph_signature.user_inputs
    names = leaf_names(spec, [isinstance(item, str) for item in exported.graph_signature.user_outputs], taken)
    with warnings.catch_warnings():
        # The exporter warns about its own internals (deprecated calls in its passes), which no user can act on.
        warnings.simplefilter("ignore")
        converted = torch.onnx.export(
            exported,
            dynamo=True,
            opset_version=OPSET,
            verbose=False,
            input_names=inputs or None,
            output_names=names or outputs or None,
        )
    assert converted is not None
    model = converted.model_proto
    model.ir_version = IR_VERSION
    _name_axes(model.graph)
    save_model(model, Path(path))


def _complete_decoder(path: Path) -> None:
    """Give the caches their size of a head, and write root-mean-square norms in ONNX's own operators (Zhang, Sennrich 2019).

    The builder leaves that size open, and writes the norms as an operator of ONNX Runtime in ONNX's domain, which no checker
    knows; ONNX Runtime fuses them again when it loads the file.
    """
    import onnx
    from onnx import helper

    model = onnx.load(path, load_external_data=False)
    config = json.loads(path.with_name("genai_config.json").read_text(encoding="utf-8"))
    for value in (*model.graph.input, *model.graph.output):
        if value.name.startswith(("past_key_values.", "present.")):
            value.type.tensor_type.shape.dim[3].dim_value = config["model"]["decoder"]["head_size"]
    nodes = []
    for node in model.graph.node:
        if node.op_type != "SimplifiedLayerNormalization" or node.domain:
            nodes.append(node)
            continue
        told = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        assert told.get("axis", -1) == -1, f"{node.name} normalizes axis {told['axis']}, not the last one"
        (x, scale), name = node.input, node.name
        axes, two, least = (f"{name}/{word}" for word in ("axes", "two", "epsilon"))
        model.graph.initializer.extend(
            [
                helper.make_tensor(axes, onnx.TensorProto.INT64, [1], [-1]),
                helper.make_tensor(two, onnx.TensorProto.FLOAT, [], [2.0]),
                helper.make_tensor(least, onnx.TensorProto.FLOAT, [], [told["epsilon"]]),
            ]
        )
        square, mean, shifted, root, normal = (
            f"{name}/{word}" for word in ("square", "mean", "shifted", "root", "normal")
        )
        nodes += [
            helper.make_node("Pow", [x, two], [square], name=square),
            helper.make_node("ReduceMean", [square, axes], [mean], name=mean, keepdims=1),
            helper.make_node("Add", [mean, least], [shifted], name=shifted),
            helper.make_node("Sqrt", [shifted], [root], name=root),
            helper.make_node("Div", [x, root], [normal], name=normal),
            helper.make_node("Mul", [normal, scale], [node.output[0]], name=name),
        ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, path)


def _name_axes(graph: Any) -> None:
    """Name the dynamic axes that the exporter numbered: `batch` for axis 0, `sequence` for axis 1 of the inputs."""
    names: dict[str, str] = {}
    for value in graph.input:
        for axis, name in zip(value.type.tensor_type.shape.dim, ("batch", "sequence"), strict=False):
            if axis.dim_param and axis.dim_param[0] == "s" and axis.dim_param[1:].isdigit():
                names.setdefault(axis.dim_param, name)
    if len(set(names.values())) < len(names):
        return
    for value in (*graph.input, *graph.output, *graph.value_info):
        for axis in value.type.tensor_type.shape.dim:
            # Setting the name of a fixed axis, even to nothing, would clear its size.
            if axis.dim_param in names:
                axis.dim_param = names[axis.dim_param]


def _trace(module: torch.nn.Module, inputs: dict[str, NDArray[Any]], order: dict[str, Any], axes: int = 2) -> Run:
    """Trace a module on arrays by input name, and write it.

    Axis 0 is dynamic, and with `axes` 2 axis 1 of matrices.
    """
    import torch

    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    dynamic = {name: axes if array.ndim == 2 else 1 for name, array in inputs.items()}
    shapes = {name: dict.fromkeys(range(count), torch.export.Dim.AUTO) for name, count in dynamic.items()}
    with torch.no_grad():
        exported = torch.export.export(module, (), tensors, dynamic_shapes=shapes)
    torch.export.save(exported, order["program"])
    write_program(exported, order["onnx"])

    def run(batch: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        with torch.no_grad():
            return _arrays_of(module(**{name: torch.from_numpy(array) for name, array in batch.items()}))

    return run


def _inputs_of(module: torch.nn.Module, config: Any) -> dict[str, NDArray[Any]]:
    """Return inputs to trace an encoder on, by its configuration: tokens, images or a signal."""
    taken = inspect.signature(module.forward).parameters
    if "pixel_values" in taken:
        size = config.image_size if isinstance(config.image_size, Sequence) else [config.image_size] * 2
        return {"pixel_values": np.zeros((TRACED[0], getattr(config, "num_channels", 3), *size), np.float32)}
    if "input_values" in taken:
        return {"input_values": np.zeros(TRACED_SIGNAL, np.float32)}
    # As tokenizers do: models with one type of token get no types.
    several = getattr(config, "type_vocab_size", 0) > 1
    names = [name for name in TOKENS if name in taken and (name != "token_type_ids" or several)]
    assert "input_ids" in names, f"`forward` takes {', '.join(taken)}: neither tokens nor images nor a signal"
    return {name: np.ones(TRACED, np.int64) for name in names}


def _arrays_of(outputs: Any) -> list[NDArray[Any]]:
    """Return the tensors in the outputs of a program: containers are flattened as in its export."""
    import torch
    from torch.utils import _pytree as pytree

    return [leaf.detach().numpy() for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
