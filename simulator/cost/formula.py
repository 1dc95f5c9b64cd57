"""The cost of a month by purpose, and how soon a dead machine is found."""

import math
from dataclasses import dataclass

from shepherd_core.settings.rules import INTERVALS

from simulator.cost.inputs import Inputs

HOURS = 730
"""Of a month, as AWS counts it."""
_MINUTES = HOURS * 60
_FIRST_MILLIONS = 300.0


@dataclass(frozen=True)
class Activity:
    """What the functions do in a month."""

    machines: float
    ticks: float
    """Invocations of loops."""
    requests: float
    """Of agents: invocations of the agent API."""
    starts: float
    """Of agents, over SSH."""
    listing_seconds: float
    """Of Provisioner and Updater."""
    log_kb: float


def month(machines: int, inputs: Inputs) -> dict[str, float]:
    """Return the dollars of a month by purpose, without database and network."""
    ticks = inputs.loops * inputs.ticks_per_minute * _MINUTES
    starts = machines * inputs.failures_per_machine
    listing = listing_seconds(machines, inputs)
    # Of the Provisioner's listings, one lasts into the next minutes if it is long: a second one does not begin.
    listed = min(inputs.ticks_per_minute * _MINUTES / inputs.provisioner_minutes * listing, _MINUTES * 60)
    listed += _MINUTES / inputs.update_minutes * listing
    log_kb = ticks * inputs.tick_log_kb + starts * 2
    return bill(Activity(machines, ticks, heartbeats(machines, inputs), starts, listed, log_kb), inputs)


def listing_seconds(machines: float, inputs: Inputs) -> float:
    """Return the seconds for which one listing is billed."""
    return machines / 1000 * inputs.listing_seconds_per_thousand


def bill(did: Activity, inputs: Inputs) -> dict[str, float]:
    """Return the dollars of a month by purpose for what the functions *did*, without database and network."""
    checks = _MINUTES / inputs.heartbeat_timeout_minutes * did.machines / 1000
    gb_seconds = (
        did.ticks * inputs.idle_seconds * (inputs.memory_gb + inputs.ssh_memory_gb) / 2
        + did.listing_seconds * inputs.memory_gb
        + (did.starts * inputs.agent_start_seconds + checks * inputs.health_check_seconds_per_thousand)
        * inputs.ssh_memory_gb
    )
    decryptions = inputs.secrets * _MINUTES / inputs.secret_minutes
    return {
        "heartbeats: API": inputs.http_api * _api(did.requests / 1e6, inputs),
        "heartbeats: requests": did.requests / 1e6 * inputs.lambda_million_requests,
        "heartbeats: time": did.requests * inputs.request_ms / 1000 * inputs.api_memory_gb * inputs.lambda_gb_second,
        "heartbeats: traffic": did.requests * inputs.request_bytes / 1e9 * inputs.traffic_gb,
        "loops: time": gb_seconds * inputs.lambda_gb_second,
        "loops: requests": did.ticks / 1e6 * inputs.lambda_million_requests,
        "schedules": did.ticks / 1e6 * inputs.scheduler_million_events,
        "settings: S3": (did.ticks + _MINUTES) / 1e6 * inputs.s3_million_requests,
        "secrets: KMS": decryptions / 1e6 * inputs.kms_million_requests,
        "logs": did.log_kb / 1e6 * inputs.logs_gb,
        "metrics": inputs.metrics * inputs.custom_metric,
        "alarms": (inputs.alarms + inputs.http_api * inputs.http_api_alarms) * inputs.alarm,
        "dashboard": inputs.dashboard,
    }


def heartbeats(machines: int, inputs: Inputs) -> float:
    """Return the number of heartbeats in a month."""
    return machines * _MINUTES * 60 / inputs.interval_seconds


def found_after(inputs: Inputs) -> float:
    """Return the minutes after the last heartbeat of a dead machine within which the Recoverer works on it."""
    timeout = max(inputs.heartbeat_timeout_minutes, INTERVALS * inputs.interval_seconds / 60)
    return timeout + 1 / inputs.ticks_per_minute


def _api(millions: float, inputs: Inputs) -> float:
    first = min(millions, _FIRST_MILLIONS)
    return first * inputs.api_million_requests + (millions - first) * inputs.api_million_more_requests


def container(machines: int, inputs: Inputs) -> float:
    """Return the dollars of a month for containers that are always on, behind a load balancer, and the same traffic."""
    second = machines / inputs.interval_seconds
    cores = second * inputs.heartbeat_cpu_ms / 1000 / inputs.container_use
    count = max(inputs.containers, math.ceil(cores / 0.25))
    gb_hour = second * 3600 * inputs.kept_bytes / 1e9
    # A connection is open for a minute: the usual time for which a load balancer keeps an idle one.
    units = max(second / 25, second * 60 / 3_000, gb_hour)
    hourly = (
        count * (0.25 * inputs.fargate_core_hour + 0.5 * inputs.fargate_gb_hour)
        + inputs.balancer_hour
        + units * inputs.balancer_unit_hour
        + (2 + count) * inputs.address_hour
    )
    traffic = heartbeats(machines, inputs) * inputs.resumed_bytes / 1e9 * inputs.traffic_gb
    return hourly * HOURS + traffic
