"""Step 8, before the promotion: if the job requires an approval, the run is suspended until a person answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal
from uuid import UUID

from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from prefect.runtime import deployment, flow_run
from pydantic import ConfigDict, Field

from tasks.records.publish_report import report_of
from tasks.records.result_document import Findings, conclude_awaiting
from tasks.records.run_record import record_awaiting
from tasks.registry.champion_slot import place_of
from tasks.reporting.markdown import question_markdown, verdict_markdown
from tasks.run.context import Run, log
from tasks.run.loaded_run import LoadedRun
from tasks.run.step import step
from validators.errors import JobError
from validators.plain_text import as_markdown
from validators.records.result import Result
from validators.records.run import Champion, Variant, device_class
from validators.records.verdicts import SignOff

DEPLOYMENT = "quantize/quantize-model"
# Label of the flow run, so that listing waiting runs need not read artifacts.
CANDIDATE_LABEL = "quantgate.candidate"
# Limit of answers read for one run; each belongs to a different question.
_ANSWERS = 100
# A step of its own, so that it is tried again: the page links the run, whose address MLflow knows.
_written = step("write the report")(report_of)


class Answer(RunInput):
    """Fields of the approval form; the server refuses an answer that does not match."""

    model_config = ConfigDict(title="Approval", extra="forbid", use_attribute_docstrings=True)

    decision: Literal["approve", "reject"]
    """`approve` promotes the variant; with `reject` nothing is promoted."""
    who: Annotated[str, Field(min_length=1, max_length=200)]
    """Your name: it is recorded with the promoted version."""
    comment: Annotated[str, Field(max_length=2000)] = ""
    """Why; recorded too."""


def check_approval(run: Run) -> None:
    """Raise if the job requires an approval and the run cannot be suspended.

    Raises:
        JobError: the run has no deployment, or is inside another flow run, so that nothing could resume it.
    """
    if not run.job.approval.required or run.job.source_is_file:
        return
    if deployment.id is None or flow_run.parent_flow_run_id is not None:
        raise JobError(
            found="`approval.required` is set, but the run does not belong to a deployment",
            expected="a run of a deployment, which can be suspended and resumed after the answer",
            fix=f"start it from the deployment {DEPLOYMENT}, or with --no-promote to name the winner only",
        )


def sign_off(run: LoadedRun, record: str, findings: Findings) -> SignOff | None:
    """Return the answer about the winner; None if no approval is required, or the winner is the champion already.

    The first call for a winner and a champion does not return: it suspends the flow run and ends the process. The flow run
    starts from the top once there is an answer. Call this outside any device slot.
    """
    best, champion = findings.best, findings.champion_before
    assert best is not None and best.variant is not None
    variant = best.variant
    if not run.job.approval.required or (champion is not None and champion.identity == variant.identity):
        return None
    question = question_key(variant.identity, champion)
    said = _answer(question, variant, champion)
    if said is None:
        _ask(run, record, findings, question)
        raise AssertionError("the flow run goes on without an answer")
    log.info("%s: %s", best.candidate, said)
    return said


def question_key(identity: str, champion: Champion | None) -> str:
    """Return the key that ties an answer to one variant, by its identity, and the version that it would replace.

    >>> question_key("0123456789abcdef0123", None)
    '0123456789abcdef-after-none'
    """
    return f"{identity[:16]}-after-{champion.version if champion else 'none'}"


def _answer(question: str, variant: Variant, champion: Champion | None) -> SignOff | None:
    """Return the latest answer to this question that the server accepted, or None."""
    with get_client(sync_client=True) as client:
        found = client.filter_flow_run_input(UUID(flow_run.id), f"suspended-{question}-", _ANSWERS, set())
    answers = [one for one in found if one.key.endswith("-response")]
    if not answers:
        return None
    last = max(answers, key=lambda one: one.created or datetime.min.replace(tzinfo=UTC))
    said = Answer(**last.decoded_value)
    return SignOff(
        decision="approved" if said.decision == "approve" else "rejected",
        by=said.who,
        comment=said.comment,
        at=f"{last.created:%Y-%m-%dT%H:%M:%SZ}",
        digest=variant.digest,
        replaces=champion.version if champion else None,
        identity=variant.identity,
    )


def _question(run: LoadedRun, findings: Findings, result: Result, address: str | None) -> str:
    best, champion = findings.best, findings.champion_before
    assert best is not None and best.variant is not None
    place = place_of(run.source.name, run.job.target)
    replaces = str(champion) if champion else "nothing: it would be the first"
    if champion and champion.device and device_class(champion.device) != device_class(run.inventory.device_key):
        replaces += f", which was approved on another device: {device_class(champion.device)}"
    return question_markdown(result, best.variant.digest, f"{place.name}@{place.alias}", replaces, address)


def _ask(run: LoadedRun, record: str, findings: Findings, question: str) -> None:
    """Publish the question with the report, and suspend the flow run."""
    assert findings.best is not None
    seconds = max(1, round(run.job.approval.expires_hours * 3600))
    until = f"{datetime.now(UTC) + timedelta(seconds=seconds):%Y-%m-%d %H:%M UTC}"
    result = conclude_awaiting(run.job, findings, run.clock, until)
    page = _written(run, record, findings, result)
    address = record_awaiting(run, record, result, page)
    text = _question(run, findings, result, address)
    create_markdown_artifact(
        f"{text}\n{verdict_markdown(result)}", key="approval", description=as_markdown(result.reason)
    )
    with get_client(sync_client=True) as client:
        client.update_flow_run_labels(UUID(flow_run.id), {CANDIDATE_LABEL: findings.best.candidate})
    log.info("%s waits for an approval until %s", findings.best.candidate, until)
    # The key includes the attempt: a run that is retried after its question expired asks again.
    form = Answer.with_initial_data(description=text)
    suspend_flow_run(wait_for_input=form, timeout=seconds, key=f"{question}-{flow_run.run_count}")
