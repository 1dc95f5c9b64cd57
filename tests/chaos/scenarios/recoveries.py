from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from shepherd_core.bmdb.machines import lookup
from shepherd_core.bmdb.machines.search import Search, matching
from shepherd_core.bmdb.wire import server
from shepherd_core.bmdb.work import history
from shepherd_core.domain.remediation import REBOOT, AgentState, provider_steps
from shepherd_core.loops.look import Look
from shepherd_core.loops.recoverer import Recoverer
from shepherd_core.operator.reboot import Reboot
from shepherd_core.recovery import Steps
from shepherd_core.rules.policy import step_of
from shepherd_core.telemetry import Metric

from simulator.environment.faults import FakeAnswer
from tests.chaos.crash_points import Context
from tests.chaos.scenarios.fleet_operation import Machines
from tests.chaos.scenarios.loops import Arranged
from tests.chaos.stage.environment import MACHINE_SECONDS, SESSION_SECONDS, Environment, provision, run, update
from tests.support import defaults

_STEPS = ["reboot"] * 3 + ["power-cycle"] * 2
"""Of the default policy, before it quarantines a machine."""
_RUNS, _INSTALLS = "192.0.2.1", "192.0.2.2"


class Recoveries(Arranged):
    """
    Two unhealthy machines, one that the provider does not know any more, healthy ones, and a paused unhealthy one.

    Another unhealthy machine reports again while the provider is asked about it, and for one all steps were taken.
    """

    name = "recoverer"
    policy = defaults.policy()
    at_once = 1
    _unhealthy: list[UUID]
    _back: tuple[UUID, str] | None = None
    _used_up: UUID | None = None

    def arrange(self) -> Environment:
        environment = Environment(self._fleet)
        back = self._fleet.unhealthy_machine()
        self._back = back, environment.at_provider(back)
        self._unhealthy = environment.unhealthy(2)
        # The one that comes back may be, until it has reported: in a process of its own the provider tells it nothing.
        environment.may_be_rebooted.add(self._back[1])
        environment.api.forget(environment.at_provider(self._fleet.unhealthy_machine()))
        environment.add_healthy(24)
        environment.add_paused()
        self._used_up = self._fleet.unhealthy_machine()
        environment.at_provider(self._used_up)
        for hours, step in enumerate(reversed(_STEPS), 1):
            for event, taken in (("Started", None), ("Attempted", step), ("Finished", None)):
                self._fleet.sql(
                    "INSERT INTO work_history (machine_id, process, event, step, timestamp) VALUES "
                    "(:id, 'ShepherdRecovery', :event, :step, clock_timestamp() - :hours * interval '1 hour')",
                    id=self._used_up,
                    event=event,
                    step=taken,
                    hours=hours,
                )
        return environment

    def tick(self, environment: Environment, points: Context) -> Mapping[Metric, float]:
        provider = self.access.equinix(environment, points.clock)
        provider.happening = lambda asked: points.aside(lambda: self._answer(environment, asked))
        rules = replace(defaults.RULES, policy=self.policy)
        loop = Recoverer(provider, provider_steps(provider), rules, self.look(points))
        connection = self.access.connect(environment)
        return run(loop, "equinix", connection, points.clock, self.at_once, self.access.machine_seconds)

    def look(self, points: Context) -> Look | None:
        return None

    def _answer(self, environment: Environment, asked: str) -> None:
        if self._back is None:
            return
        machine_id, provider_id = self._back
        heard = "UPDATE machine_agent_heartbeat SET agent_heartbeat_at = clock_timestamp() WHERE machine_id = :id"
        if asked == provider_id and self._fleet.sql(f"{heard} RETURNING 1", id=machine_id):
            environment.healthy.append(machine_id)
            environment.may_be_rebooted.discard(provider_id)

    def missing(self, environment: Environment) -> list[str]:
        found = []
        rebooted = {device.id for device in environment.api.snapshot() if "reboot" in device.actions_taken}
        for machine_id in self._unhealthy:
            shown = lookup.show_machine(environment.fleet.connection, machine_id)
            if shown.provider_id not in rebooted and not environment.counts_as_rebooted(machine_id):
                found.append(f"{machine_id} was not rebooted")
            if shown.agent_started_at is not None:
                found.append(f"the agent of {machine_id} still counts as started")
        if self._used_up and not lookup.show_machine(environment.fleet.connection, self._used_up).quarantined_at:
            found.append(f"{self._used_up} is not quarantined")
        return found


class ProviderOutage(Recoveries):
    """The provider answers 503 to all steps for longer than the whole policy takes."""

    name = "recoverer, provider outage"
    policy = defaults.policy("reboot:1:grace=60,quarantine")

    def arrange(self) -> Environment:
        environment = super().arrange()
        environment.api.faults.add(FakeAnswer(method="POST", path="/devices/{id}/actions", times=12, status=503))
        return environment

    def missing(self, environment: Environment) -> list[str]:
        rows = self._fleet.sql("SELECT machine_id FROM machine_quarantine")
        return [each for each in super().missing(environment) if not any(str(row[0]) in each for row in rows)]


class Reboots(Recoveries):
    """The Recoverer's machines; an operator reboots the first unhealthy one, until an attempt is on record."""

    name = "reboot"

    def tick(self, environment: Environment, points: Context) -> Any:
        machine_id, connection = self._unhealthy[0], environment.connect()
        if any(line.event == "Attempted" for line in history.read_history(connection, machine_id)):
            return super().tick(environment, points)
        provider = self.access.equinix(environment, points.clock)
        step = Reboot(
            provider=provider,
            connection=connection,
            clock=points.clock,
            step=step_of(defaults.RULES.policy, REBOOT),
            steps=Steps(provider_steps(provider), defaults.RULES.backoff),
            reset_after_seconds=defaults.RULES.reset_after_seconds,
            machine_seconds=MACHINE_SECONDS,
            session_seconds=SESSION_SECONDS,
        )
        machines = list(matching(connection, Search(machine_ids=(machine_id,))))
        return list(step.carry_out(machines, server.now(connection), "an operator: chaos", "chaos"))


class Crowd(Recoveries):
    name = "processes"

    def arrange(self) -> Environment:
        capacity, unhealthy, healthy = 6, 4, 30
        environment = Environment(self._fleet, reservations=capacity, margin_seconds=1.0)
        self._unhealthy = environment.unhealthy(unhealthy)
        environment.add_healthy(healthy)
        environment.limit = unhealthy + healthy + capacity - 1
        return environment

    def tick(self, environment: Environment, points: Context) -> Mapping[Metric, float]:
        provider, connection = self.access.equinix(environment, points.clock), self.access.connect(environment)
        provision(provider, connection, points.clock, environment.limit)
        update(provider, connection, points.clock)
        return super().tick(environment, points)

    def missing(self, environment: Environment) -> list[str]:
        return super().missing(environment) + environment.unprovided(environment.limit)


class Looks(Recoveries):
    """
    Three machines whose heartbeats get lost, so that the Recoverer looks at each before it would interrupt it.

    Of one the agent runs, on one an installation goes on, one is dead.
    """

    name = "recoverer, look"

    def arrange(self) -> Environment:
        environment = Environment(self._fleet)
        self._runs, self._installs, dead = environment.unhealthy(3)
        for address, machine_id in ((_RUNS, self._runs), (_INSTALLS, self._installs), ("192.0.2.3", dead)):
            self._fleet.sql(
                "UPDATE machine_provided SET provider_ip_address = :at WHERE machine_id = :id",
                at=address,
                id=machine_id,
            )
            self._fleet.sql(
                "INSERT INTO machine_host_key VALUES (:id, :key, now())", id=machine_id, key=Machines.host_key
            )
        self._unhealthy = [dead]
        environment.may_be_rebooted = {str(lookup.show_machine(self._fleet.connection, dead).provider_id)}
        environment.add_healthy(16)
        return environment

    def look(self, points: Context) -> Look:
        machines = Machines({_RUNS: AgentState.RUNS, _INSTALLS: AgentState.INSTALLS}, usual=None)
        return Look(points.stepped(machines), "/root/agent", 10, lambda _: None)

    def missing(self, environment: Environment) -> list[str]:
        connection, found = environment.fleet.connection, super().missing(environment)
        for machine_id, step in ((self._runs, "restart-agent"), (self._installs, "await-installation")):
            taken = {each.step for each in history.read_history(connection, machine_id) if each.event == "Looked"}
            if taken != {step}:
                found.append(f"{machine_id}: {taken}, not {step}")
        if lookup.show_machine(connection, self._installs).agent_started_at is None:
            found.append("the agent in an installation counts as ended")
        return found
