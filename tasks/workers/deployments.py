"""Deployments of `infra/prefect.yaml` and automations on a Prefect server.

Rejected: `prefect deploy --all`, which stops at the first flow that does not import, creates neither pools nor automations,
enables again what an operator switched off, and does not report what it changed.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentScheduleUpdate, DeploymentUpdate
from prefect.client.schemas.objects import ConcurrencyOptions
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.events import DeploymentEventTrigger
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound
from prefect.utilities.callables import parameter_schema

# Fields in which a deployment of the file is compared with the server's.
_FIELDS = (
    "entrypoint",
    "description",
    "tags",
    "parameters",
    "work_pool_name",
    "work_queue_name",
    "job_variables",
    "parameter_openapi_schema",
    "enforce_parameter_schema",
    "concurrency_options",
)


@dataclass(frozen=True)
class DeployedObject:
    """An object on the server: its name, the outcome (`made`, `changed`, `as it was`, `left out`), and its path in the UI."""

    name: str
    outcome: str
    detail: str = ""
    path: str = ""
    deployment: UUID | None = None


def apply_deployments(client: SyncPrefectClient, file: Path) -> Iterator[DeployedObject]:
    """Create or update every deployment of the file, with its schedules and triggers; unchanged ones are left alone.

    The operator decides whether a deployment, schedule or trigger is switched on: that state is kept.
    """
    for spec in yaml.safe_load(file.read_text(encoding="utf-8"))["deployments"]:
        try:
            flow = _load(spec["entrypoint"])
        except ImportError as error:
            yield DeployedObject(f"{spec['entrypoint']} ({spec['name']})", "left out", f"does not import: {error}")
            continue
        yield from _apply(client, spec, flow)


def _load(entrypoint: str) -> Flow[..., Any]:
    module, _, name = entrypoint.rpartition(".")
    found = getattr(importlib.import_module(module), name, None)
    if not isinstance(found, Flow):
        raise ImportError(f"{module} has no flow {name}")
    return found


def _apply(client: SyncPrefectClient, spec: dict[str, Any], flow: Flow[..., Any]) -> Iterator[DeployedObject]:
    wanted = _wanted(spec, flow)
    limit = (spec.get("concurrency_limit") or {}).get("limit")
    schedules = {one["slug"]: one for one in spec.get("schedules", ())}
    try:
        found = client.read_deployment_by_name(f"{flow.name}/{spec['name']}")
    except ObjectNotFound:
        found = None
    if found is None:
        identity = client.create_deployment(
            flow_id=client.create_flow(flow),
            name=spec["name"],
            concurrency_limit=limit,
            schedules=[DeploymentScheduleCreate(schedule=_schedule(one), slug=slug) for slug, one in schedules.items()],
            **wanted,
        )
        outcome, detail = "made", ""
    else:
        identity = found.id
        differing = _differing(found, wanted, limit, schedules)
        if differing:
            _update(client, found, wanted, limit, schedules)
        outcome, detail = ("changed", ", ".join(differing)) if differing else ("as it was", "")
    yield DeployedObject(
        f"{flow.name}/{spec['name']}", outcome, detail, f"/deployments/deployment/{identity}", identity
    )
    for trigger in spec.get("triggers", ()):
        yield apply_automation(client, _automation(trigger, identity))


def _wanted(spec: dict[str, Any], flow: Flow[..., Any]) -> dict[str, Any]:
    limit = spec.get("concurrency_limit") or {}
    strategy = limit.get("collision_strategy")
    return {
        "entrypoint": spec["entrypoint"],
        "description": spec["description"],
        "tags": spec["tags"],
        "parameters": spec.get("parameters", {}),
        "work_pool_name": spec["work_pool"]["name"],
        "work_queue_name": spec["work_pool"]["work_queue_name"],
        "job_variables": spec["work_pool"].get("job_variables", {}),
        "parameter_openapi_schema": parameter_schema(flow).model_dump_for_openapi(),
        "enforce_parameter_schema": spec["enforce_parameter_schema"],
        "concurrency_options": ConcurrencyOptions(collision_strategy=strategy) if strategy else None,
    }


def _schedule(spec: dict[str, Any]) -> CronSchedule:
    return CronSchedule(cron=spec["cron"], timezone=spec["timezone"])


def _differing(
    found: DeploymentResponse, wanted: dict[str, Any], limit: int | None, schedules: dict[str, dict[str, Any]]
) -> list[str]:
    differing = [name for name in _FIELDS if getattr(found, name) != wanted[name]]
    there = found.global_concurrency_limit
    if (there.limit if there else None) != limit:
        differing.append("concurrency_limit")
    if {one.slug: one.schedule for one in found.schedules} != {slug: _schedule(one) for slug, one in schedules.items()}:
        differing.append("schedules")
    return differing


def _update(
    client: SyncPrefectClient,
    found: DeploymentResponse,
    wanted: dict[str, Any],
    limit: int | None,
    schedules: dict[str, dict[str, Any]],
) -> None:
    is_active = {one.slug: one.active for one in found.schedules}
    updated = [
        DeploymentScheduleUpdate(schedule=_schedule(one), slug=slug, active=is_active.get(slug, True))
        for slug, one in schedules.items()
    ]
    client.update_deployment(found.id, DeploymentUpdate(concurrency_limit=limit, schedules=updated, **wanted))


def _automation(spec: dict[str, Any], deployment: UUID) -> AutomationCore:
    trigger = DeploymentEventTrigger.model_validate(spec)
    trigger.set_deployment_id(deployment)
    return trigger.as_automation()


def apply_automation(client: SyncPrefectClient, wanted: AutomationCore) -> DeployedObject:
    """Create an automation, or update the one of its name; one that is switched off stays off."""
    found = next(iter(client.read_automations_by_name(wanted.name)), None)
    if found is None:
        identity, outcome = client.create_automation(wanted), "made"
    else:
        identity = found.id
        # The server takes the owner only on creation, and never returns it.
        fields = wanted.model_dump(exclude={"owner_resource"}) | {"enabled": found.enabled}
        same = found.model_dump(exclude={"id", "owner_resource"}) == fields
        if not same:
            client.update_automation(identity, AutomationCore.model_validate(fields))
        outcome = "as it was" if same else "changed"
    return DeployedObject(f"automation {wanted.name}", outcome, path=f"/automations/automation/{identity}")
