"""The job's approval: whether a person decides on the winner before it is promoted."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from validators.job.settings_base import Settings


class ApprovalRule(Settings):
    """Whether a person approves the winner before it is promoted."""

    required: bool = False
    """Suspend the run before promotion until somebody approves or rejects, in the Prefect UI or by `quantgate approve` and
    `quantgate reject`; needs a run of a deployment. See docs/approval.md."""
    expires_hours: Annotated[float, Field(gt=0, le=720)] = 72.0
    """After this many hours without an answer the run ends, and nothing is promoted."""
