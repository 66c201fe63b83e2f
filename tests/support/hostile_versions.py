"""The table of hostile registered versions: files of an MLflow model, and what `init` or `validate` says of them."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hostile_files import Plant, job, model, raw, steps
from hostile_inputs import BAD, BOMB, FINE, Hostile, line_break

ESCAPES = "\x1b[2J\u202e|`<b>[a](javascript:b)\n# c"
Files = Mapping[str, bytes | str]
LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
MODEL, WEIGHTS, CONSTANTS = (
    f"plain/{name}"
    for name in (
        "models/model.json",
        "data/weights/model_weights_config.json",
        "data/constants/model_constants_config.json",
    )
)


def version(mlmodel: Mapping[str, Any] | str, files: Files | None = None) -> Plant:
    """Write the folder of a registered version, and a job that names it; the model is called like the job's folder."""

    def plant(folder: Path) -> None:
        place = folder / "version"
        place.mkdir()
        text = mlmodel if isinstance(mlmodel, str) else json.dumps(mlmodel)
        for name, content in {"MLmodel": text, **(files or {})}.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        job(source=f"models:/{folder.name}/1")(folder)

    return plant


def flavor(name: str, **told: Any) -> dict[str, Any]:
    return {"flavors": {name: told}}


def logged(*plants: Plant, **about: Any) -> Plant:
    """Log the model's ONNX file, with other keys of `MLmodel`."""

    def move(folder: Path) -> None:
        (folder / "model.onnx").rename(folder / "version" / "model.onnx")

    return steps(*plants, version({**flavor("onnx", data="model.onnx"), **about}), move)


def torch_program(change: Callable[[dict[str, Any]], object] = lambda _: None) -> dict[str, bytes]:
    """Return the members of a small exported program, with a changed description."""

    def tensor(name: str) -> dict[str, Any]:
        return {"arg": {"as_tensor": {"name": name}}}

    spec = json.dumps([1, LEAF])
    sizes = [{"as_int": 2}, {"as_int": 4}]
    content = {
        "graph_module": {
            "graph": {"tensor_values": {name: {"dtype": 7, "sizes": sizes} for name in ("x", "y")}},
            "signature": {
                "input_specs": [{"user_input": tensor("x")}],
                "output_specs": [{"user_output": tensor("y")}],
            },
            "module_call_graph": [{"signature": {"out_spec": spec}}],
        },
        "range_constraints": {},
    }
    change(content)
    nothing = json.dumps({"config": {}}).encode()
    return {MODEL: json.dumps(content).encode(), WEIGHTS: nothing, CONSTANTS: nothing}


def zipped(members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    import io

    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def encrypted(members: Mapping[str, bytes]) -> bytes:
    """Return an archive whose members say that they are encrypted."""
    whole = bytearray(zipped(members))
    for magic, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        start = whole.find(magic)
        while start >= 0:
            whole[start + at] |= 1
            start = whole.find(magic, start + 4)
    return bytes(whole)


def pt2(content: bytes | Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> Plant:
    """Log an exported program: the bytes of its archive, or its members."""
    whole = content if isinstance(content, bytes) else zipped(content, method)
    return version(flavor("pytorch", model_data="data"), {"data/model.pt2": whole})


def program(change: Callable[[dict[str, Any]], object]) -> Plant:
    return pt2(torch_program(change))


def member(name: str, content: bytes | None) -> Plant:
    """Log an exported program with another member, or without it."""
    found = {one: text for one, text in (torch_program() | {name: content}).items() if text is not None}
    return pt2(found)


def sized(sizes: Any) -> Plant:
    return program(lambda one: one["graph_module"]["graph"]["tensor_values"]["x"].update(sizes=sizes))


def shape_of(expression: str) -> Plant:
    return program(lambda one: one.update(expr_str=expression))


def out_spec(text: str) -> Plant:
    return program(lambda one: one["graph_module"]["module_call_graph"][0]["signature"].update(out_spec=text))


def weights(header: bytes, content: bytes = b"", size: int | None = None) -> bytes:
    """Return a file of safetensors: the declared size of its header, the header, and the tensors."""
    return struct.pack("<Q", len(header) if size is None else size) + header + content


def header(**tensors: Any) -> bytes:
    """Return a header of float32 tensors, each a shape and offsets, or its whole description."""
    told = {
        name: one if isinstance(one, dict) else {"dtype": "F32", "shape": one[0], "data_offsets": one[1]}
        for name, one in tensors.items()
    }
    return json.dumps(told).encode()


ENCODER = {"architectures": ["BertModel"], "model_type": "bert"}
GOOD_WEIGHTS = weights(header(a=([1], [0, 4])), bytes(4))


def encoder(config: Any = ENCODER, content: bytes = GOOD_WEIGHTS, more: Files | None = None) -> Plant:
    """Log a model of transformers: its configuration and weights."""
    text = config if isinstance(config, str | bytes) else json.dumps(config)
    files = {"model/config.json": text, "model/model.safetensors": content, **(more or {})}
    return version(flavor("transformers", model_binary="model"), files)


def index(content: Any) -> Plant:
    text = content if isinstance(content, str) else json.dumps(content)
    return encoder(more={"model/model.safetensors.index.json": text})


def sentences(modules: Any, more: Files | None = None) -> Plant:
    """Log a model of sentence_transformers."""
    place = "model.sentence_transformer"
    files = {f"{place}/modules.json": json.dumps(modules), f"{place}/model.safetensors": GOOD_WEIGHTS, **(more or {})}
    return version(flavor("sentence_transformers"), files)


def skops(content: bytes) -> Plant:
    return version(flavor("sklearn", pickled_model="model.skops"), {"model.skops": content})


def decoder(config: Any, more: Files | None = None) -> Plant:
    """Log a decoder of transformers with its tokenizer."""
    return encoder(config, more={"model/tokenizer.json": "{}", **(more or {})})


DEEP, WIDE = "[" * 200_000, "[" + "[]," * 4_000_000 + "[]]"
LLAMA = {"architectures": ["LlamaForCausalLM"], "vocab_size": 9}


def asked(command: str, *rows: tuple[str, Plant, str]) -> list[Hostile]:
    """Return rows of inputs that a command refuses."""
    return [Hostile(name, plant, BAD, found, command=command) for name, plant, found in rows]


REFUSED_MLMODELS = asked(
    "init version",
    ("an MLmodel that is a list", version("[]"), "MLmodel"),
    ("an empty MLmodel", version(""), "MLmodel"),
    ("an MLmodel of bytes", version({}, {"MLmodel": b"\xff\xfe\0"}), "not UTF-8 text"),
    ("an MLmodel of aliases", version(BOMB + "flavors: *i\n"), "aliases expanded"),
    ("an MLmodel of itself", version("flavors: &a {onnx: *a}\n"), "MLmodel"),
    ("a deep MLmodel", version(f"flavors: {DEEP}"), "MLmodel"),
    ("a wide MLmodel", version(f"flavors: [{'[],' * 250_000}]"), "more than 20000 values"),
    ("an MLmodel of 5 MB", version("#" * 5_000_000), "bytes"),
    ("an MLmodel that runs code", version("flavors: !!python/object/apply:os.abort []\n"), "python/object"),
    ("an MLmodel with a key twice", version("flavors: {}\nflavors: {}\n"), "occurs twice"),
    ("no flavors", version("{}"), "MLmodel"),
    ("flavors that are a list", version({"flavors": ["onnx"]}), "MLmodel"),
    ("flavors that are text", version({"flavors": "onnx"}), "MLmodel"),
    ("flavors that are numbers", version("flavors: {1: {}, x: {}}\n"), "MLmodel"),
    ("a flavor that is a list", version({"flavors": {"onnx": []}}), "a flavor is not a mapping"),
    ("a flavor that nobody knows", version(flavor(ESCAPES)), "not supported"),
    ("1,000 flavors", version({"flavors": {f"f{n}": {} for n in range(1000)}}), "not supported"),
    ("data above the version", version(flavor("onnx", data="../../model.onnx")), "outside of the model's folder"),
    ("data at an absolute path", version(flavor("onnx", data="/etc/hostname")), "outside of the model's folder"),
    ("data that is a number", version(flavor("onnx", data=5)), "cannot be downloaded"),
    ("data that is missing", version(flavor("onnx")), "cannot be downloaded"),
    ("data with a null character", version('flavors: {onnx: {data: "a\\0b"}}'), "outside of the model's folder"),
    ("data of a long name", version(flavor("onnx", data="a" * 5000)), "cannot be downloaded"),
    ("a signature of depth", logged(signature={"inputs": DEEP}), "MLmodel"),
    ("a signature that is text", logged(signature="x"), "MLmodel"),
    ("a signature of numbers", logged(signature={"inputs": "[1]"}), "MLmodel"),
    ("a size that is infinite", logged(model_size_bytes=float("inf")), "MLmodel"),
    ("a size that is text", logged(model_size_bytes="x"), "MLmodel"),
    ("ONNX that is text", version(flavor("onnx", data="model.onnx"), {"model.onnx": "x"}), "model"),
    ("a program above the version", version(flavor("pytorch", model_data="..")), "outside of the model's folder"),
    ("a program without a file", version(flavor("pytorch"), {"data/model.pth": b"\x80"}), "no exported program"),
    ("Keras above the version", version(flavor("keras", data="../..")), "outside of the model's folder"),
    ("Keras without a file", version(flavor("keras"), {"data/x": ""}), "no model.keras"),
    ("scikit-learn above the version", version(flavor("sklearn", pickled_model="../x.skops")), "outside of"),
)
MLMODELS = [
    *REFUSED_MLMODELS,
    Hostile("a model of hostile names", logged(model(line_break)), FINE, "wrote", command="init version"),
    Hostile(
        "a signature of hostile text",
        logged(signature={"inputs": json.dumps([{"name": ESCAPES, "type": "x"}])}),
        FINE,
        "wrote",
        command="init version",
    ),
]
PROGRAMS = asked(
    "init version",
    ("a program that is text", pt2(b"text"), "model.pt2 cannot be read"),
    ("a program of nothing", pt2(b""), "model.pt2 cannot be read"),
    ("a program without a graph", member(MODEL, None), "model.pt2 cannot be read"),
    ("a program that is cut", pt2(zipped(torch_program())[:200]), "model.pt2 cannot be read"),
    ("an encrypted program", pt2(encrypted(torch_program())), "encrypted"),
    (
        "a program of 100 MB in 100 kB",
        pt2(torch_program() | {MODEL: b"[" * 100_000_000}, zipfile.ZIP_DEFLATED),
        "bytes when unpacked",
    ),
    ("a deep program", member(MODEL, DEEP.encode()), "model.pt2 cannot be read"),
    ("a wide program", member(MODEL, f"[{'[],' * 20_000_000}[]]".encode()), "model.pt2 cannot be read"),
    ("a program that is a list", member(MODEL, b"[]"), "model.pt2 cannot be read"),
    ("a program of bytes", member(MODEL, b"\xff\xfe\0"), "model.pt2 cannot be read"),
    ("sizes of text", sized([{"as_int": "x"}]), "model.pt2 cannot be read"),
    ("sizes below zero", sized([{"as_int": -5}]), "model.pt2 cannot be read"),
    ("sizes of 10^30", sized([{"as_int": 10**30}]), "model.pt2 cannot be read"),
    ("100,000 axes", sized([{"as_int": 1}] * 100_000), "model.pt2 cannot be read"),
    ("sizes that are a number", sized(5), "model.pt2 cannot be read"),
) + asked(
    "validate version",
    ("a shape that is no expression", shape_of("(("), "model.pt2: "),
    ("a shape of depth", shape_of("(" * 50_000), "model.pt2: "),
    ("a shape of signs", shape_of("-" * 50_000 + "1"), "model.pt2: "),
    ("a shape of 100,000 terms", shape_of("1+" * 100_000 + "1"), "model.pt2: "),
    ("a shape with a null character", shape_of("a\0b"), "model.pt2: "),
    ("a shape of 100,000 digits", shape_of("9" * 100_000), "model.pt2: "),
    ("weights that are a list", member(WEIGHTS, b"[]"), "model.pt2: "),
    ("weights of a list", member(WEIGHTS, b'{"config": []}'), "model.pt2: "),
    ("weights that are numbers", member(WEIGHTS, b'{"config": {"a": 1}}'), "model.pt2: "),
    ("no weights", member(WEIGHTS, None), "model.pt2: "),
    ("deep weights", member(WEIGHTS, DEEP.encode()), "model.pt2: "),
    ("wide constants", member(CONSTANTS, f"[{'[],' * 20_000_000}[]]".encode()), "model.pt2: "),
    ("a container that is short", out_spec("[]"), "model.pt2: "),
    ("a container of depth", out_spec(DEEP), "model.pt2: "),
    ("a container that is text", out_spec('[1, "x"]'), "model.pt2: "),
    ("a container of other types", out_spec(json.dumps([1, LEAF | {"type": ["os"]}])), "model.pt2: "),
    ("an archive of no program", pt2({}), "model.pt2: "),
    ("an encrypted program (validate)", pt2(encrypted(torch_program())), "encrypted"),
    ("a compressed program", pt2(torch_program(), zipfile.ZIP_DEFLATED), "compressed members"),
    ("a program above its archive", pt2({"../../a/models/model.json": b"{}"}), "does not write"),
)
ENCODERS = asked(
    "validate version",
    ("weights above the version", version(flavor("transformers", model_binary="../..")), "outside of"),
    ("weights that are pickled", version(flavor("transformers", model_binary="m"), {"m/a.bin": "x"}), "a.bin"),
    ("a configuration that is a list", encoder([]), "config.json"),
    ("a configuration of bytes", encoder(b"\xff"), "config.json"),
    ("a deep configuration", encoder(DEEP), "config.json"),
    ("a wide configuration", encoder(f'{{"a": {WIDE}}}'), "config.json"),
    ("a configuration of digits", encoder(f'{{"a": {"9" * 100_000}}}'), "config.json"),
    ("an architecture that is a number", encoder({"architectures": 5}), "config.json"),
    ("no weights in the file", encoder(content=b""), "model.safetensors"),
    ("a header without an end", encoder(content=weights(b"{", size=1 << 63)), "model.safetensors"),
    ("a header beyond the file", encoder(content=weights(b"{}", size=3000)), "model.safetensors"),
    ("a header of 0 bytes", encoder(content=weights(b"")), "model.safetensors"),
    ("a header that is no JSON", encoder(content=weights(b"hello")), "model.safetensors"),
    ("a header of depth", encoder(content=weights(DEEP.encode())), "model.safetensors"),
    ("a header of 4,000,000 lists", encoder(content=weights(WIDE.encode())), "model.safetensors"),
    ("offsets beyond the file", encoder(content=weights(header(a=([1000], [0, 4000])), bytes(4))), "model.safetensors"),
    ("offsets backwards", encoder(content=weights(header(a=([1], [4, 0])), bytes(4))), "model.safetensors"),
    (
        "offsets that overlap",
        encoder(content=weights(header(a=([2], [0, 8]), b=([2], [4, 12])), bytes(12))),
        "model.safetensors",
    ),
    ("bytes of no tensor", encoder(content=weights(header(a=([1], [0, 4])), bytes(400))), "model.safetensors"),
    ("a shape of other bytes", encoder(content=weights(header(a=([9], [0, 4])), bytes(4))), "model.safetensors"),
    ("a shape of 2^62 rows", encoder(content=weights(header(a=([1 << 62], [0, 4])), bytes(4))), "model.safetensors"),
    ("a shape below zero", encoder(content=weights(header(a=([-1], [0, 4])), bytes(4))), "model.safetensors"),
    (
        "a type that nobody knows",
        encoder(content=weights(header(a={"dtype": "X9", "shape": [1], "data_offsets": [0, 4]}), bytes(4))),
        "model.safetensors",
    ),
    (
        "a tensor twice",
        encoder(content=weights(header(a=([1], [0, 4]))[:-1] + b", " + header(a=([1], [4, 8]))[1:], bytes(8))),
        "model.safetensors",
    ),
    ("shards above the folder", index({"weight_map": {"a": "../../../a.safetensors"}}), "outside of"),
    ("shards at an absolute path", index({"weight_map": {"a": "/tmp/a.safetensors"}}), "outside of"),
    ("shards that are numbers", index({"weight_map": {"a": 1}}), "model.safetensors.index.json"),
    ("shards that are a list", index([]), "model.safetensors.index.json"),
    ("shards of depth", index(DEEP), "model.safetensors.index.json"),
    ("modules that are a mapping", sentences({}), "modules.json"),
    ("modules that are numbers", sentences([1]), "modules.json"),
    ("a module above the folder", sentences([{"type": "sentence_transformers.models.A", "path": "../.."}]), "outside"),
    ("a module of other code", sentences([{"type": "os.system"}]), "os.system"),
    (
        "a module whose configuration is a list",
        sentences(
            [{"type": "sentence_transformers.models.A", "path": "a"}],
            {"model.sentence_transformer/a/config.json": "[]"},
        ),
        "config.json",
    ),
    ("scikit-learn that is text", skops(b"text"), "model.skops cannot be read"),
    ("scikit-learn of nothing", skops(b""), "model.skops cannot be read"),
    ("scikit-learn without a schema", skops(zipped({"a": b""})), "model.skops cannot be read"),
    ("encrypted scikit-learn", skops(encrypted({"schema.json": b"{}"})), "model.skops cannot be read"),
    (
        "scikit-learn of 100 MB in 100 kB",
        skops(zipped({"schema.json": bytes(100_000_000)}, zipfile.ZIP_DEFLATED)),
        "bytes when unpacked",
    ),
)
DECODERS = asked(
    "init decoder",
    ("a decoder of no tokenizer", encoder(LLAMA), "no tokenizer.json"),
    ("a decoder of no architecture", decoder({}), "an architecture in config.json"),
    ("a decoder of another architecture", decoder({"architectures": [ESCAPES]}), " is a \\x1b"),
    ("a vocabulary of text", decoder(LLAMA | {"vocab_size": "x"}), "config.json"),
    ("a vocabulary below zero", decoder(LLAMA | {"vocab_size": -5}), "config.json"),
    (
        "a vocabulary of infinity",
        decoder('{"architectures": ["LlamaForCausalLM"], "vocab_size": Infinity}'),
        "config.json",
    ),
    ("a vocabulary that is a list", decoder(LLAMA | {"vocab_size": [1]}), "config.json"),
    ("a decoder of deep shards", index(DEEP), "model.safetensors.index.json"),
)


def recorded(content: bytes | str) -> Plant:
    """Record runs with this result."""

    def plant(folder: Path) -> None:
        (folder / "run").mkdir()
        raw("run/result.json", content)(folder)

    return plant


CHECKS = '{"calibration": {"outcome": "accepted", "failed_checks": [%s1]}}'
RESULTS = asked(
    "compare runs",
    ("a result of text", recorded("x"), "unreadable result"),
    ("a result of nothing", recorded(""), "unreadable result"),
    ("a result of bytes", recorded(b"\xff\xfe\0"), "unreadable result"),
    ("a result that is a list", recorded("[]"), "unreadable result"),
    ("a result of nothing in it", recorded("{}"), "unreadable result"),
    ("a deep result", recorded(DEEP), "unreadable result"),
    ("a wide result", recorded(WIDE), "unreadable result"),
    ("a result of digits", recorded(f'{{"seconds": {"9" * 1_000_000}}}'), "unreadable result"),
    ("a result of infinity", recorded('{"seconds": Infinity}'), "unreadable result"),
    ("a result of unknown keys", recorded(json.dumps(dict.fromkeys(map(str, range(100_000))))), "unreadable result"),
    ("a result of 4,000,000 checks", recorded(CHECKS % ("1," * 4_000_000)), "unreadable result"),
    ("a result of 100 MB", recorded(b" " * 100_000_000), "unreadable result"),
)
HOSTILE_VERSIONS = [*MLMODELS, *PROGRAMS, *ENCODERS, *DECODERS, *RESULTS]
