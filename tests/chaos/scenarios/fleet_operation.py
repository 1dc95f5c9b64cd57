"""All loops, an agent and operators, concurrently in one environment and on the same machines."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from uuid import UUID

from shepherd_core.adapters.agent_file import OperatorsAgent
from shepherd_core.agent.takeover import AgentProgram, RunResult
from shepherd_core.bmdb.agents import installation
from shepherd_core.bmdb.machines import pauses
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.pb.agent_pb2 import TakeoverInit, TakeoverResponse, TakeoverSuccess
from shepherd_core.domain.pb.callback_pb2 import MetropolisInstallation
from shepherd_core.domain.provider import Provider
from shepherd_core.domain.remediation import provider_steps
from shepherd_core.loops.initializer import Initializer
from shepherd_core.loops.recoverer import Recoverer

from tests.chaos.crash_points import Points
from tests.chaos.stage.access import START, Access, provision, run, update
from tests.chaos.stage.environment import Environment
from tests.chaos.stage.operators import COMMANDS, Operators
from tests.support import defaults
from tests.support.agents.signed_agent import SignedAgent, endpoint
from tests.support.bmdb.fleet import HOUR, Fleet

_HEALTHY = 12
_CAPACITY = 2


class Machines:
    """Machines that answer every takeover immediately; a ``takeover.Dialer``."""

    def __init__(self) -> None:
        self.keys: dict[str, bytes] = {}
        """The key of the latest agent, by machine id."""
        self._made = itertools.count(1)

    def dial(self, address: str, pinned_host_key: str | None, deadline: Deadline) -> Machines:
        return self

    host_key = "ssh-ed25519 AAAA"

    def start(self, program: AgentProgram, stdin: bytes, deadline: Deadline) -> RunResult:
        init = TakeoverInit.FromString(stdin)
        key = self.keys[init.machine_id] = next(self._made).to_bytes(32, "big")
        answer = TakeoverResponse(success=TakeoverSuccess(init_message=init, key=key))
        return RunResult(answer.SerializeToString(), b"", 0)

    def close(self) -> None: ...


class FleetOperation:
    """Free capacity, machines that need their agent, unhealthy ones, one of which reports again, and healthy ones."""

    name = "all loops"
    provider = "equinix"
    rules = defaults.RULES
    """Those of recovery."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._machines = Machines()
        self._fresh: UUID | None = None
        self._unhealthy: list[UUID] = []
        self._paused: UUID | None = None
        self._back: SignedAgent | None = None
        self._operators = Operators(fleet)

    def arrange(self) -> Environment:
        fleet = self._fleet
        self._machines = Machines()
        environment = Environment(fleet, SystemClock(), reservations=_CAPACITY)
        self._fresh = fleet.provided_machine()
        self._unhealthy = [fleet.unhealthy_machine() for _ in range(3)]
        self._back = SignedAgent(fleet, self._unhealthy[1])
        fleet.sql("UPDATE machine_agent_started SET agent_started_at = now() - interval '3 hours'")
        fleet.sql(
            "INSERT INTO machine_agent_heartbeat VALUES (:id, now() - interval '2 hours', 0)", id=self._unhealthy[1]
        )
        self._paused = self._unhealthy[2]
        environment.healthy = [fleet.reporting_machine(60) for _ in range(_HEALTHY)]
        ours = [self._fresh, *self._unhealthy, *environment.healthy]
        devices = {machine_id: environment.machine_at_provider(machine_id) for machine_id in ours}
        environment.may_be_rebooted = {devices[machine_id] for machine_id in self._unhealthy}
        self._operators.arrange(environment)
        environment.limit = len(environment.api.snapshot()) + _CAPACITY
        fleet.sql("UPDATE machines SET machine_created_at = now() - interval '1 day'")
        return environment

    def cast(self, environment: Environment, points: Points, chance: Random) -> dict[str, Callable[[], object]]:
        actors: list[tuple[str, Callable[[], object]]] = [
            *((name, lambda loop=loop: loop(environment, points)) for name, loop in self.loops.items()),
            ("agent", lambda: self._report(environment, points)),
            ("operator who pauses", lambda: self._pause(environment)),
            ("operator who installs", lambda: self._install(environment)),
            *self._operators.commands(environment, points).items(),
        ]
        chosen = chance.choices(actors, k=chance.randint(2, 4))
        return {f"{name} {number}": call for number, (name, call) in enumerate(chosen, 1)}

    @property
    def loops(self) -> dict[str, Callable[[Environment, Points], object]]:
        return {
            "provisioner": self._provision,
            "initializer": self._initialize,
            "recoverer": self._recover,
            "updater": self._update,
        }

    def tick(self, environment: Environment, points: Points) -> object:
        for loop in self.loops.values():
            loop(environment, points)
        running = [machine_id for machine_id in self._machines.keys if self._machines.keys[machine_id]]
        points.aside(
            lambda: environment.fleet.sql(
                "INSERT INTO machine_agent_heartbeat "
                "SELECT machine_id, clock_timestamp(), 0 FROM machine_agent_started "
                "WHERE machine_id = ANY(CAST(:ids AS uuid[])) "
                "ON CONFLICT (machine_id) DO UPDATE SET agent_heartbeat_at = excluded.agent_heartbeat_at",
                ids=running,
            )
        )
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

    # The invocations.

    def _adapter(self, environment: Environment, points: Points) -> Provider:
        return Access().equinix(environment, points.clock)

    def _provision(self, environment: Environment, points: Points) -> object:
        # The vanished machine counts until it is forgotten.
        limit = environment.limit + 1
        return provision(self._adapter(environment, points), environment.connect(), points.clock, limit)

    def _initialize(self, environment: Environment, points: Points) -> object:
        agent = OperatorsAgent(__file__).fetch()
        loop = Initializer(
            self._adapter(environment, points), points.stepped(self._machines), lambda: (agent, b""), START
        )
        return run(loop, self.provider, environment.connect(), points.clock)

    def _recover(self, environment: Environment, points: Points) -> object:
        provider = self._adapter(environment, points)
        loop = Recoverer(provider, provider_steps(provider), self.rules)
        return run(loop, self.provider, environment.connect(), points.clock)

    def _update(self, environment: Environment, points: Points) -> object:
        return update(self._adapter(environment, points), environment.connect(), points.clock, HOUR)

    def _report(self, environment: Environment, points: Points) -> object:
        """Let the agent of an unhealthy machine report again."""
        assert self._back is not None
        request = points.aside(self._back.request)
        return endpoint(environment.connect()).handle(request)

    def _pause(self, environment: Environment) -> object:
        return pauses.pause(environment.connect(), owner="somebody", reason="new memory", machine_id=self._paused)

    def _install(self, environment: Environment) -> object:
        assert self._fresh is not None
        connection = environment.connect()
        wanted = MetropolisInstallation(image_url="https://images.example.com/metropolis.img", image_sha256=bytes(32))
        return installation.request(connection, self._fresh, wanted, installation.load(connection, self._fresh))


class OperatorsAndAgents(FleetOperation):
    """Concurrent commands and agent reports; the Initializer runs afterwards."""

    name = "operators"

    def __init__(self, fleet: Fleet, *chosen: str) -> None:
        """Run the *chosen* commands; without any, two or three are drawn."""
        super().__init__(fleet)
        self._chosen = chosen

    def arrange(self) -> Environment:
        environment = Environment(self._fleet, SystemClock())
        self._operators.arrange(environment)
        self._fleet.sql("UPDATE machines SET machine_created_at = now() - interval '1 day'")
        return environment

    def tick(self, environment: Environment, points: Points) -> object:
        return self._initialize(environment, points)

    def missing(self, environment: Environment) -> list[str]:
        return self._operators.left()

    def cast(self, environment: Environment, points: Points, chance: Random) -> dict[str, Callable[[], object]]:
        commands = self._operators.commands(environment, points)
        return {name: commands[name] for name in self._chosen or chance.sample(COMMANDS, chance.randint(2, 3))}
