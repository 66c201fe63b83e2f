"""Table of integer products: which engine, operator and number of weight bits give exact sums on a kind of processor.

    python benchmarks/integer_products.py               # every kind that this processor can stand in for: half an hour
    python benchmarks/integer_products.py avx2 amx      # some; the rows of others are kept
    python benchmarks/integer_products.py --without torch-inductor      # whose programs are compiled: minutes

Each source multiplies by weights of -1 and 1, and is fed with zeros and ones, or with -1 and 1. The grid of any INT8 recipe
holds them, so the float model is the reference, and only a sum that saturates differs from it by more than a few steps. A kind
with fewer instruction sets than this processor has runs in processes that are told so (`tests/support/other_processor.py`).
Prints the table, and writes `benchmarks/results/integer_products.json`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from figures import earlier, write
from integer_products_models import MODELS, PROGRAM, PROGRAM_OUTPUTS, PROGRAM_RECIPES, PROGRAM_WEIGHTS, signs
from numpy.typing import NDArray
from processes import answer_of

from tasks.engines.catalog import find_target
from tasks.engines.variants import session_settings
from tasks.evidence.torch_export import Original, convert
from tasks.measure.inventory import processor_name, this_processor
from tasks.ptq.build_variant import Materials, weights_form
from tasks.ptq.calibrate.calibration import calibrate
from tasks.ptq.eight_bit.smooth import SmoothedGraph, read_channels, smooth
from tasks.ptq.graph.prepare import prepare_graph
from tasks.runtimes.confined import confined_environment
from tasks.runtimes.runner import open_runner
from validators.errors import CandidateRefused
from validators.job.candidate_name import decode
from validators.processors import Processor
from validators.records.run import DataFile, SessionSettings
from validators.samples.datasets import Arrays, Samples

ROOT = Path(__file__).parents[1]
LAUNCHER = ROOT / "tests/support/other_processor.py"
ROWS = 64
# Largest difference from the float model, of its largest output, of sums that are exact. Activations are rounded to 255 steps
# twice at most; a pair that saturates loses up to half of its value.
LARGEST_ERROR = 0.04
# Processors by the bits of weights of variants for them.
WEIGHT_BITS = {8: Processor(("avx2", "avx_vnni")), 7: Processor(("avx2",))}
# Bits of weights in blocks, by the precision; the processor does not change them.
BLOCK_BITS = {"int4": (4,), "int8": (8,)}
# Recipes whose sessions open the graphs of decoders.
GRAPHS = {"ort-genai": "int4-g32-rtn@ort-cpu", "openvino-decoder": "int4-g32-rtn@openvino"}
BASELINE = SessionSettings("CPUExecutionProvider", 1)


class Row(NamedTuple):
    """An operator by a candidate whose weights have these bits: the largest relative error, or the reason of a refusal."""

    operator: str
    candidate: str
    weight_bits: int
    error: float | None
    reason: str = ""

    @property
    def verdict(self) -> str:
        if self.error is None:
            return "not made"
        return "exact" if self.error <= LARGEST_ERROR else "saturates"


class Source:
    """A source in a folder with what its recipes need, for inputs of one sign or of both."""

    def __init__(self, folder: Path, shapes: dict[str, tuple[int, ...]], *, signed: bool) -> None:
        """Take the model at `folder/source.onnx`."""
        rng = np.random.default_rng(0)
        inputs = {}
        for name, shape in shapes.items():
            drawn = (rng.random((ROWS, *shape)) < 0.9).astype(np.float32)
            drawn[0] = 1  # the largest sum of all
            drawn.reshape(ROWS, -1)[:, 0] = 0  # TorchInductor gives a request of one value no steps
            inputs[name] = 2 * drawn - 1 if signed else drawn
        self.folder = folder
        self.samples = Samples(DataFile(folder / "source.onnx", "", ROWS), inputs, None, {})
        self.program = folder / "program.pt2" if (folder / "program.pt2").exists() else None

    @cached_property
    def prepared(self) -> Path:
        """The source after the passes that all recipes start from."""
        prepare_graph(self.folder / "source.onnx", self.folder / "prepared.onnx")
        return self.folder / "prepared.onnx"

    @cached_property
    def smoothed(self) -> SmoothedGraph:
        path = self.folder / "smoothed.onnx"
        smooth(self.prepared, path, read_channels(self.prepared, list(self.samples.batches(ROWS))), symmetric=False)
        return SmoothedGraph(path, 0, 0)

    def measured(self, graph: Path) -> Path:
        """Return the calibration statistics of a graph."""
        path = graph.with_suffix(".npz")
        calibrate(graph, self.samples, path, threads=1, max_memory_mb=500)
        return path

    def materials(self, processor: Processor) -> Materials:
        """Inputs of the passes, with the source as its own fused graph."""
        return Materials(
            prepared=lambda: self.prepared,
            fused=lambda: self.folder / "source.onnx",
            smoothed=lambda: self.smoothed,
            statistics=lambda smooth: self.measured(self.smoothed.path if smooth else self.prepared),
            ranking=lambda _: (),
            batches=lambda: list(self.samples.batches(ROWS)),
            grams=lambda *_: {},
            processor=processor,
            program=self.program,
        )

    @cached_property
    def expected(self) -> list[tuple[Arrays, list[NDArray[Any]]]]:
        """Requests of one row, whose kernels are others, and of all, with the outputs of the float model."""
        found = []
        for rows in (1, 5, ROWS):
            (batch,) = self.samples.batches(rows, [0])
            found.append((batch, run(self.folder / "source.onnx", BASELINE, batch)))
        return found

    def errors(self, name: str, bits: int) -> NDArray[np.float64]:
        """Make a variant and return the largest error of each output, relative to its largest value.

        Raises:
            CandidateRefused: the engine does not make or run it.
        """
        candidate = decode(name)
        target = find_target(candidate.target)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            path = Path(folder) / Path(target.artifact).name
            form = weights_form if target.facts.generates else target.passes[candidate.precision]
            materials = self.materials(WEIGHT_BITS.get(bits, WEIGHT_BITS[8]))
            form(candidate, replace(materials, pairs=target.pairs), path)
            # The graphs of decoders are opened as they are.
            settings = session_settings(decode(GRAPHS.get(candidate.target, name)), 1)
            worst = np.zeros(len(self.expected[0][1]))
            for batch, expected in self.expected:
                for index, (found, wanted) in enumerate(zip(run(path, settings, batch), expected, strict=True)):
                    worst[index] = max(worst[index], np.abs(found - wanted).max() / np.abs(wanted).max())
        return worst


def run(model: Path, settings: SessionSettings, batch: Arrays) -> list[NDArray[Any]]:
    with open_runner(model, settings) as runner:
        outputs = runner.run(batch, [spec.name for spec in runner.outputs])
    return [np.asarray(output, np.float64) for output in outputs]


def rows_of(operators: Sequence[str], recipes: Iterable[str], sources: list[Source]) -> Iterator[Row]:
    """Yield the rows of sources that differ in the signs of their inputs: the larger error counts."""
    for name in recipes:
        for bits in BLOCK_BITS.get(name.partition("-g")[0], tuple(WEIGHT_BITS)):
            try:
                found = np.max([source.errors(name, bits) for source in sources], axis=0)
            except CandidateRefused as refusal:
                yield from (Row(operator, name, bits, None, refusal.found) for operator in operators)
                continue
            for operator, error in zip(operators, found, strict=True):
                yield Row(operator, name, bits, float(f"{error:.2g}"))


def of_both_signs(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Yield a copy of the folder of a source for inputs of one sign, and one for inputs of both."""
    for signed in (False, True):
        yield shutil.copytree(folder, folder.with_name(f"signed-{signed}")), signed


def onnx_rows(without: tuple[str, ...]) -> Iterator[Row]:
    """Yield the rows of engines that take ONNX files."""
    for operator, make in MODELS.items():
        model = make()
        with tempfile.TemporaryDirectory() as folder:
            here = Path(folder, "source")
            here.mkdir()
            model.save(here / "source.onnx")
            sources = [Source(copy, dict(model.shapes), signed=signed) for copy, signed in of_both_signs(here)]
            recipes = [name for name in model.recipes if not name.endswith(without)]
            yield from rows_of([operator], recipes, sources)


def program_rows() -> Iterator[Row]:
    """Yield the rows of TorchInductor, from one program with an output for each operator."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder, "source")
        here.mkdir()
        weights = {name: signs(*shape, axis=0) for name, shape in PROGRAM_WEIGHTS.items()}
        np.savez(here / "weights.npz", **weights)  # type: ignore[arg-type]  # its stub: keywords for allow_pickle
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(here)]
        subprocess.run(command, env=confined_environment(here), check=True)
        convert(Original("program", here / "original.pt2"), here / "source.onnx")
        name = onnx.load(here / "source.onnx").graph.input[0].name
        sources = [Source(copy, {name: (512,)}, signed=signed) for copy, signed in of_both_signs(here)]
        yield from rows_of(PROGRAM_OUTPUTS, PROGRAM_RECIPES, sources)


def measure(kind: str, without: tuple[str, ...]) -> dict[str, Any]:
    """Run the rows of a kind in a process of that kind."""
    command = [sys.executable, str(LAUNCHER), kind, sys.executable, "-W", "ignore", __file__, "--here"]
    command += [word for engine in without for word in ("--without", engine)]
    return dict(answer_of(command))


def here(without: tuple[str, ...]) -> dict[str, Any]:
    """Return the rows of this process, with the processor and the versions."""
    rows = list(onnx_rows(without))
    if "torch-inductor" not in without:
        rows += program_rows()
    libraries = ("onnxruntime", "openvino", "torch", "torchao")
    return {
        "processor": processor_name(),
        "isa": this_processor().isa,
        "versions": {name: metadata.version(name) for name in libraries},
        "rows": [row._asdict() for row in rows],
    }


def table(kinds: dict[str, Any]) -> str:
    """Return the rows as Markdown, with a column for each kind; recipes and operators that agree everywhere share a row."""
    cells: dict[tuple[str, str, int], dict[str, str]] = {}
    for kind, found in kinds.items():
        for line in found["rows"]:
            row = Row(**line)
            cells.setdefault((row.operator, row.candidate, row.weight_bits), {})[kind] = row.verdict
    recipes: dict[tuple[Any, ...], list[str]] = {}
    for (operator, candidate, bits), by_kind in cells.items():
        recipe, _, engine = candidate.partition("@")
        verdicts = tuple(by_kind.get(kind, "") for kind in kinds)
        if set(verdicts) != {"not made"}:
            words = recipe.replace("-minmax-pc", "").removesuffix("-pc").replace("-pc+", "+")
            recipes.setdefault((engine, bits, verdicts, operator), []).append(words)
    operators: dict[tuple[Any, ...], list[str]] = {}
    for (engine, bits, verdicts, operator), words in recipes.items():
        operators.setdefault((engine, bits, verdicts, ", ".join(words)), []).append(operator)
    lines = [f"| engine | operators | recipes | weights | {' | '.join(kinds)} |", "|---" * (4 + len(kinds)) + "|"]
    for (engine, bits, verdicts, words), ours in operators.items():
        lines.append(f"| `{engine}` | {'; '.join(ours)} | {words} | {bits} bits | {' | '.join(verdicts)} |")
    return "\n".join(lines)


def main() -> None:
    sys.path.insert(0, str(LAUNCHER.parent))
    from other_processor import KINDS, kinds_here

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(KINDS)}; all that run here if none is given")
    parser.add_argument("--without", action="append", default=[], metavar="ENGINE")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        print(json.dumps(here(tuple(given.without))))
        return
    kept = earlier("integer_products")
    for kind in given.kinds or kinds_here():
        found = measure(kind, tuple(given.without))
        others = [row for row in kept.get(kind, {}).get("rows", ()) if row["candidate"].endswith(tuple(given.without))]
        kept[kind] = found | {"rows": found["rows"] + others}
        ordered = {kind: kept[kind] for kind in KINDS if kind in kept}
        write("integer_products", ordered)
    print(table({kind: kept[kind] for kind in KINDS if kind in kept}))


if __name__ == "__main__":
    main()
