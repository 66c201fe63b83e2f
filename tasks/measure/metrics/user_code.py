"""Functions of the user that a job names as `module:function`: a metric, a step, pre- or postprocessing.

The module is a file in the job's `code` folder or, failing that, an importable module. It is the user's code and runs with the
rights of quantgate, so the operator must allow it by name (`validators.untrusted.operator_allowlist`).

A file is loaded by its path, under a unique module name. While it loads, its folder is last on `sys.path`, so that it can
import its neighbours but shadow nothing. These imports must be at the top of the file, since the folder is removed afterwards.
A module is loaded once per process, even if the file changes: the code that a run measures must not change half-way.

Metrics made by `mlflow.metrics.make_metric` become functions of outputs and labels; MLflow is not imported to recognize them.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from validators.digests import digest_values
from validators.errors import JobError
from validators.source_code import digest_user_code
from validators.untrusted.operator_allowlist import allows_all_of, check_hook

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class UserFunction:
    """A function of the user, and the digest of its code (`digest_user_code`)."""

    name: str
    function: Callable[..., Any]
    loaded: _Loaded

    @property
    def digest(self) -> str:
        """The sha256 of everything that the function was written in."""
        return self.loaded.digest


@dataclass(frozen=True)
class _Loaded:
    """A loaded module. `files`: its file and the neighbours that it imports; empty for an importable module."""

    module: ModuleType
    files: tuple[Path, ...] = ()

    @cached_property
    def digest(self) -> str:
        """Digest of the code, computed on demand: measuring processes load functions too, and have no use of it."""
        return digest_user_code(self.module.__name__, self.files)


_loaded: dict[str, _Loaded] = {}
# Several threads make candidates, and they share `sys.path`.
_lock = threading.Lock()


def load_function(name: str, folder: Path, *, key: str) -> UserFunction:
    """Return the function `module:function` of a job; `folder` is its `code` folder, `key` the job's key with the name.

    Raises:
        JobError: the operator does not allow it, the module is missing or fails to load, or it has no such function.
    """
    module_name, _, function_name = name.partition(":")
    path, place = check_allowed(name, folder, key=key)
    with _lock:
        source = str(path) if place else module_name
        if source not in _loaded:
            _loaded[source] = _load(path, name, key) if place else _import(module_name, name, path, key)
        loaded = _loaded[source]
    function = _function(getattr(loaded.module, function_name, None))
    # Allowing a module does not allow functions that it merely imports, such as `os.system`.
    borrowed = allows_all_of(name, place) and function_name not in _functions_of(loaded.module)
    if not callable(function) or borrowed:
        raise JobError(
            found=f"`{key}: {name}`, but {source} has no function {function_name!r}",
            expected=f"one of {sorted(_functions_of(loaded.module)) or 'its functions, but it has none'}",
            fix="correct the name, or define the function at the top level of the module",
        )
    return UserFunction(name, _without_exit(function), loaded)


def check_allowed(name: str, folder: Path, *, key: str) -> tuple[Path, Path | None]:
    """Return the file that would hold `module:function`, and `folder` if it is there, else None: the module is imported.

    Raises:
        JobError: the operator does not allow it.
    """
    path = (folder / Path(*name.partition(":")[0].split("."))).with_suffix(".py").resolve()
    place = folder if path.is_file() else None
    check_hook(name, place, key=key)
    return path, place


def _function(value: Any) -> Any:
    """Return the function of a metric made for `mlflow.evaluate`; any other value as it is."""
    return as_function(value) if is_evaluation_metric(value) else value


def _without_exit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function so that `sys.exit()` in it is an error: it would end the run, with the exit code of a success."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except SystemExit as error:
            raise RuntimeError(f"SystemExit: {error.code}") from error

    return call


def _load(path: Path, name: str, key: str) -> _Loaded:
    """Return the module of a file, with the neighbours that it imports."""
    module_name = f"_quantgate_user_{digest_values(str(path))[:12]}_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None  # a .py file always has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # records and pickle look their module up
    with _neighbours(path.parent) as neighbours:
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[module_name]
            raise _failed(name, key, str(path), error) from error
    return _Loaded(module, (path, *neighbours))


@contextmanager
def _neighbours(folder: Path) -> Iterator[list[Path]]:
    """Allow imports from the folder during the block; afterwards the yielded list holds the imported files, sorted.

    The modules are removed from `sys.modules`, since another job's folder may have one of the same name.
    """
    files: list[Path] = []
    before = set(sys.modules)
    sys.path.append(str(folder))
    try:
        yield files
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).resolve().is_relative_to(folder) and not name.startswith("_quantgate_user_"):
                files.append(Path(file).resolve())
                del sys.modules[name]
        files.sort()


def _import(module_name: str, name: str, path: Path, key: str) -> _Loaded:
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise JobError(
                found=f"`{key}: {name}`, but there is neither a file {path} nor an importable module {module_name!r}",
                expected="a Python file in the job's `code` folder, or a module of an installed package",
                fix="correct `code`, or the name (without `.py`), or install the package where quantgate runs",
            ) from error
        raise _failed(name, key, module_name, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(name, key, module_name, error) from error
    return _Loaded(module)


def _failed(name: str, key: str, source: str, error: BaseException) -> JobError:
    return JobError(
        found=f"`{key}: {name}`: {source} raises {type(error).__name__} when imported: {str(error)[:300]}",
        expected="a module that can be imported",
        fix="import the module in quantgate's Python environment to see the error",
    )


def _functions_of(module: ModuleType) -> set[str]:
    """Return the names of the public callables that a module defines itself."""
    return {
        name
        for name, value in vars(module).items()
        if callable(found := _function(value))
        and getattr(found, "__module__", None) == module.__name__
        and not name.startswith("_")
    }


def is_evaluation_metric(value: object) -> bool:
    """Return True for an `mlflow.models.EvaluationMetric`."""
    return callable(getattr(value, "eval_fn", None)) and isinstance(getattr(value, "greater_is_better", None), bool)


def as_function(metric: Any) -> Callable[[NDArray[Any], NDArray[Any] | None], Any]:
    """Return the function `(outputs, labels)` that gives the scores of an EvaluationMetric, or else its first aggregate.

    Outputs and labels have samples along axis 0. `eval_fn` gets those of its arguments `predictions`, `targets` and `metrics`
    that it names, as `mlflow.evaluate` passes them.

    Raises:
        TypeError: `eval_fn` needs other arguments.
        ValueError: it returns neither a number nor a MetricValue with scores or aggregates.
    """
    named = inspect.signature(metric.eval_fn).parameters

    @wraps(metric.eval_fn)
    def judge(outputs: NDArray[Any], labels: NDArray[Any] | None) -> Any:
        targets = None if labels is None else _series(labels)
        given: dict[str, Any] = {"predictions": predictions_of(outputs, labels), "targets": targets, "metrics": {}}
        found = metric.eval_fn(**{name: value for name, value in given.items() if name in named})
        if getattr(found, "scores", None) is not None:
            return found.scores
        aggregates = getattr(found, "aggregate_results", found)
        if isinstance(aggregates, Mapping):
            aggregates = next(iter(aggregates.values()), None)
        if aggregates is None:
            raise ValueError(f"eval_fn returned {found!r}, without scores or aggregates")
        return aggregates

    judge.greater_is_better = metric.greater_is_better  # type: ignore[attr-defined]  # functions take attributes
    return judge


def predictions_of(outputs: NDArray[Any], labels: NDArray[Any] | None) -> pd.Series[Any]:
    """Return outputs as predictions: the winning class for integer labels `(n,)`, a number, or one array per sample.

    >>> import numpy as np
    >>> predictions_of(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1])).tolist()
    [1, 0]
    >>> predictions_of(np.array([[0.1], [0.8]]), np.array([0, 1])).tolist()
    [0.1, 0.8]
    """
    scores_classes = outputs.ndim == 2 and outputs.shape[1] > 1 and outputs.dtype.kind == "f"
    if scores_classes and labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu":
        return _series(outputs.argmax(axis=1))
    return _series(outputs)


def _series(values: NDArray[Any]) -> pd.Series[Any]:
    import pandas as pd  # measuring processes load this module for `preprocess`, and have no use of pandas

    if values.ndim == 1 or values.size == len(values):
        return pd.Series(values.reshape(len(values)))
    return pd.Series(list(values))
