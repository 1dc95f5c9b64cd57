"""The time from the last check of a machine to its reboot, in which a heartbeat comes too late."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work.work import Work
from shepherd_core.domain.backoff import Backoff
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors import NoLongerDue
from shepherd_core.domain.machine import ProviderId
from shepherd_core.domain.remediation import provider_steps
from shepherd_core.loops import recoverer, runner
from shepherd_core.providers.equinix.adapter import EquinixProvider
from shepherd_core.rules.circuit_breaker import Limit
from shepherd_core.settings.providers.equinix import EquinixSettings

from bench.fleet import BenchFleet
from bench.results import Result, Table, median
from simulator.environment.postgres import Postgres
from simulator.providers.equinix.api import EquinixApi
from simulator.providers.kit.hardware import NoHardware
from tests.support import defaults

_CALLS = 3
"""Requests that the provider takes at a time."""


class RecordingProvider(EquinixProvider):
    """Records when the provider has accepted a reboot, which is not before the machine was rebooted."""

    def __init__(self, settings: EquinixSettings, clock: SystemClock) -> None:
        super().__init__(settings, lambda: "key", lambda: "", clock)
        self.accepted: dict[str, float] = {}

    def reboot(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """Reboot, and record the time."""
        super().reboot(provider_id, deadline)
        self.accepted[provider_id] = time.perf_counter()


class RecordingRecoverer(recoverer.Recoverer):
    """Records when each machine was last checked: the time at which the statement was sent."""

    checked: dict[UUID, float]
    statements = 0

    def no_longer_due(self, session: Session, works: Sequence[Work]) -> Mapping[Work, NoLongerDue]:
        """Check, and record the time."""
        self.statements += 1
        self.checked |= dict.fromkeys([work.machine_id for work in works], time.perf_counter())
        return super().no_longer_due(session, works)


def measure(*, quick: bool) -> Result:
    """Return the figures."""
    with Postgres() as postgres:
        sizes = (1, 10) if quick else (1, 10, 50)
        rows = [[machines, *_measured(BenchFleet(postgres, 1000, due=1), machines)] for machines in sizes]
    result = Result()
    result.tables.append(
        Table(
            f"From the last check until the reboot is accepted; the provider takes {_CALLS} requests at a time",
            ["machines at once", "statements", "median ms", "longest ms"],
            rows,
        )
    )
    result.at_most("longest time in seconds", 1, max(row[-1] for row in rows) / 1000)
    return result


def _measured(fleet: BenchFleet, machines: int) -> tuple[int, float, float]:
    """Have *machines* rebooted; return the number of checking statements, and median and longest time in ms."""
    clock = SystemClock()
    with EquinixApi(NoHardware(), project_id="bench", api_key="key", reservations=0) as api:
        unhealthy = [row[0] for row in fleet.admin.run(f"SELECT machine_id FROM machines LIMIT {machines}")]
        devices = {
            machine_id: api.add_active_device(f"shepherd-{machine_id}", racked=False).id for machine_id in unhealthy
        }
        fleet.admin.run("UPDATE machine_provided SET provider = 'equinix'")
        fleet.admin.run("UPDATE machine_due SET provider = 'equinix'")
        for machine_id, device in devices.items():
            for statement in (
                f"UPDATE machine_provided SET provider_id = '{device}'",
                "UPDATE machine_agent_heartbeat SET agent_heartbeat_at = now() - interval '1 hour'",
                "UPDATE machine_due SET not_before = CASE process WHEN 'ShepherdRecovery' THEN now() END",
            ):
                fleet.admin.run(f"{statement} WHERE machine_id = '{machine_id}'")
        settings = EquinixSettings(
            equinix_api_url=api.url,
            equinix_project_id="bench",
            credential_parameter="/key",
            equinix_device_prefix="shepherd-",
            equinix_key_label="shepherd",
        )
        provider = RecordingProvider(settings, clock)
        loop = RecordingRecoverer(
            provider,
            provider_steps(provider),
            replace(
                defaults.RULES,
                backoff=Backoff(60, 60, 1),
                limits=replace(defaults.LIMITS, unhealthy=Limit(1000, 1)),
            ),
        )
        loop.checked = {}
        runner.run(
            loop,
            "equinix",
            fleet.connect(),
            clock,
            runner.RunLimits(concurrency=machines, machine_seconds=60, session_seconds=60),
            deadline=Deadline(clock, 120),
            runtime_info="bench",
        )
        times = [
            1000 * (provider.accepted[device] - loop.checked[machine_id]) for machine_id, device in devices.items()
        ]
    return loop.statements, median(times), max(times)
