from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from uuid import UUID

from shepherd_core.adapters.agent_file import OperatorsAgent
from shepherd_core.agent.takeover import AgentProgram, RunResult
from shepherd_core.bmdb.agents import installation
from shepherd_core.bmdb.listings import decommissioning, provisioning
from shepherd_core.bmdb.listings.decommissioning import RemovalRequest
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.session import Session
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors.machine import SshTimedOut
from shepherd_core.domain.pb.agent_pb2 import Node, TakeoverInit, TakeoverResponse, TakeoverSuccess
from shepherd_core.domain.pb.callback_pb2 import AgentHardwareReport, HeartbeatRequest, MetropolisInstallation
from shepherd_core.domain.provider import Provider
from shepherd_core.domain.remediation import AgentState, provider_steps
from shepherd_core.loops.initializer import Initializer
from shepherd_core.loops.recoverer import Recoverer
from shepherd_core.providers.static import StaticProvider
from shepherd_core.rules.drift import FRESH_SECONDS

from tests.chaos.crash_points import Points
from tests.chaos.scenarios.loops import Arranged
from tests.chaos.stage.environment import SESSION_SECONDS, START, Environment, provision, run, update
from tests.support import defaults
from tests.support.agents.signed_agent import SignedAgent, endpoint
from tests.support.bmdb.fleet import HOUR, Fleet

_WANTED = MetropolisInstallation(image_url="https://images.example.com/metropolis.img", image_sha256=bytes(32))
_HARDWARE = HeartbeatRequest(hardware_report=AgentHardwareReport(report=Node(manufacturer="ours")))
_REPAIRED = "somebody: repaired"

Cast = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Machines:
    """Machines that answer every takeover immediately; a ``takeover.Dialer``."""

    states: Mapping[str, AgentState] = field(default_factory=dict)
    """What the agent at each address does, and others do not."""
    usual: AgentState | None = AgentState.RUNS
    """What the others do; None: they do not answer."""
    keys: dict[str, bytes] = field(default_factory=dict)
    """The key of the latest agent, by machine id."""
    host_key = "ssh-ed25519 AAAA"

    def dial(self, address: str, pinned_host_key: str | None, deadline: Deadline) -> Machines:
        state = self.states.get(address, self.usual)
        if state is None:
            message = f"{address} does not answer"
            raise SshTimedOut(message)
        return Machines({}, state, self.keys)

    def start(self, program: AgentProgram, stdin: bytes, deadline: Deadline) -> RunResult:
        init = TakeoverInit.FromString(stdin)
        key = self.keys[init.machine_id] = os.urandom(32)
        answer = TakeoverResponse(success=TakeoverSuccess(init_message=init, key=key))
        return RunResult(answer.SerializeToString(), b"", 0)

    def agent_state(self, path: str, deadline: Deadline) -> AgentState:
        assert self.usual is not None
        return self.usual

    def close(self) -> None: ...


class _Loops(Arranged):
    provider = "equinix"
    rules = defaults.RULES

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._machines = Machines()

    @property
    def loops(self) -> dict[str, Callable[[Environment, Points], object]]:
        return {
            "provisioner": self._provision,
            "initializer": self._initialize,
            "recoverer": self._recover,
            "updater": self._update,
        }

    def _adapter(self, environment: Environment, points: Points) -> Provider:
        return self.access.equinix(environment, points.clock)

    def _provision(self, environment: Environment, points: Points) -> object:
        # The vanished machine counts until it is forgotten.
        limit = environment.limit + 1
        return provision(self._adapter(environment, points), environment.connect(), points.clock, limit)

    def _initialize(self, environment: Environment, points: Points) -> object:
        agent, machines = OperatorsAgent(__file__).fetch(), points.stepped(self._machines)
        loop = Initializer(self._adapter(environment, points), machines, lambda: (agent, b""), START)
        return run(loop, self.provider, environment.connect(), points.clock)

    def _recover(self, environment: Environment, points: Points) -> object:
        provider = self._adapter(environment, points)
        loop = Recoverer(provider, provider_steps(provider), self.rules)
        return run(loop, self.provider, environment.connect(), points.clock)

    def _update(self, environment: Environment, points: Points) -> object:
        return update(self._adapter(environment, points), environment.connect(), points.clock)


COMMANDS = ("forget", "heartbeat", "install", "report", "resume", "retry", "unquarantine")
"""The names of what ``OperatorsAndAgents.commands`` returns."""


class OperatorsAndAgents(_Loops):
    """
    Concurrent commands and agent reports; the Initializer runs afterwards.

    They meet on a quarantined machine, paused and in backoff, and on one that vanished, whose agent never reported
    and may do so at any moment.
    """

    name = "operators"
    reservations = 0
    _quarantined: UUID
    _pause: UUID
    _vanished: SignedAgent

    def __init__(self, fleet: Fleet, *chosen: str) -> None:
        """Run the *chosen* commands; without any, two or three are drawn."""
        super().__init__(fleet)
        self._chosen = chosen

    def arrange(self) -> Environment:
        fleet, environment = self._fleet, Environment(self._fleet, reservations=self.reservations)
        (self._quarantined,) = environment.unhealthy(1)
        fleet.quarantine(self._quarantined, "test")
        fleet.sql(
            "INSERT INTO work_backoff VALUES (:id, 'ShepherdAgentStart', now() + interval '1 minute', 'test', 60)",
            id=self._quarantined,
        )
        self._pause = pauses.pause(
            fleet.connection, owner="somebody", reason="new memory", machine_id=self._quarantined
        )
        self._vanished = SignedAgent(fleet)
        environment.api.forget(environment.at_provider(self._vanished.machine_id))
        return environment

    def cast(self, environment: Environment, points: Points, chance: Random) -> Cast:
        commands = self.commands(environment, points)
        return {name: commands[name] for name in self._chosen or chance.sample(COMMANDS, chance.randint(2, 3))}

    def tick(self, environment: Environment, points: Points) -> object:
        return self._initialize(environment, points)

    def missing(self, environment: Environment) -> list[str]:
        rows = self._fleet.sql(
            "SELECT 1 FROM machine_need n WHERE n.machine_id = :id AND n.process = 'ShepherdAgentStart' "
            "AND NOT EXISTS (SELECT 1 FROM pauses x WHERE x.machine_id = n.machine_id)",
            id=self._quarantined,
        )
        return [f"{self._quarantined} has no agent"] if rows else []

    def commands(self, environment: Environment, points: Points) -> Cast:
        connect, machine_id = environment.connect, self._quarantined
        return {
            "unquarantine": lambda: remediation.unquarantine(connect(), machine_id, reason=_REPAIRED),
            "resume": lambda: pauses.resume(connect(), self._pause),
            "retry": lambda: remediation.retry(connect(), machine_id, reason=_REPAIRED),
            "install": lambda: self._install(environment, machine_id),
            "forget": lambda: self._forget(environment, points),
            "report": lambda: self._report(environment, points, self._vanished, _HARDWARE),
            "heartbeat": lambda: self._report(environment, points, self._vanished),
        }

    def _install(self, environment: Environment, machine_id: UUID) -> object:
        connection = environment.connect()
        return installation.request(connection, machine_id, _WANTED, installation.load(connection, machine_id))

    def _forget(self, environment: Environment, points: Points) -> None:
        order = RemovalRequest("me", "it is slow", FRESH_SECONDS)
        with closing(Session.open(environment.connect(), points.clock, "forget", "chaos", SESSION_SECONDS)) as session:
            if provisioning.take_lock(session, "equinix") is not None:
                decommissioning.forget(session, "equinix", self._vanished.machine_id, order)

    def _report(
        self, environment: Environment, points: Points, agent: SignedAgent, message: HeartbeatRequest | None = None
    ) -> object:
        request = points.aside(lambda: agent.request(message))
        return endpoint(environment.connect()).handle(request)


class FleetOperation(OperatorsAndAgents):
    """Free capacity, machines that need their agent, unhealthy ones, one of which reports again, and healthy ones."""

    name = "all loops"
    reservations = 2
    _fresh: UUID
    _unhealthy: list[UUID]
    _back: SignedAgent

    def arrange(self) -> Environment:
        fleet, environment = self._fleet, super().arrange()
        self._machines = Machines()
        self._fresh = fleet.provided_machine()
        environment.at_provider(self._fresh)
        self._unhealthy = environment.unhealthy(3)
        back = self._unhealthy[1]
        self._back = SignedAgent(fleet, back)
        fleet.sql(
            "UPDATE machine_agent_started SET agent_started_at = now() - interval '3 hours' WHERE machine_id = :id",
            id=back,
        )
        fleet.sql("INSERT INTO machine_agent_heartbeat VALUES (:id, now() - interval '2 hours', 0)", id=back)
        environment.add_healthy(12)
        environment.limit = len(environment.api.snapshot()) + self.reservations
        return environment

    def cast(self, environment: Environment, points: Points, chance: Random) -> Cast:
        actors: list[tuple[str, Callable[[], object]]] = [
            *((name, partial(loop, environment, points)) for name, loop in self.loops.items()),
            ("agent", lambda: self._report(environment, points, self._back)),
            ("operator who pauses", lambda: self._pause_one(environment)),
            ("operator who installs", lambda: self._install(environment, self._fresh)),
            *self.commands(environment, points).items(),
        ]
        chosen = chance.choices(actors, k=chance.randint(2, 4))
        return {f"{name} {number}": call for number, (name, call) in enumerate(chosen, 1)}

    def _pause_one(self, environment: Environment) -> object:
        connection = environment.connect()
        return pauses.pause(connection, owner="somebody", reason="new memory", machine_id=self._unhealthy[2])

    def tick(self, environment: Environment, points: Points) -> object:
        for loop in self.loops.values():
            loop(environment, points)
        running = [UUID(machine_id) for machine_id in self._machines.keys]
        points.aside(lambda: environment.fleet.report(running))
        return None

    def missing(self, environment: Environment) -> list[str]:
        found = environment.unprovided(environment.limit)
        keys = self._fleet.sql(
            "SELECT p.machine_id, a.agent_public_key FROM machine_provided p "
            "LEFT JOIN machine_agent_started a ON a.machine_id = p.machine_id "
            "WHERE NOT EXISTS (SELECT 1 FROM pauses x WHERE x.machine_id = p.machine_id)"
        )
        for machine_id, key in keys:
            expected = self._machines.keys.get(str(machine_id), key)
            if key is None or key != expected:
                found.append(f"{machine_id} is known by the key {key}, and not by {expected}, that of its agent")
        return found


class SshBrake(_Loops):
    """
    Machines that did not come back after a reboot, and cannot be reached: one step an hour is taken.

    Of six, one is given time after its step, and one is not known to be dead if its function was killed.
    """

    name = "recoverer, SSH brake"
    rules = replace(defaults.RULES, limits=replace(defaults.LIMITS, dead_share=1))
    _dead: list[UUID]

    def arrange(self) -> Environment:
        self._machines = Machines(usual=None)
        environment = Environment(self._fleet, steps_per_hour=1)
        environment.add_healthy(3)
        self._dead = [self._fleet.provided_machine() for _ in range(6)]
        environment.may_be_rebooted = {environment.at_provider(machine_id) for machine_id in self._dead}
        for machine_id in self._dead:
            self._fleet.make_overdue(machine_id)
        return environment

    def tick(self, environment: Environment, points: Points) -> object:
        self._recover(environment, points)
        return self._initialize(environment, points)

    def missing(self, environment: Environment) -> list[str]:
        taken = any("Attempted" in self._fleet.events(machine_id) for machine_id in self._dead)
        return [] if taken else ["no_machine_waits_without_end: none was recovered"]


class Rack(_Loops):
    """The loops of a deployment for machines of a list, which cannot restart them."""

    provider = "static"
    entries = tuple({"ID": f"rack-{number}", "Addr": f"192.0.2.{number}"} for number in range(1, 7))

    def arrange_beside(self, environment: Environment, machines: Machines) -> None:
        self._machines = machines
        reporting = [self._fleet.reporting_machine(0, HOUR) for _ in self.entries[2:]]
        for machine_id, entry in zip([self._fleet.provided_machine(), *reporting], self.entries[1:], strict=True):
            self._fleet.change(
                f"UPDATE machine_provided SET provider_id = '{entry['ID']}' WHERE machine_id = '{machine_id}'"
            )
        environment.healthy += reporting

    def _adapter(self, environment: Environment, points: Points) -> Provider:
        return StaticProvider(lambda: json.dumps(self.entries).encode())


class TwoStacks(FleetOperation):
    """All loops of two deployments of different providers that share a BMDB; one loop may be invoked twice."""

    name = "two stacks"

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._rack = Rack(fleet)

    def arrange(self) -> Environment:
        environment = super().arrange()
        self._rack.arrange_beside(environment, self._machines)
        return environment

    @property
    def loops(self) -> dict[str, Callable[[Environment, Points], object]]:
        return super().loops | {f"{name} of the rack": loop for name, loop in self._rack.loops.items()}

    def cast(self, environment: Environment, points: Points, chance: Random) -> Cast:
        chosen = [chance.choice(list(loops)) for loops in (super().loops, self._rack.loops)]
        of_both = [chosen[0], f"{chosen[1]} of the rack", *chance.choices(list(self.loops), k=2)]
        return {
            f"{name} {number}": partial(self.loops[name], environment, points) for number, name in enumerate(of_both, 1)
        }

    def missing(self, environment: Environment) -> list[str]:
        rows = self._fleet.sql("SELECT provider_id FROM machine_provided WHERE provider = :name", name=Rack.provider)
        missing = {entry["ID"] for entry in Rack.entries} ^ {row[0] for row in rows}
        return super().missing(environment) + [f"{each} is not recorded, or not in the list" for each in missing]
