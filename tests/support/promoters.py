"""Promotes small variants on a real registry (SQLite) and plants faults between its writes.

    python tests/support/promoters.py faults FOLDER [FAULT:AT]  every fault, or one, before each write
    python tests/support/promoters.py race FOLDER ROUNDS        two promoters at once, round after round
    python tests/support/promoters.py served FOLDER URI         two promotions through a server of MLflow's

Each promotion is a process of its own, forked from this one, which has imported what takes seconds. Real are the lock, the
registry and its artifacts, the journal, the consumer and ONNX Runtime; what stands in is the run that comes before, of which a
promotion gets tags, files and answers. Faults are planted by wrapping the methods of MLflow's own store that write. What is
there afterwards is read by the database's own driver and printed as JSON, one line for each fault or round.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from databases import lend_mlflow
from onnx import TensorProto, helper, numpy_helper

from tasks.run.settings import prepare_environment

NAME, TARGET = "m-quantized", "ort-cpu"
WRITES = (
    "create_registered_model",
    "create_model_version",
    "update_model_version",
    "set_model_version_tag",
    "delete_model_version_tag",
    "set_registered_model_alias",
    "delete_registered_model_alias",
)
# What a promotion came to, by how its process ended.
ENDS = {
    0: "promoted",
    10: "ChampionMoved",
    11: "VersionUnsound",
    12: "InfrastructureError",
    13: "interrupted",
    -9: "killed",
}
# Writes of a promotion: model, version, description, verified, staging, moving, alias, staging, done.
LAST, ALIAS_WRITE = 9, 7
BATCH = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
Fault = Callable[[Path], None]


@dataclass(frozen=True)
class Packed:
    """A variant as a run hands it over: `y = factor * x`, saved as a model that MLflow loads, and the tags of its version."""

    factor: float
    path: Path
    tags: dict[str, str]


def pack(folder: Path, factor: float, *, threads: int = 1, evidence: str = "of one run") -> Packed:
    """Save the variant of a factor; its file is the same for any number of threads of its session."""
    import mlflow
    from mlflow.models import infer_signature

    from tasks.champion.manifest import hardware_of
    from tasks.champion.promote import CONSUMER
    from tasks.measure.inventory import take_inventory
    from validators.digests import digest_file
    from validators.records.run import SessionSettings, identity_of

    name = f"{factor}" if threads == 1 else f"{factor}-{threads}"
    described = folder / f"variant-{name}"
    model = described / "variant" / "model.onnx"
    model.parent.mkdir(parents=True)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in "xy")
    constant = numpy_helper.from_array(np.float32([factor]), "k")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "k"], ["y"])], "times", [x], [y], [constant])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), model)
    digest = digest_file(model)
    session = SessionSettings("CPUExecutionProvider", threads)
    manifest = {"files": {"model.onnx": digest}, "session": session.described, "libraries": [], "plugin": None}
    manifest |= {
        "inputs": {"x": "float32"},
        "outputs": ["y"],
        "artifact": "model.onnx",
        "engine": None,
        "compiled": False,
    }
    manifest |= {
        "runtime": "onnxruntime",
        "runtime_version": onnxruntime.__version__,
        "loader": "tasks.runtimes.shipped.model",
    }
    manifest |= {"hardware": hardware_of(take_inventory("ort-cpu"))}
    written = described / "manifest.json"
    written.write_text(json.dumps(manifest))
    path = folder / f"model-{name}"
    mlflow.pyfunc.save_model(
        path,
        python_model=str(CONSUMER),
        artifacts={"variant": str(model.parent), "manifest": str(written)},
        signature=infer_signature(BATCH, {"y": BATCH["x"]}),
        pip_requirements=["numpy"],
    )
    tags = {"variant_digest": digest, "source_digest": "s", "target": TARGET, "manifest_digest": digest_file(written)}
    tags |= {"identity": identity_of(digest, session), "evidence_digest": evidence}
    return Packed(factor, path, {f"quantgate.{key}": value for key, value in tags.items()})


def promote(root: Path, packed: Packed, judged_against: str | None, uri: str = "") -> str:
    """Promote a variant in the registry of a folder, or of a server to which it is uploaded, as the step of a run does."""
    from tasks.champion.promote_version import ApprovedVariant, promote_version
    from tasks.champion.readback import check_answer
    from tasks.registry.champion_slot import ChampionSlot
    from tasks.registry.mlflow_registry import connect
    from tasks.storage.locks import FolderLocks

    offer = ApprovedVariant(
        packed.tags,
        lambda: uploaded(packed) if uri else str(packed.path),
        lambda uri: check_answer(uri, [BATCH], [{"y": BATCH["x"] * packed.factor}], "fp32-fused@ort-cpu"),
        lambda: f"factor {packed.factor}",
    )
    with connect(uri or f"sqlite:///{root / 'mlflow.db'}") as client:
        locks = FolderLocks(root / "locks")
        return promote_version(
            client, locks, ChampionSlot(NAME, TARGET), offer, judged_against=judged_against, flow_run="f"
        )


def uploaded(packed: Packed) -> str:
    """The URI of the variant, logged as a run logs it."""
    import mlflow

    from tasks.champion.promote import CONSUMER

    described = packed.path.with_name(f"variant-{packed.factor}")
    artifacts = {"variant": str(described / "variant"), "manifest": str(described / "manifest.json")}
    signature = mlflow.models.get_model_info(str(packed.path)).signature
    with mlflow.start_run(log_system_metrics=False):
        logged = mlflow.pyfunc.log_model(
            name="variant",
            python_model=str(CONSUMER),
            artifacts=artifacts,
            signature=signature,
            pip_requirements=["numpy"],
        )
    return str(logged.model_uri)


def retry(root: Path, packed: Packed) -> None:
    """What the run that comes after a crash does: look the champion up, compare, promote; once."""
    from tasks.champion.reconcile import reconcile
    from tasks.registry.champion_slot import ChampionSlot, champion_at
    from tasks.registry.mlflow_registry import connect
    from tasks.storage.locks import FolderLocks

    place = ChampionSlot(NAME, TARGET)
    with connect(f"sqlite:///{root / 'mlflow.db'}") as client:
        with FolderLocks(root / "locks").hold(place.lock, wait_seconds=0):
            reconcile(client, place)
        champion = champion_at(client, place)
    promote(root, packed, champion.version if champion else None)


def forked(act: Callable[[], Any]) -> str:
    """Do something in a process of its own; what it came to."""
    child = fork(act)
    return ended(child)


def fork(act: Callable[[], Any]) -> int:
    """Start a process that does something."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    from validators.errors import ChampionMoved, InfrastructureError, VersionUnsound

    code = 1
    try:
        act()
        code = 0
    except InfrastructureError as error:
        print(f"{type(error).__name__}: {error.found}", file=sys.stderr)
        code = {ChampionMoved: 10, VersionUnsound: 11}.get(type(error), 12)
    except KeyboardInterrupt:
        code = 13
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(child: int) -> str:
    """How a process ended, in words."""
    _, status = os.waitpid(child, 0)
    return ENDS.get(os.waitstatus_to_exitcode(status), "crashed")


def plant(at: int, fault: Fault, root: Path, *, lasting: bool = False) -> None:
    """Let a fault happen before the write number `at` to the registry, or before it and all that follow."""
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore

    seen = 0

    def wrapped(method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == at or (lasting and seen > at):
                fault(root)
            return method(*args, **kwargs)

        return call

    for name in WRITES:
        setattr(SqlAlchemyStore, name, wrapped(getattr(SqlAlchemyStore, name)))


def kill(root: Path) -> None:
    """End this process as the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def move(root: Path) -> None:
    """Somebody points the alias at version 1."""
    with sqlite3.connect(root / "mlflow.db", timeout=30) as database:
        database.execute("UPDATE registered_model_aliases SET version = 1 WHERE alias = ?", (f"champion-{TARGET}",))


def refuse(root: Path) -> None:
    """The registry has a fault of its own."""
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import INTERNAL_ERROR

    raise MlflowException("planted", INTERNAL_ERROR)


def interrupt(root: Path) -> None:
    """Somebody presses Ctrl-C, or Prefect turns SIGTERM into an exception."""
    # A shell without job control starts background processes, such as these tests, with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)


def damage(root: Path) -> None:
    """A byte of the stored artifact changes."""
    path = root / "model-3.0" / "artifacts" / "variant" / "model.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")


def left(root: Path) -> dict[str, Any]:
    """What the registry holds: where each alias points, and every version's factor, phase and previous one."""
    with sqlite3.connect(root / "mlflow.db") as database:
        aliases = dict(database.execute("SELECT alias, version FROM registered_model_aliases"))
        tags = database.execute("SELECT version, key, value FROM model_version_tags").fetchall()
    versions: dict[int, dict[str, Any]] = {}
    for number, key, value in tags:
        version = versions.setdefault(number, {})
        if key == "quantgate.promotion":
            version |= {name: json.loads(value).get(name) for name in ("phase", "previous")}
        elif key == "quantgate.variant_digest":
            version["digest"] = value
    return {"aliases": aliases, "versions": versions}


def prepare(folder: Path) -> list[Packed]:
    """Four variants, and a registry in which the first was promoted and then the second."""
    packed = [pack(folder, float(factor)) for factor in (1, 2, 3, 4)]
    shutil.copytree(packed[2].path, folder / "whole")
    # In a registry of its own: what is imported and looked up on first use need not be so by every child.
    (folder / "warm").mkdir()
    lend_mlflow(folder / "warm" / "mlflow.db")
    lend_mlflow(folder / "mlflow.db")
    promote(folder / "warm", packed[0], None)
    assert forked(lambda: promote(folder, packed[0], None)) == "promoted"
    assert forked(lambda: promote(folder, packed[1], "1")) == "promoted"
    return packed


def faults(folder: Path, only: str = "") -> None:
    """The third variant's promotion with each fault before each of its writes, and what a retry then comes to.

    `only` names one of them, such as `kill:7`.
    """
    packed = prepare(folder)
    (folder / "mlflow.db").rename(folder / "before.db")
    for name, fault, lasting in (
        ("kill", kill, False),
        ("move", move, False),
        ("refuse", refuse, False),
        ("down", refuse, True),
        ("interrupt", interrupt, False),
        ("interrupt again", interrupt, True),
        ("damage", damage, False),
    ):
        for at in range(1, LAST + 2):
            if only not in ("", f"{name}:{at}"):
                continue
            shutil.copy(folder / "before.db", folder / "mlflow.db")
            shutil.copytree(folder / "whole", packed[2].path, dirs_exist_ok=True)

            def attempt(at: int = at, fault: Fault = fault, lasting: bool = lasting) -> None:
                plant(at, fault, folder, lasting=lasting)
                promote(folder, packed[2], "2")

            first = forked(attempt)
            seen = left(folder)
            shutil.copytree(folder / "whole", packed[2].path, dirs_exist_ok=True)
            second = forked(lambda: retry(folder, packed[2]))
            line = {"fault": name, "at": at, "first": first, "left": seen, "second": second, "end": left(folder)}
            print(json.dumps(line), flush=True)


def race(folder: Path, rounds: int) -> None:
    """Two promoters of different variants start at the same champion, round after round."""
    packed = prepare(folder)
    for index in range(rounds):
        before = left(folder)["aliases"][f"champion-{TARGET}"]
        barrier, start = os.pipe()

        def attempt(one: Packed, before: int = before, barrier: int = barrier, start: int = start) -> None:
            os.close(start)
            os.read(barrier, 1)  # until the parent closes its end
            promote(folder, one, str(before))

        pair = packed[:2] if index % 2 else packed[2:]
        children = [fork(lambda one=one: attempt(one)) for one in pair]
        os.close(start)
        os.close(barrier)
        print(
            json.dumps({"ends": [ended(child) for child in children], "before": before, "end": left(folder)}),
            flush=True,
        )


def served(folder: Path, uri: str) -> None:
    """One variant after the other through a server; the versions that became the champion."""
    packed = [pack(folder, factor) for factor in (1.0, 2.0)]
    first = promote(folder, packed[0], None, uri)
    print(json.dumps([first, promote(folder, packed[1], first, uri)]))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    place = Path(sys.argv[2])
    place.mkdir(parents=True, exist_ok=True)
    prepare_environment(place / "state")
    if sys.argv[1] == "faults":
        faults(place, *sys.argv[3:])
    elif sys.argv[1] == "served":
        served(place, sys.argv[3])
    else:
        race(place, int(sys.argv[3]))
