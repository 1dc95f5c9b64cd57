"""The prices and assumptions of the cost formula, and the costs of a heartbeat that the bench measured."""

import math
from dataclasses import dataclass

from shepherd_core.settings.functions.services import AgentApiSettings

PRICES_OF = "2025-01"
"""From the pricing pages of Lambda, API Gateway, EC2 (traffic, addresses), EventBridge, S3, KMS, RDS, CloudWatch,
Fargate and Elastic Load Balancing on aws.amazon.com."""
_CORE_GB = 1.769
"""The memory with which a function gets a whole core."""
_INTERVAL = AgentApiSettings.model_fields["heartbeat_interval_seconds"]


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
    """3 with templates/dashboard.yaml, which is not part of a deployment; an account has three dashboards free."""
    s3_million_requests: float = 0.40
    kms_million_requests: float = 3.00
    database: float = 13.98
    """The smallest of RDS, db.t4g.micro with 20 GB; a large fleet needs more."""
    network: float = 36.50
    """A NAT gateway and its address, for functions in a VPC; 0 without."""

    # The deployment, as in template.yaml.
    loops: int = 4
    ticks_per_minute: float = 1.0
    memory_gb: float = 0.5
    """Of Provisioner and Updater."""
    ssh_memory_gb: float = 1.0
    """Of Initializer and Recoverer."""
    api_memory_gb: float = 0.5
    alarms: int = 27
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
    secrets: int = 8
    """That the loops read: the database's password and the credential of the provider, in each."""
    secret_minutes: float = 5.0
    """For which a loop keeps a secret."""
    tick_log_kb: float = 1.2
    interval_seconds: float = float(_INTERVAL.default)
    """Between two heartbeats of a machine."""
    http_api: int = 0
    """1: agents report to the HTTP API. 0: to the function URL, which has no price."""
    kept_share: float = 0.0
    """Of the heartbeats, how many find their connection kept: none if the interval is longer than servers wait."""
    resumed_share: float = 1.0
    """Of the others, how many resume a TLS session."""

    # A heartbeat, as docs/performance.md publishes it.
    heartbeat_cpu_ms: float = 0.487
    """On a whole core."""
    heartbeat_wait_ms: float = 2.0
    """For your database: a round trip in the region and a commit. Assumed: the bench measured with a local database."""
    new_bytes: float = 1988.0
    """Sent to a machine for a heartbeat over a new connection, TCP and TLS included."""
    resumed_bytes: float = 1201.0
    certificate_bytes: float = 4_000.0
    """What Amazon's chain of certificates is longer than that of the bench; assumed."""
    kept_bytes: float = 385.0

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
    """The share of a core's time that the plan uses."""

    @property
    def request_ms(self) -> float:
        """Return the billed time of a request, in whole milliseconds."""
        speed = min(1.0, self.api_memory_gb / _CORE_GB)
        return float(math.ceil(self.heartbeat_cpu_ms / speed + self.heartbeat_wait_ms))

    @property
    def request_bytes(self) -> float:
        """Return the bytes sent for a request."""
        anew = self.resumed_share * self.resumed_bytes + (1 - self.resumed_share) * (
            self.new_bytes + self.certificate_bytes
        )
        return self.kept_share * self.kept_bytes + (1 - self.kept_share) * anew
