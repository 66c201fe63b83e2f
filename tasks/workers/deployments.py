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
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import TERMINAL_STATES, ConcurrencyOptions, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.events import DeploymentEventTrigger
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound
from prefect.utilities.callables import parameter_schema

# Names of deployments in earlier versions, by flow. The server cannot rename one.
FORMER_NAMES = {
    "quantize": "on-demand",
    "validate": "on-demand",
    "sweep": "nightly",
    "rollback": "on-demand",
    "watch": "hourly",
    "retention": "nightly",
}


@dataclass(frozen=True)
class DeployedObject:
    """An object on the server: its name, outcome and path in the UI.

    Outcomes: `made`, `changed`, `as it was`, `left out`; of a deployment under its former name `removed` or `kept`.
    """

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
    found = read_deployment(client, flow.name, spec["name"])
    former = read_deployment(client, flow.name, FORMER_NAMES.get(flow.name))
    known = found or former
    is_active = {one.slug: one.active for one in known.schedules} if known else {}
    timed: list[dict[str, Any]] = [
        {"schedule": _schedule(one), "slug": slug, "active": is_active.get(slug, True)}
        for slug, one in schedules.items()
    ]
    if found is None:
        identity = client.create_deployment(
            flow_id=client.create_flow(flow),
            name=spec["name"],
            concurrency_limit=limit,
            paused=former.paused if former else False,
            schedules=[DeploymentScheduleCreate(**one) for one in timed],
            **wanted,
        )
        outcome, detail = "made", ""
    else:
        identity = found.id
        differing = _differing(found, wanted, limit, schedules)
        if differing:
            updated = [DeploymentScheduleUpdate(**one) for one in timed]
            client.update_deployment(found.id, DeploymentUpdate(concurrency_limit=limit, schedules=updated, **wanted))
        outcome, detail = ("changed", ", ".join(differing)) if differing else ("as it was", "")
    yield DeployedObject(
        f"{flow.name}/{spec['name']}", outcome, detail, f"/deployments/deployment/{identity}", identity
    )
    for trigger in spec.get("triggers", ()):
        event = DeploymentEventTrigger.model_validate(trigger)
        event.set_deployment_id(identity)
        yield apply_automation(client, event.as_automation())
    if former:
        yield _retire(client, former, f"{flow.name}/{former.name}")


def read_deployment(client: SyncPrefectClient, flow: str, name: str | None) -> DeploymentResponse | None:
    """Return the deployment of a flow by its name; None if there is none."""
    try:
        return client.read_deployment_by_name(f"{flow}/{name}") if name else None
    except ObjectNotFound:
        return None


def _retire(client: SyncPrefectClient, former: DeploymentResponse, name: str) -> DeployedObject:
    """Delete a deployment under its former name, or keep it for runs of it: the server resumes none without its deployment."""
    for schedule in former.schedules:
        client.delete_deployment_schedule(former.id, schedule.id)
    runs = client.read_flow_runs(
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[former.id])),
        flow_run_filter=FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(not_any_=list(TERMINAL_STATES)))
        ),
    )
    left = [run for run in runs if not (run.auto_scheduled and run.state_type == StateType.SCHEDULED)]
    if left:
        detail = f"runs that have not ended: {len(left)}; deploy again after them"
        return DeployedObject(name, "kept", detail, f"/deployments/deployment/{former.id}", former.id)
    client.delete_deployment(former.id)
    return DeployedObject(name, "removed", "former name")


def _wanted(spec: dict[str, Any], flow: Flow[..., Any]) -> dict[str, Any]:
    """Return the fields in which a deployment of the file is compared with the server's."""
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
        "parameter_openapi_schema": _form(flow),
        "enforce_parameter_schema": spec["enforce_parameter_schema"],
        "concurrency_options": ConcurrencyOptions(collision_strategy=strategy) if strategy else None,
    }


def _form(flow: Flow[..., Any]) -> dict[str, Any]:
    """Return the schema of a flow's parameters, from which Prefect's pages make the form, with positions at every level.

    Prefect gives them to the parameters alone, and PostgreSQL does not keep the order of the keys of `jsonb`.
    """
    schema = parameter_schema(flow).model_dump_for_openapi()
    for model in schema.get("definitions", {}).values():
        for position, field in enumerate(model.get("properties", {}).values()):
            field["position"] = position
    return schema


def _schedule(spec: dict[str, Any]) -> CronSchedule:
    return CronSchedule(cron=spec["cron"], timezone=spec["timezone"])


def _differing(
    found: DeploymentResponse, wanted: dict[str, Any], limit: int | None, schedules: dict[str, dict[str, Any]]
) -> list[str]:
    differing = [name for name, value in wanted.items() if getattr(found, name) != value]
    there = found.global_concurrency_limit
    if (there.limit if there else None) != limit:
        differing.append("concurrency_limit")
    if {one.slug: one.schedule for one in found.schedules} != {slug: _schedule(one) for slug, one in schedules.items()}:
        differing.append("schedules")
    return differing


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
