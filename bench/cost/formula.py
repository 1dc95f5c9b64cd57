"""The amounts that AWS charges for in a month, and their cost by purpose."""

import math
from dataclasses import dataclass

from bench.cost.inputs import Inputs

_HOURS = 730
_MINUTES = _HOURS * 60
_FIRST_MILLIONS = 300.0


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """The amounts that AWS charges for, in a month or another time."""

    months: float
    ticks: float
    starts: float
    """Agent starts and recoveries."""
    gb_seconds: float
    """Of the loops."""
    requests: float
    """Of the agent API."""
    request_gb_seconds: float
    request_gb: float
    """Sent in answer."""


def month(machines: int, inputs: Inputs) -> dict[str, float]:
    """Return the dollars of a month by purpose."""
    ticks = inputs.loops * inputs.ticks_per_minute * _MINUTES
    listings = inputs.ticks_per_minute * _MINUTES / inputs.provisioner_minutes + _MINUTES / inputs.update_minutes
    starts = machines * inputs.failures_per_machine
    per_thousand = machines / 1000
    gb_seconds = (
        ticks * inputs.idle_seconds * inputs.memory_gb
        + starts * inputs.agent_start_seconds * inputs.initializer_memory_gb
        + listings * per_thousand * inputs.listing_seconds_per_thousand * inputs.memory_gb
        + _MINUTES
        / inputs.heartbeat_timeout_minutes
        * per_thousand
        * inputs.health_check_seconds_per_thousand
        * inputs.memory_gb
    )
    requests = heartbeats(machines, inputs)
    return dollars(
        Amounts(
            months=1,
            ticks=ticks,
            starts=starts,
            gb_seconds=gb_seconds,
            requests=requests,
            request_gb_seconds=requests * inputs.request_ms / 1000 * inputs.api_memory_gb,
            request_gb=requests * inputs.request_bytes / 1e9,
        ),
        inputs,
    )


def heartbeats(machines: int, inputs: Inputs) -> float:
    """Return the number of heartbeats in a month."""
    return machines * _MINUTES * 60 / inputs.interval_seconds


def dollars(amounts: Amounts, inputs: Inputs) -> dict[str, float]:
    """Return the cost of *amounts* by purpose; uses only the prices of *inputs* and the size of a log line."""
    return {
        "heartbeats: API": inputs.http_api * _api(amounts.requests / 1e6, inputs),
        "heartbeats: requests": amounts.requests / 1e6 * inputs.lambda_million_requests,
        "heartbeats: time": amounts.request_gb_seconds * inputs.lambda_gb_second,
        "heartbeats: traffic": amounts.request_gb * inputs.traffic_gb,
        "loops: time": amounts.gb_seconds * inputs.lambda_gb_second,
        "loops: requests": amounts.ticks / 1e6 * inputs.lambda_million_requests,
        "schedules": amounts.ticks / 1e6 * inputs.scheduler_million_events,
        "logs": (amounts.ticks * inputs.tick_log_kb + amounts.starts * 2) / 1e6 * inputs.logs_gb,
        "metrics": amounts.months * inputs.metrics * inputs.custom_metric,
        "alarms": amounts.months * (inputs.alarms + inputs.http_api * inputs.http_api_alarms) * inputs.alarm,
        "dashboard": amounts.months * inputs.dashboard,
        "database": amounts.months * inputs.database,
    }


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
