"""
Shepherd's cost a month on AWS: a formula with named prices and assumptions.

    make cost                                        # 10, 1,000 and 100,000 machines
    python bench/cost.py --machines 500 --set heartbeat_minutes=5 --set failures_per_machine=2

The prices are inputs (list prices of us-east-1 without the free tier, as of the date below): check them before you
rely on a figure. The sum does not include your database; set its price with ``--set database=…``.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields, replace

PRICES_OF = "2025-01"
"""From the pricing pages of Lambda, API Gateway, EC2 (traffic), EventBridge and CloudWatch on aws.amazon.com."""
_HOURS = 730
_MINUTES = _HOURS * 60
_FIRST_MILLIONS = 300.0


@dataclass(frozen=True)
class Inputs:
    """Prices in US dollars, assumptions in the units of their names."""

    # Prices.
    lambda_gb_second: float = 0.0000133334
    """arm64"""
    lambda_million_requests: float = 0.20
    api_million_requests: float = 1.00
    """For an HTTP API, the first 300 million requests of a month."""
    api_million_more_requests: float = 0.90
    traffic_gb: float = 0.09
    """To the internet; inbound traffic is free."""
    scheduler_million_events: float = 1.00
    logs_gb: float = 0.50
    custom_metric: float = 0.30
    alarm: float = 0.10
    dashboard: float = 0.0
    """templates/dashboard.yaml is no part of a deployment: 3 dollars, after the three that an account has free."""
    database: float = 0.0

    # The deployment, as in template.yaml.
    loops: int = 4
    ticks_per_minute: float = 1.0
    memory_gb: float = 0.5
    initializer_memory_gb: float = 1.0
    alarms: int = 28
    """The metrics of alarms: AWS charges for each."""
    metrics: int = 1
    """Written in each month; up to seven more while an alarm has a reason."""

    # Activity.
    idle_seconds: float = 0.05
    """Billed for a warm invocation with nothing to do."""
    agent_start_seconds: float = 0.2
    """Billed for one agent start: two seconds, ten machines at the same time."""
    failures_per_machine: float = 1.0
    """Agent starts and recoveries of one machine in a month."""
    listing_seconds_per_thousand: float = 2.0
    """Billed for the Provisioner to list and compare a thousand machines."""
    health_check_seconds_per_thousand: float = 0.05
    """Billed for the Recoverer to check a thousand healthy machines, once in each heartbeat timeout."""
    heartbeat_timeout_minutes: float = 10.0
    update_minutes: float = 60.0
    """Between two listings of the Updater, while all machines are steady."""
    tick_log_kb: float = 1.2
    heartbeat_minutes: float = 1.0
    """Between two heartbeats of a machine."""
    heartbeat_seconds: float = 0.01
    """Billed for a heartbeat: half a millisecond on a whole core, and one round trip to the database."""
    heartbeat_answer_kb: float = 6.0
    """Sent for a heartbeat: half a kB for the answer, the rest for the TLS handshake of each new connection."""


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """The amounts that AWS charges for, in a month or another time."""

    months: float
    ticks: float
    starts: float
    """Agent starts and recoveries."""
    gb_seconds: float
    """Of the loops."""
    heartbeats: float
    heartbeat_gb_seconds: float


def month(machines: int, inputs: Inputs) -> dict[str, float]:
    """Return the dollars of a month by purpose."""
    ticks = inputs.loops * inputs.ticks_per_minute * _MINUTES
    listings = inputs.ticks_per_minute * _MINUTES + _MINUTES / inputs.update_minutes
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
    heartbeats = machines * _MINUTES / inputs.heartbeat_minutes
    return dollars(
        Amounts(
            months=1,
            ticks=ticks,
            starts=starts,
            gb_seconds=gb_seconds,
            heartbeats=heartbeats,
            heartbeat_gb_seconds=heartbeats * inputs.heartbeat_seconds * inputs.memory_gb,
        ),
        inputs,
    )


def dollars(amounts: Amounts, inputs: Inputs) -> dict[str, float]:
    """Return the cost of *amounts* by purpose; uses only the prices of *inputs* and the size of a log line."""
    return {
        "heartbeats: API": _api(amounts.heartbeats / 1e6, inputs),
        "heartbeats: Lambda": amounts.heartbeats / 1e6 * inputs.lambda_million_requests
        + amounts.heartbeat_gb_seconds * inputs.lambda_gb_second,
        "heartbeats: traffic": amounts.heartbeats * inputs.heartbeat_answer_kb / 1e6 * inputs.traffic_gb,
        "loops: time": amounts.gb_seconds * inputs.lambda_gb_second,
        "loops: requests": amounts.ticks / 1e6 * inputs.lambda_million_requests,
        "schedules": amounts.ticks / 1e6 * inputs.scheduler_million_events,
        "logs": (amounts.ticks * inputs.tick_log_kb + amounts.starts * 2) / 1e6 * inputs.logs_gb,
        "metrics": amounts.months * inputs.metrics * inputs.custom_metric,
        "alarms": amounts.months * inputs.alarms * inputs.alarm,
        "dashboard": amounts.months * inputs.dashboard,
        "database": amounts.months * inputs.database,
    }


def _api(millions: float, inputs: Inputs) -> float:
    first = min(millions, _FIRST_MILLIONS)
    return first * inputs.api_million_requests + (millions - first) * inputs.api_million_more_requests


def table(fleets: list[int], inputs: Inputs) -> str:
    """Return the table, with a column for each number of machines."""
    months = {machines: month(machines, inputs) for machines in fleets}
    lines = [
        f"US dollars a month (prices of {PRICES_OF}), by machines",
        f"{'':<19}" + "".join(f"{machines:>12,}" for machines in months),
        *(f"{what:<19}" + "".join(f"{each[what]:>12,.2f}" for each in months.values()) for what in month(0, inputs)),
        f"{'sum':<19}" + "".join(f"{sum(each.values()):>12,.2f}" for each in months.values()),
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, nargs="+", default=[10, 1_000, 100_000])
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another price or assumption")
    arguments = parser.parse_args()
    names = {field.name for field in fields(Inputs)}
    changes: dict[str, float] = {}
    for item in arguments.set:
        name, _, value = item.partition("=")
        if name not in names:
            parser.error(f"--set {item}: unknown input {name!r}; the inputs are {', '.join(sorted(names))}")
        try:
            changes[name] = float(value)
        except ValueError:
            parser.error(f"--set {item}: {value!r} is not a number")
    inputs = replace(Inputs(), **changes)  # type: ignore[arg-type]  # counts may be fractions here
    print(table(arguments.machines, inputs))


if __name__ == "__main__":
    main()
