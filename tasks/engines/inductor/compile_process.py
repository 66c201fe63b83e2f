"""Process that quantizes and compiles one exported program; `compile` runs it with `python -m`.

It is confined (`tasks.runtimes.confined`). Inductor's caches, threads and compilers end with it. Its order is JSON on standard
input, its answer a file, written last. The order has the paths of `folder`, `program`, `package` and `batches`, the `recipe` as
the fields of a `Candidate` (`is_given` and `precision` alone of a program that is compiled as it is), `inputs` and `outputs` by
name, the torch `device`, `for_gpu` (see `gpu_forms`), `threads`, `weight_bits` of INT8 and `written_bytes`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tasks.runtimes.confined import confine, first_cause
from tasks.runtimes.torch_program import RANGES, load_program

ANSWER = "answer.json"


def main(order: dict[str, Any]) -> None:
    """Compile as ordered, and write the answer to `order["folder"]`."""
    confine(order["written_bytes"])
    answer = Path(order["folder"], ANSWER)
    try:
        told = _compile(order)
        # A package that crashes as it is loaded ends this process, and leaves this answer.
        answer.write_text(json.dumps({"error": _crash()}), encoding="utf-8")
        _load(order)
    except Exception as error:  # torch, torchao, the compiler and the model raise anything
        told = {"error": first_cause(error)}
    answer.write_text(json.dumps(told), encoding="utf-8")


def check_flags_alone() -> None:
    """Let torch ask the compiler whether it knows an instruction set's flags, in place of compiling its headers with them.

    With an empty cache it compiles and loads a test for each instruction set, which took 14 s on two idle cores with AMX. The
    package is loaded when it is finished, which shows what the tests would show.
    """
    from torch._inductor import cpp_builder, cpu_vec_isa

    def knows_flags(isa: Any, _code: str) -> bool:
        command = [
            cpp_builder.get_cpp_compiler(),
            *isa.build_arch_flags().split(),
            "-fsyntax-only",
            "-xc++",
            os.devnull,
        ]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    cpu_vec_isa.VecISA.check_build = knows_flags  # type: ignore[assignment]  # it has no option for this


def _device(name: str) -> Any:
    """Return a torch device with its index: a program asserts the devices of its tensors, and theirs have one."""
    import torch

    return torch.device(name, torch.cuda.current_device()) if name == "cuda" else torch.device(name)


def _load(order: dict[str, Any]) -> None:
    from tasks.engines.inductor.shipped.model import InductorModel

    InductorModel(Path(order["package"]), order["threads"])


def _crash() -> str:
    # Seen where CXX named another g++ than the system's, of the same version: std::regex crashed in the package's constructor.
    return (
        f"the package crashes when it is loaded. {os.environ.get('CXX', 'g++')} compiled it: if that is not the system's "
        "compiler, its C++ library may differ from the one that torch runs with; set CXX to the system's g++"
    )


def _compile(order: dict[str, Any]) -> dict[str, Any]:
    import torch
    from torch.export.passes import move_to_device_pass

    from tasks.engines.inductor import programs

    warnings.simplefilter("ignore")  # of torch about itself
    check_flags_alone()
    torch.set_num_threads(order["threads"])
    device = _device(order["device"])
    is_given = order["recipe"].get("is_given", False)
    if is_given:
        programs.register_operators()
    program = load_program(Path(order["program"]))
    if device.type == "cuda":
        program = move_to_device_pass(program, str(device))
    batches = [tuple(tensor.to(device) for tensor in _tensors(path, order["inputs"])) for path in order["batches"]]
    axes = programs.dynamic_axes(program)
    if len(axes) != len(order["inputs"]):
        raise ValueError(f"the program has {len(axes)} inputs, and its ONNX export {len(order['inputs'])}")
    with torch.no_grad():
        exported = programs.export(programs.Flat(program), batches[0], axes)
        changes: dict[str, int] = {}
        if not is_given:
            module: Any = exported.module(check_guards=False)
            rewrite = _rewritten_for_gpu if order["for_gpu"] else _rewritten
            module, changes = rewrite(module, batches, order)
            exported = programs.export(module, batches[0], axes)
        started = time.monotonic()
        # The GPU's library writes INT8 products as INT32; a generated kernel scales them before it writes.
        autotunes = device.type == "cuda" and order["recipe"]["precision"] == "int8"
        write_package(exported, order, device=order["device"], records_kernels=order["for_gpu"], autotunes=autotunes)
        return {"seconds": time.monotonic() - started, "changes": changes}


def _rewritten(module: Any, batches: list[Any], order: dict[str, Any]) -> tuple[Any, dict[str, int]]:
    """Return the module with products for a processor's kernels, and the counts of changes."""
    import torch

    from tasks.engines.inductor import programs

    recipe = order["recipe"]
    if recipe["precision"] == "bf16":
        return module, {"products in bfloat16": programs.in_half(module, torch.bfloat16)}
    if recipe["precision"] == "fp32":
        return module, {}
    quantized = programs.quantize(
        module,
        batches,
        is_dynamic=recipe["dynamic"],
        method=recipe["range_method"],
        weight_bits=order["weight_bits"],
    )
    return quantized, {}


def _rewritten_for_gpu(module: Any, batches: list[Any], order: dict[str, Any]) -> tuple[Any, dict[str, int]]:
    """Return the module with products for a GPU's kernels, and the counts of changes."""
    import torch

    from tasks.engines.inductor.gpu_forms import rewrite

    return module, rewrite(module, order["recipe"], torch.device(order["device"]), batches)


def _tensors(path: str, names: list[str]) -> tuple[Any, ...]:
    import torch

    with np.load(path, allow_pickle=False) as archive:
        return tuple(torch.from_numpy(archive[name]) for name in names)


def write_package(
    exported: Any,
    order: dict[str, Any],
    *,
    device: str = "cpu",
    records_kernels: bool = False,
    autotunes: bool = False,
) -> None:
    """Compile an exported program; the metadata of the package says what it takes, returns and multiplies.

    With `autotunes`, generated kernels of products compete with the library's at the sizes of the example, and the fastest are
    compiled in.
    """
    import torch

    from tasks.engines.inductor import programs
    from tasks.engines.inductor.shipped.model import METADATA

    values = {node.name: node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder"}
    outputs = [node.meta["val"] for node in exported.graph.find_nodes(op="output")[0].args[0]]
    if len(outputs) != len(order["outputs"]):
        raise ValueError(f"the program has {len(outputs)} outputs, and its ONNX export {len(order['outputs'])}")
    inputs = [values[name] for name in exported.graph_signature.user_inputs]
    about = {
        "inputs": [_spec(*one) for one in zip(order["inputs"], inputs, strict=True)],
        "outputs": [_spec(*one) for one in zip(order["outputs"], outputs, strict=True)],
        "products": programs.products_of(exported, whole_attention=records_kernels),
        "device": device,
        "records_kernels": records_kernels,
        RANGES: any("choose_qparams" in str(node.target) for node in exported.graph.nodes),
    }
    for node in exported.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of the machine, which the generated code would quote
    torch._inductor.aoti_compile_and_package(
        exported,
        package_path=order["package"],
        inductor_configs={
            # Weights become constants of the library, in the layout of the kernels.
            "freezing": True,
            # The cache is empty: a header that is compiled first is used once.
            "aot_inductor.precompile_headers": False,
            # The number of threads is the session's, not the compiler's.
            "cpp.dynamic_threads": True,
            # The coverage of a GPU's package is read from the profiler's records, which cost little where nobody profiles.
            "cpp.enable_kernel_profile": records_kernels,
            "max_autotune_gemm": autotunes,
            "aot_inductor.metadata": {METADATA: json.dumps(about)},
        },
    )


def _spec(name: str, value: Any) -> tuple[str, str, list[int | str]]:
    """Return the name, dtype and shape of a tensor, with symbols for dynamic axes."""
    shape = [axis if isinstance(axis, int) else str(axis) for axis in value.shape]
    return name, str(value.dtype).removeprefix("torch."), shape


if __name__ == "__main__":
    main(json.load(sys.stdin))
