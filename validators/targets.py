"""The catalogue of targets: built-in engines, classes of devices, and targets of installed packages.

A target's behaviour is in its room of `tasks/engines`. A package adds a target by an entry point of the group
`quantgate.targets`; its name is the target's, its object a `tasks.engines.engine.Engine`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module, metadata
from typing import Any

from validators.errors import JobError
from validators.target_facts import TargetFacts

GROUP = "quantgate.targets"
# The module of each built-in engine's facts, read by name: they lie above this room. Its engine is in `engine` beside it.
ENGINES = {
    "ort-cpu": "tasks.engines.ort.facts",
    "openvino": "tasks.engines.openvino.facts",
    "torch-inductor": "tasks.engines.inductor.facts",
    "ort-genai": "tasks.engines.genai.facts",
    "openvino-decoder": "tasks.engines.openvino_decoder.facts",
    "ort-cuda": "tasks.engines.ort.facts",
    "tensorrt": "tasks.engines.tensorrt.facts",
    "torch-cuda": "tasks.engines.inductor.facts",
}
# What a job is for that names no target; it opens any source, and so it is the baseline of engines for processors.
DEFAULT_TARGET = "ort-cpu"
# Names end up in aliases, pools and file names.
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


def _built_in() -> dict[str, TargetFacts]:
    """Return the facts of the engines in their order, each followed by the classes of devices that it is the first one of."""
    engines = [next(one for one in import_module(module).FACTS if one.name == name) for name, module in ENGINES.items()]
    found: dict[str, TargetFacts] = {}
    for engine in engines:
        found[engine.name] = engine
        for name in (name for name in engine.classes if name not in found):
            members = [one for one in engines if name in one.classes]
            found[name] = TargetFacts(
                name=name,
                provider=engine.provider,
                on_gpu=engine.on_gpu,
                generates=engine.generates,
                engines=tuple(one.name for one in members),
                default_candidates=tuple(candidate for one in members for candidate in one.classes[name]),
            )
    return found


BUILT_IN = _built_in()


def target_names() -> tuple[str, ...]:
    """Return the names of all targets, built-in ones first, without importing other packages.

    Raises:
        JobError: two packages provide a target with the same name, or a name is not valid in an alias.

    >>> target_names()[:2]
    ('ort-cpu', 'cpu')
    """
    return *BUILT_IN, *installed_targets()


def built_in_engines() -> tuple[str, ...]:
    """Return the built-in targets that are no class of devices.

    >>> built_in_engines()[:2]
    ('ort-cpu', 'openvino')
    """
    return tuple(name for name, facts in BUILT_IN.items() if not facts.engines)


def facts_of(name: str) -> TargetFacts:
    """Return the facts of a target.

    Raises:
        JobError: no installed package provides a target with this name, or it fails to load.
    """
    return BUILT_IN[name] if name in BUILT_IN else _facts_in(load_target(name), name)


def facts_of_provider(provider: str) -> TargetFacts:
    """Return the facts of the first engine whose models a provider runs.

    A provider that no engine has is taken for one of ONNX Runtime that computes in host memory.

    Raises:
        JobError: an installed package's target does not load.
    """
    found = next((facts for facts in BUILT_IN.values() if facts.provider == provider), None)
    brought = (facts_of(target) for target in installed_targets()) if found is None else ()
    unknown = TargetFacts(name=provider, provider=provider, default_candidates=())
    return found or next((facts for facts in brought if facts.provider == provider), unknown)


def engines_of(name: str) -> tuple[str, ...]:
    """Return the engines of a class of devices; any other target is its own engine.

    Raises:
        JobError: see `facts_of`.

    >>> engines_of("cuda"), engines_of("openvino")
    (('ort-cuda', 'tensorrt', 'torch-cuda'), ('openvino',))
    """
    return facts_of(name).engines or (name,)


def baselines_of(name: str) -> tuple[str, ...]:
    """Return the engines that can run the baseline of a target's jobs, the default first.

    Raises:
        JobError: see `facts_of`.

    >>> baselines_of("openvino"), baselines_of("cuda"), baselines_of("torch-cuda")
    (('ort-cpu', 'openvino'), ('ort-cuda', 'tensorrt'), ('ort-cuda',))
    """
    engines = tuple(engine for engine in engines_of(name) if facts_of(engine).runs_sources)
    if facts_of(name).generates:
        return engines  # no other one answers a prompt
    if is_on_gpu(name):
        return engines or ("ort-cuda",)
    return tuple(dict.fromkeys((DEFAULT_TARGET, *engines)))


def is_on_gpu(name: str) -> bool:
    """Return True if the target runs on an NVIDIA GPU.

    Raises:
        JobError: see `facts_of`.

    >>> is_on_gpu("ort-cuda"), is_on_gpu("ort-cpu")
    (True, False)
    """
    return facts_of(name).on_gpu


@cache
def load_target(name: str) -> Any:
    """Import and return the object of a package's entry point, for a target that is not built in.

    Raises:
        JobError: no installed package provides the target, its module fails, or the object is no target of that name.
    """
    entry = installed_targets().get(name)
    if entry is None:
        raise JobError(
            found=f"target {name!r}",
            expected=f"one of {', '.join(target_names())}",
            fix="correct the name, or install the package that provides this target",
        )
    try:
        loaded = entry.load()
    except Exception as error:  # a third-party package may raise anything
        raise JobError(
            found=f"the target {name} of {package_of(entry)} fails to load: {type(error).__name__}: {error}",
            expected=f"an object at {entry.value}",
            fix="update or uninstall that package",
        ) from error
    _facts_in(loaded, name)
    return loaded


def _facts_in(loaded: Any, name: str) -> TargetFacts:
    facts = getattr(loaded, "facts", None)
    if not isinstance(facts, TargetFacts) or facts.name != name:
        given = repr(facts.name) if isinstance(facts, TargetFacts) else type(loaded).__name__
        raise JobError(
            found=f"the entry point {name} of the group {GROUP} loads {given}",
            expected=f"a `tasks.engines.engine.Engine` whose facts have the name {name!r}",
            fix="correct the package that provides it",
        )
    return facts


@cache
def installed_targets() -> dict[str, metadata.EntryPoint]:
    """Return the entry points of third-party targets, by name.

    Raises:
        JobError: a name is already taken, or is not valid in an alias.
    """
    found: dict[str, metadata.EntryPoint] = {}
    for entry in metadata.entry_points(group=GROUP):
        if entry.name in BUILT_IN or entry.name in found:
            other = package_of(found[entry.name]) if entry.name in found else "quantgate"
            raise JobError(
                found=f"{package_of(entry)} provides the target {entry.name!r}, which {other} already provides",
                expected="one package per target",
                fix=f"rename the entry point of the group {GROUP}, or uninstall {package_of(entry)}",
            )
        if not _NAME.fullmatch(entry.name):
            raise JobError(
                found=f"{package_of(entry)} provides the target {entry.name!r}",
                expected="a name of lower-case letters and digits, with single hyphens between them",
                fix=f"rename the entry point of the group {GROUP}",
            )
        found[entry.name] = entry
    return found


def package_of(entry: metadata.EntryPoint) -> str:
    """Return the distribution of an entry point, with its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
