"""MLflow registry: connection, and the distinction between "not found" and "no answer"."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tasks.run.settings import (
    artifact_location,
    is_remote,
    registry_uri,
    store_place,
    tracking_uri,
    written_folders,
)
from tasks.storage.files import disk_error
from validators.errors import InfrastructureError, ServiceDown, SourceError

if TYPE_CHECKING:
    from mlflow import MlflowClient

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")

# Error codes about the request itself; all other errors are failures of the registry.
REQUEST_ERRORS = frozenset(
    {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "RESOURCE_ALREADY_EXISTS", "NOT_FOUND"}
)

# Read by MLflow at each request.
_HTTP_RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
_ONE_AT_A_TIME = threading.RLock()

MODEL_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:/(?P<version>\d+)|@(?P<alias>[^/@]+))")

_TRACKING, _REGISTRY = "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"
_SETTING = threading.Lock()
log = logging.getLogger("quantgate")


@contextmanager
def connect(tracking_uri: str) -> Iterator[MlflowClient]:
    """Yield a client of the tracking store and of the registry, which `MLFLOW_REGISTRY_URI` may place elsewhere.

    MLflow's global URIs are set too, for the calls that only use those.

    Raises:
        InfrastructureError: a database cannot be opened, or another version of MLflow wrote it.
    """
    import mlflow

    with _SETTING:
        told = {name: os.environ.get(name) for name in (_TRACKING, _REGISTRY)}
        registry = registry_uri(tracking_uri)
        mlflow.set_tracking_uri(tracking_uri)
        mlflow.set_registry_uri(registry)
        # MLflow writes them into the environment, where the next call would take them for the user's settings.
        for name, value in told.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    # A database is opened here, a server is not.
    yield registry_call(mlflow.MlflowClient, tracking_uri, registry)


def warn_of_local_locks(state: Path) -> None:
    """Warn if other machines share the registry but cannot see this machine's locks.

    Two machines could then promote at the same time, and each may read the other's version by the staging alias.
    """
    address = registry_uri(tracking_uri(state))
    if store_place() is None and is_remote(address):
        log.warning(
            "the registry at %s is shared, and its locks are in %s: set the same QUANTGATE_STORE=s3://bucket/prefix on every "
            "machine that promotes, unless all of them share that folder",
            address,
            state / "locks",
        )


def registry_call(call: Callable[Arguments, Answer], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
    """Make one call to the registry and return its result.

    Raises:
        MlflowException: the request itself is at fault: no such model, version or alias.
        ServiceDown: the registry does not answer, or fails.
        StorageFull: the disk of its database is full, or read-only.
    """
    import requests
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return call(*args, **kwargs)
    except MlflowException as error:
        failed = _failed_request(error)
        if failed is None:
            raise
        raise _failure(failed) from error
    except (requests.RequestException, SQLAlchemyError, ConnectionError) as error:
        raise _failure(error) from error


def download(uri: str, folder: Path | str) -> Path:
    """Download the artifacts at a URI below `folder` within a `connect` and return their path; raise as `registry_call`."""
    from mlflow.artifacts import download_artifacts

    return Path(registry_call(download_artifacts, artifact_uri=uri, dst_path=str(folder)))


@contextmanager
def sent_once() -> Iterator[None]:
    """Turn off MLflow's retries within the block.

    MLflow retries requests of every kind, even one that the server completed before the connection broke. A creation would
    then happen twice. A caller that tries again must first look for the result of the last attempt.
    """
    with _ONE_AT_A_TIME:
        before = os.environ.get(_HTTP_RETRIES)
        os.environ[_HTTP_RETRIES] = "0"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_HTTP_RETRIES]
            else:
                os.environ[_HTTP_RETRIES] = before


# What MLflow's page of an experiment says above its runs.
ABOUT_RUNS = (
    "Runs of quantgate: one for each job, with one nested run for each candidate. Tags `quantgate.*` have the outcome and each "
    "verdict; the artifacts have the report."
)


def experiment_id(client: MlflowClient, name: str, tracking_uri: str) -> str:
    """Return the id of an experiment, which is created if it does not exist.

    Raises:
        ServiceDown: the registry does not answer.
    """
    from mlflow.exceptions import MlflowException

    known = registry_call(client.get_experiment_by_name, name)
    if known is None:
        try:
            location = artifact_location(tracking_uri)
            tags = {"mlflow.note.content": ABOUT_RUNS}
            return str(registry_call(client.create_experiment, name, artifact_location=location, tags=tags))
        except MlflowException:  # another run may have created it at the same moment
            known = registry_call(client.get_experiment_by_name, name)
            if known is None:
                raise
    return str(known.experiment_id)


def pages(search: Callable[..., Any], **query: Any) -> Iterator[Any]:
    """Yield all results of a search, page by page.

    Raises:
        ServiceDown: the registry does not answer.
    """
    token: str | None = None
    while True:
        page: Any = registry_call(search, **query, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


@contextmanager
def quiet_mlflow() -> Iterator[None]:
    """Suppress MLflow's output while it logs and registers; the run has its own log lines."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        # MLflow asks for an input example to check the signature; the read-back checks more.
        warnings.filterwarnings("ignore", message=r"[\s\S]*input example", category=UserWarning)
        yield


def _failed_request(error: BaseException | None) -> Exception | None:
    """Return the failure of the registry that caused an error of MLflow's client, or None if the request is at fault.

    MLflow's client reports any failure of a request that it made on the way, also a 500, as a wrong parameter.
    """
    import requests
    from mlflow.exceptions import MlflowException

    while isinstance(error, MlflowException):
        if error.error_code not in REQUEST_ERRORS:
            return error
        error = error.__cause__
    return error if isinstance(error, (requests.RequestException, ConnectionError)) else None


def _failure(error: Exception) -> InfrastructureError:
    said = str(error)
    if "database schema" in said:
        return InfrastructureError(
            found=f"the MLflow database was written by another version of MLflow: {said.partition('. ')[0]}",
            expected="a database of the installed version of MLflow",
            fix="back it up; after an upgrade run `mlflow db upgrade URI`; after a downgrade install the later version of "
            "quantgate again, or restore the backup from before the upgrade",
        )
    return disk_error(error, *written_folders()) or ServiceDown(
        found=f"the MLflow registry does not answer: {said.splitlines()[0][:300]}",
        expected="a registry that answers",
        fix="check MLFLOW_TRACKING_URI, MLFLOW_REGISTRY_URI if it is set, and that the server runs; then run again: finished "
        "work is kept",
    )


def named_version(client: MlflowClient, named: re.Match[str]) -> Any:
    """Return the registered version that a match of `MODEL_URI` names.

    Raises:
        SourceError: there is no such version.
        ServiceDown: the registry does not answer.
    """
    from mlflow.exceptions import MlflowException

    name, number, alias = named.group("name", "version", "alias")
    try:
        if number:
            return registry_call(client.get_model_version, name, number)
        return registry_call(client.get_model_version_by_alias, name, alias)
    except MlflowException as error:
        raise SourceError(
            found=f"no {named[0]} in the registry at {registry_uri(client.tracking_uri)}",
            expected="a registered model version",
            fix="register the model first, or set MLFLOW_TRACKING_URI or MLFLOW_REGISTRY_URI to the right registry",
        ) from error
