"""The cost of a month by purpose, and how soon a dead machine is found."""

import math

from shepherd_core.settings.rules import INTERVALS

from bench.cost.inputs import Inputs

_HOURS = 730
_MINUTES = _HOURS * 60
_FIRST_MILLIONS = 300.0


def month(machines: int, inputs: Inputs) -> dict[str, float]:
    """Return the dollars of a month by purpose, without database and network."""
    ticks = inputs.loops * inputs.ticks_per_minute * _MINUTES
    starts = machines * inputs.failures_per_machine
    per_thousand = machines / 1000
    listing = per_thousand * inputs.listing_seconds_per_thousand
    # Of the Provisioner's listings, one lasts into the next minutes if it is long: a second one does not begin.
    listed = min(inputs.ticks_per_minute * _MINUTES / inputs.provisioner_minutes * listing, _MINUTES * 60)
    checked = _MINUTES / inputs.heartbeat_timeout_minutes * per_thousand * inputs.health_check_seconds_per_thousand
    gb_seconds = (
        ticks * inputs.idle_seconds * (inputs.memory_gb + inputs.ssh_memory_gb) / 2
        + (listed + _MINUTES / inputs.update_minutes * listing) * inputs.memory_gb
        + (starts * inputs.agent_start_seconds + checked) * inputs.ssh_memory_gb
    )
    requests = heartbeats(machines, inputs)
    decryptions = inputs.secrets * _MINUTES / inputs.secret_minutes
    return {
        "heartbeats: API": inputs.http_api * _api(requests / 1e6, inputs),
        "heartbeats: requests": requests / 1e6 * inputs.lambda_million_requests,
        "heartbeats: time": requests * inputs.request_ms / 1000 * inputs.api_memory_gb * inputs.lambda_gb_second,
        "heartbeats: traffic": requests * inputs.request_bytes / 1e9 * inputs.traffic_gb,
        "loops: time": gb_seconds * inputs.lambda_gb_second,
        "loops: requests": ticks / 1e6 * inputs.lambda_million_requests,
        "schedules": ticks / 1e6 * inputs.scheduler_million_events,
        "settings: S3": (ticks + _MINUTES) / 1e6 * inputs.s3_million_requests,
        "secrets: KMS": decryptions / 1e6 * inputs.kms_million_requests,
        "logs": (ticks * inputs.tick_log_kb + starts * 2) / 1e6 * inputs.logs_gb,
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
    return hourly * _HOURS + traffic
