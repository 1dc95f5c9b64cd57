"""
Shepherd's cost a month on AWS: a formula with named prices and assumptions.

    make cost                                        # 10, 1,000, 10,000 and 100,000 machines, and the levers
    python bench/cost.py --machines 500 --set interval_seconds=60 --set failures_per_machine=2

The prices are inputs (list prices of us-east-1 without the free tier, as of the date below): check them before you
rely on a figure. The sum does not include your database; set its price with ``--set database=…``. What a heartbeat
takes is read from the latest figures that ``make bench BENCH=heartbeats`` has published (docs/performance).
"""

import argparse
import json
import math
import runpy
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

from shepherd_core.settings.functions import AgentApiSettings

PRICES_OF = "2025-01"
"""From the pricing pages of Lambda, API Gateway, EC2 (traffic, addresses), EventBridge, CloudWatch, Fargate and Elastic
Load Balancing on aws.amazon.com."""
MACHINES = [10, 1_000, 10_000, 100_000]
_HOURS = 730
_MINUTES = _HOURS * 60
_FIRST_MILLIONS = 300.0
_CORE_GB = 1.769
"""The memory with which a function gets a whole core."""
_ROOT = Path(__file__).parents[1]
_INTERVAL = AgentApiSettings.model_fields["heartbeat_interval_seconds"]
_COLLECT_SECONDS = runpy.run_path(str(_ROOT / "agent/shepherd_agent/relay/times.py"))["collect_seconds"]
"""From the agent's source."""


@cache
def measured() -> dict[str, float]:
    """Return the latest figures of a heartbeat."""
    latest = max(_ROOT.glob("docs/performance/*/heartbeats.json"), key=lambda file: file.parent.name)
    figures: dict[str, float] = json.loads(latest.read_text(encoding="utf-8"))["figures"]
    return figures


def _figure(name: str) -> float:
    return round(measured()[name], 3)


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
    api_memory_gb: float = 0.5
    alarms: int = 28
    """The metrics of alarms: AWS charges for each."""
    http_api_alarms: int = 1
    """The further ones of a deployment with an HTTP API."""
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
    provisioner_minutes: float = 1.0
    """Between two listings of the Provisioner."""
    update_minutes: float = 60.0
    """Between two listings of the Updater, while all machines are steady."""
    tick_log_kb: float = 1.2
    interval_seconds: float = float(_INTERVAL.default)
    """Between two heartbeats of a machine."""
    http_api: int = 0
    """1: agents report to the HTTP API. 0: to the function URL, which has no price."""
    kept_share: float = 0.0
    """Of the heartbeats, how many find their connection kept: none if the interval is longer than servers wait."""
    resumed_share: float = 1.0
    """Of the others, how many resume a TLS session."""
    relay_machines: float = 1.0
    """Machines that report through the same relay; 1: no relay."""
    relay_seconds: float = 0.0
    """For which a relay collects heartbeats; 0: for as long as agents let it, with this interval."""

    # A heartbeat, as measured.
    heartbeat_cpu_ms: float = _figure("batch_1_cpu_ms")
    """On a whole core."""
    heartbeat_wait_ms: float = 2.0
    """For your database, not as measured, which is that of the bench: a round trip in the region, and a commit."""
    relayed_cpu_ms: float = _figure("batch_500_cpu_ms")
    """Of each heartbeat in a large batch."""
    relayed_wait_ms: float = 0.1
    """Of each further heartbeat in a batch; likewise."""
    relayed_answer_bytes: float = _figure("batch_500_answer_bytes") + 37
    """With the mac and the interval, which the agents of the bench did not get."""
    new_bytes: float = _figure("new_function_url_received_bytes")
    """Sent to a machine for a heartbeat over a new connection, TCP and TLS included."""
    resumed_bytes: float = _figure("resumed_function_url_received_bytes")
    kept_bytes: float = _figure("kept_function_url_received_bytes")

    # A container that is always on, for comparison.
    fargate_core_hour: float = 0.03238
    """arm64"""
    fargate_gb_hour: float = 0.00356
    balancer_hour: float = 0.0225
    balancer_unit_hour: float = 0.008
    """For 25 new connections a second, or 3,000 open ones, or 1 GB an hour."""
    address_hour: float = 0.005
    """Of each public IPv4 address: two of the load balancer, one of each container."""
    containers: int = 2
    """Of a quarter of a core and half a GB, in two zones."""
    container_use: float = 0.5
    """The share of a core's time that is planned with."""

    @property
    def batch(self) -> float:
        """Return the heartbeats in a request: the one that a relay begins with, and those that come while it waits."""
        seconds = self.relay_seconds or float(_COLLECT_SECONDS(self.interval_seconds))
        return 1 + (self.relay_machines - 1) * min(1.0, seconds / self.interval_seconds)

    @property
    def request_ms(self) -> float:
        """Return what is billed for a request, in whole milliseconds."""
        speed = min(1.0, self.api_memory_gb / _CORE_GB)
        rest = self.batch - 1
        cpu = self.heartbeat_cpu_ms + rest * self.relayed_cpu_ms
        return float(math.ceil(cpu / speed + self.heartbeat_wait_ms + rest * self.relayed_wait_ms))

    @property
    def request_bytes(self) -> float:
        """Return what is sent for a request. A relay has its connection kept, because it sends often."""
        kept = 1.0 if self.relay_machines > 1 else self.kept_share
        anew = self.resumed_share * self.resumed_bytes + (1 - self.resumed_share) * self.new_bytes
        return kept * self.kept_bytes + (1 - kept) * anew + (self.batch - 1) * self.relayed_answer_bytes


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
    requests = heartbeats(machines, inputs) / inputs.batch
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
    """Return how many there are in a month."""
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


def table(fleets: list[int], inputs: Inputs) -> str:
    """Return the table, with a column for each number of machines."""
    months = {machines: month(machines, inputs) for machines in fleets}
    lines = [
        f"US dollars a month (prices of {PRICES_OF}), by machines",
        f"{'':<21}" + "".join(f"{machines:>12,}" for machines in months),
        *(f"{what:<21}" + "".join(f"{each[what]:>12,.2f}" for each in months.values()) for what in month(0, inputs)),
        f"{'sum':<21}" + "".join(f"{sum(each.values()):>12,.2f}" for each in months.values()),
    ]
    return "\n".join(lines)


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


def levers(inputs: Inputs) -> dict[str, Inputs]:
    """Return what the sums are compared for."""
    return {
        "as above": inputs,
        "every minute": replace(inputs, interval_seconds=60),
        "every 10 minutes": replace(inputs, interval_seconds=600),
        "HTTP API": replace(inputs, http_api=1),
        "no session resumed": replace(inputs, resumed_share=0),
        "connection kept": replace(inputs, kept_share=1),
        "relays for 20": replace(inputs, relay_machines=20),
        "relays for 40": replace(inputs, relay_machines=40),
        "relays for 500": replace(inputs, relay_machines=500),
        "for 40, each minute": replace(inputs, relay_machines=40, interval_seconds=60),
        "for 40, and HTTP API": replace(inputs, relay_machines=40, http_api=1),
        "API with 256 MB": replace(inputs, api_memory_gb=0.25),
        "with dashboard": replace(inputs, dashboard=3.0),
        "Provisioner each 10'": replace(inputs, provisioner_minutes=10),
        "the same, and for 40": replace(inputs, provisioner_minutes=10, relay_machines=40),
        "before: all of these": replace(
            inputs, interval_seconds=60, http_api=1, resumed_share=0, dashboard=3.0, metrics=37, alarms=55
        ),
    }


def comparison(fleets: list[int], inputs: Inputs) -> str:
    """Return the table of the sums with each lever, and of containers."""
    lines = [f"{'sum, and with …':<21}" + "".join(f"{machines:>12,}" for machines in fleets)]
    for name, changed in levers(inputs).items():
        lines.append(f"{name:<21}" + "".join(f"{sum(month(each, changed).values()):>12,.2f}" for each in fleets))
    lines.append(f"{'containers':<21}" + "".join(f"{container(each, inputs):>12,.2f}" for each in fleets))
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, nargs="+", default=MACHINES)
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
    print(table(arguments.machines, inputs), comparison(arguments.machines, inputs), sep="\n\n")


if __name__ == "__main__":
    main()
