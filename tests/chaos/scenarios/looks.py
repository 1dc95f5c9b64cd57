"""Machines whose heartbeats get lost: the Recoverer looks at each before it would interrupt it."""

from uuid import UUID

from shepherd_core.bmdb.machines import lookup
from shepherd_core.bmdb.work import history
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors.machine import SshTimedOut
from shepherd_core.domain.remediation import AgentState
from shepherd_core.loops.look import Look

from tests.chaos.crash_points import Context
from tests.chaos.scenarios.fleet_operation import Machines
from tests.chaos.scenarios.loops import Recoveries
from tests.chaos.stage.environment import Environment

_HEALTHY = 16
_LOOK_SECONDS = 10
_RUNS, _INSTALLS, _DEAD = "192.0.2.1", "192.0.2.2", "192.0.2.3"


class _Answering(Machines):
    """One machine that answers over SSH."""

    def __init__(self, state: AgentState) -> None:
        super().__init__()
        self._state = state

    def agent_state(self, path: str, deadline: Deadline) -> AgentState:
        return self._state


class _Dialer:
    """A ``takeover.Dialer`` of these machines."""

    def dial(self, address: str, pinned_host_key: str | None, deadline: Deadline) -> _Answering:
        if address == _DEAD:
            message = f"{address} does not answer"
            raise SshTimedOut(message)
        return _Answering(AgentState.RUNS if address == _RUNS else AgentState.INSTALLS)


class Looks(Recoveries):
    """Three machines that do not report: of one the agent runs, on one an installation goes on, one is dead."""

    name = "recoverer, look"

    def arrange(self) -> Environment:
        fleet = self._fleet
        environment = Environment(fleet, SystemClock())
        self._back = None
        self._alive = {address: self._at(address) for address in (_RUNS, _INSTALLS)}
        dead = self._at(_DEAD)
        self._unhealthy = [dead]
        for machine_id in self._alive.values():
            environment.machine_at_provider(machine_id)
        environment.may_be_rebooted = {environment.machine_at_provider(dead)}
        environment.healthy = [fleet.reporting_machine(60) for _ in range(_HEALTHY)]
        for machine_id in environment.healthy:
            environment.machine_at_provider(machine_id)
        return environment

    def _at(self, address: str) -> UUID:
        machine_id = self._fleet.unhealthy_machine()
        self._fleet.sql(
            "UPDATE machine_provided SET provider_ip_address = :at WHERE machine_id = :id", at=address, id=machine_id
        )
        self._fleet.sql(
            "INSERT INTO machine_host_key VALUES (:id, :key, now())", id=machine_id, key=_Answering.host_key
        )
        return machine_id

    def look(self, points: Context) -> Look:
        return Look(points.stepped(_Dialer()), "/root/agent", _LOOK_SECONDS, lambda _: None)

    def missing(self, environment: Environment) -> list[str]:
        connection = environment.fleet.connection
        taken = {
            address: {each.step for each in history.read_history(connection, machine_id) if each.event == "Looked"}
            for address, machine_id in self._alive.items()
        }
        wanted = {_RUNS: {"restart-agent"}, _INSTALLS: {"await-installation"}}
        found = [
            f"{address}: {taken[address]}, not {wanted[address]}"
            for address in wanted
            if taken[address] != wanted[address]
        ]
        shown = lookup.show_machine(connection, self._alive[_INSTALLS])
        if shown.agent_started_at is None:
            found.append("the agent in an installation counts as ended")
        return super().missing(environment) + found
