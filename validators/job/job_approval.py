"""The job's rule for approval of the winner by a person."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from validators.job.settings_base import Settings


class ApprovalRule(Settings):
    """Rule for approval of the winner by a person before promotion."""

    required: bool = False
    """Suspend the run before promotion until a person approves or rejects the winner, in the Prefect UI or by `quantgate
    approve` and `quantgate reject`. Needs a run of a deployment. See docs/approval.md."""
    expires_hours: Annotated[float, Field(gt=0, le=720)] = 72.0
    """Hours to wait for an answer. Then the run ends and promotes nothing."""
