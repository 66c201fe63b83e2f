"""Status of a source on a target, as tags of its version in the registry, for the sweep and for people.

`quantgate.<target>.status` is `running`, `awaiting_approval`, or the outcome of the run (`RunOutcome` in
`validators.records.result`). The other tags are `.reason` in words, `.run` (MLflow's run), `.flow_run` (Prefect's), `.job` (the
digest of the job) and, for an error, `.error`: `infrastructure` is worth a retry, `input` needs a person.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from prefect.context import FlowRunContext
from prefect.exceptions import Pause

from tasks.registry.mlflow_registry import connect, registry_call
from tasks.run.context import log
from tasks.run.settings import state_folder, tracking_uri
from validators.digests import digest_values
from validators.errors import EXIT_INFRASTRUCTURE, QuantgateError
from validators.job.job import Job
from validators.records.result import Result

# Statuses that are not final.
UNFINISHED = ("running", "error", "awaiting_approval")
# The registry accepts 100,000 characters and other stores of MLflow 5,000, but a person reads a sentence.
LONGEST_REASON = 1000


@dataclass(frozen=True)
class SourceTags:
    """Status tags of a version for one target; empty strings for missing tags."""

    status: str
    flow_run: str
    job: str
    error: str


@dataclass
class SourceOutcome:
    """Outcome that a run reports at its end: the MLflow run and the result."""

    run: str = ""
    result: Result | None = None


def digest_job(job: Job) -> str:
    """Return the digest that identifies a job with its source, 64 hexadecimal characters."""
    return digest_values(job.model_dump(mode="json"))


def read_status(tags: Mapping[str, str], target: str) -> SourceTags:
    """Return the status of a version for a target."""
    return SourceTags(*(tags.get(_key(target, part), "") for part in ("status", "flow_run", "job", "error")))


@contextmanager
def keep_status(job: Job, *, promote: bool) -> Iterator[SourceOutcome]:
    """Write `running` to the source's version, and the outcome at the end of the block.

    Files and runs without promotion get no status. If the registry does not answer, the tags are lost but the run goes on.
    """
    kept = SourceOutcome()
    if job.source_is_file or not promote:
        yield kept
        return
    where = _find(job)
    context = FlowRunContext.get()
    flow_run = str(context.flow_run.id) if context and context.flow_run else ""
    _say(job, where, "running", {"reason": "", "run": "", "error": "", "flow_run": flow_run, "job": digest_job(job)})
    try:
        yield kept
    except Pause:
        _say(job, where, "awaiting_approval", {"run": kept.run})
        raise
    except BaseException as error:
        _say(job, where, "error", {"run": kept.run, "reason": _in_words(error), "error": _kind(error)})
        raise
    if kept.result is not None:
        kind = "infrastructure" if kept.result.outcome == "error" else ""
        _say(job, where, kept.result.outcome, {"run": kept.run, "reason": kept.result.reason, "error": kind})


def _find(job: Job) -> tuple[str, str] | None:
    """Return the name and version of the source; None if the registry does not answer, which the run itself reports."""
    name, _, version = job.source.removeprefix("models:/").partition("/")
    if version:
        return name, version
    name, _, alias = name.partition("@")
    try:
        with connect(tracking_uri(state_folder())) as client:
            return name, str(registry_call(client.get_model_version_by_alias, name, alias).version)
    except Exception as error:
        log.warning("no status for %s: %s", job.source, _in_words(error))
        return None


def _say(job: Job, where: tuple[str, str] | None, status: str, beside: dict[str, str]) -> None:
    if where is None:
        return
    # The status is written last, so that it never stands beside an older reason.
    tags = beside | {"status": status}
    try:
        with connect(tracking_uri(state_folder())) as client:
            for part, value in tags.items():
                key = _key(job.target, part)
                registry_call(client.set_model_version_tag, *where, key, value[:LONGEST_REASON])
    except Exception as error:
        log.warning("the status of %s could not be written: %s", job.source, _in_words(error))


def _key(target: str, part: str) -> str:
    return f"quantgate.{target}.{part}"


def _kind(error: BaseException) -> str:
    """Return `infrastructure` if an error is worth a retry, such as unforeseen errors and cancellations, else `input`."""
    is_input = isinstance(error, QuantgateError) and error.exit_code != EXIT_INFRASTRUCTURE
    return "input" if is_input else "infrastructure"


def _in_words(error: BaseException) -> str:
    if isinstance(error, QuantgateError):
        return f"{error.found}; expected {error.expected}; {error.fix}"
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
