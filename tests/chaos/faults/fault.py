"""
The loops with an outside that can be bent: what the faults of the outside are tried on.

Each is a scenario as those of ``scenarios``, with the same world and the same
end, and differs in its ticks alone: they reach everything through a ``Way``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from shepherd_core.adapters.documents import AgentCache
from shepherd_core.adapters.ssh import SshDialer
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import queries
from shepherd_core.bmdb.work.work import HealthTimeouts
from shepherd_core.domain.backoff import Backoff
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.remediation import Timeouts
from shepherd_core.loops import runner
from shepherd_core.loops.initializer import Initializer, StartOptions
from shepherd_core.loops.provisioner import Provisioner, RateLimits
from shepherd_core.loops.recoverer import Recoverer, RecoveryRules
from shepherd_core.loops.runner import RunLimits
from shepherd_core.loops.updater import Updater
from shepherd_core.providers.equinix.adapter import EquinixProvider
from shepherd_core.providers.static import StaticProvider
from shepherd_core.rules.circuit_breaker import BreakerLimits, Limit
from shepherd_core.rules.provisioning import PlanLimits as ReconcileLimits
from shepherd_core.rules.remediation import DEFAULT_POLICY, parse_policy

from tests.chaos import scenarios
from tests.chaos.stage.environment import SESSION_SECONDS, World
from tests.support.bmdb.capacity import API_KEY, equinix_settings
from tests.support.bmdb.fleet import HOUR, PROVIDER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from uuid import UUID

    from shepherd_core.agent.takeover import AgentBinary
    from shepherd_core.domain.clock import Clock
    from shepherd_core.loops.base import Loop
    from shepherd_core.settings.functions import BmdbSettings
    from shepherd_core.telemetry import Metric

    from simulator.machines.pool import MachinePool
    from tests.support.bmdb.fleet import Fleet

MOODY_AGENT = (
    scenarios.AGENT.replace(
        "key = os.urandom(32)\n",
        """\
mood = os.path.join(os.path.dirname(os.path.realpath(sys.argv[0])), "mood")
mood = open(mood).read() if os.path.exists(mood) else ""
if mood == "hangs":
    time.sleep(1000)
if mood == "floods":
    for _ in range(64):
        sys.stdout.buffer.write(bytes(65536))
    sys.exit()
if mood == "talks garbage":
    sys.stdout.buffer.write(b"garbage")
    sys.exit()
if mood == "exits":
    sys.exit(1)
if mood == "is confused":
    init = field(1, b"another machine")
key = os.urandom(32)
""",
    ).replace("import os, sys", "import os, sys, time")
    + "#" * 100_000
)
"""It does as a file beside it says, and is long enough for an upload that can break in the middle."""

MACHINE_SECONDS = 60.0
ANSWER_SECONDS = 20.0
SETTLE_SECONDS = 120

F = TypeVar("F")


class Steps(Protocol):
    """What ticks run in: ``points.Points``, or less."""

    @property
    def clock(self) -> Clock:
        """Return the clock of what runs."""


class HurriedClock(SystemClock):
    """The real time, but nobody waits: who sleeps finds that the time has passed."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment, those included that were slept away."""
        return super().monotonic() + self._skipped

    def sleep(self, seconds: float) -> None:
        """Let *seconds* have passed."""
        self._skipped += max(0.0, seconds)


@dataclass
class Way:
    """How the functions reach the outside; as it is made, nothing is wrong with it."""

    bmdb: BmdbSettings | None = None
    """None: straight to the fleet's."""
    api_url: str | None = None
    """None: the world's."""
    api_key: Callable[[], str] = lambda: API_KEY
    addresses: dict[str, str] = field(default_factory=dict)
    """Where machines are reached that are not reached where they are, by name."""
    agent: Callable[[AgentBinary], AgentBinary] = lambda agent: agent
    """What is made of the agent between its fetching and its use."""
    agent_source: str | None = None
    """None: the scenario's."""
    prepare: Callable[[], object] = lambda: None
    """What the Initializer does before anything else, once a machine is due."""
    password: Callable[[], str] | None = None
    machine_seconds: float = MACHINE_SECONDS
    answer_seconds: float = ANSWER_SECONDS
    connect_seconds: float = 5.0

    def connect(self, world: World) -> Connection:
        """Return a connection to the BMDB."""
        connection = Connection(self.bmdb or world.fleet.settings, self.password, world.clock)
        world.fleet._connections.append(connection)
        return connection

    def equinix(self, world: World, clock: Clock) -> EquinixProvider:
        """Return the adapter of the world's project."""
        settings = equinix_settings(world.api)
        if self.api_url is not None:
            settings = settings.model_copy(update={"equinix_api_url": self.api_url})
        return EquinixProvider(settings, self.api_key, lambda: scenarios.PUBLIC_KEY, clock)


class Provisions(scenarios.Provisioning):
    """The Provisioner's scenario."""

    def __init__(self, fleet: Fleet) -> None:
        """Play in *fleet*."""
        super().__init__(fleet)
        self.way = Way()

    def tick(self, world: World, points: Steps) -> Mapping[Metric, float]:
        """See ``Scenario``."""
        return Provisioner(
            self.way.equinix(world, points.clock),
            self.way.connect(world),
            points.clock,
            ReconcileLimits(max_machines=world.limit, chunk=2, drift_limit=3, assimilate=False, forget_seconds=HOUR),
            RateLimits(session_seconds=SESSION_SECONDS, creation_seconds=0, penalty_seconds=HOUR),
        ).run(Deadline(points.clock, scenarios.INVOCATION_SECONDS), "chaos")


class Recoveries(scenarios.Recoveries):
    """The Recoverer's scenario in a smaller fleet, for it is tried in many ways."""

    def __init__(self, fleet: Fleet) -> None:
        """Play in *fleet*."""
        super().__init__(fleet)
        self.way = Way()

    def arrange(self) -> World:
        """See ``Scenario``."""
        fleet = self._fleet
        world = World(fleet, SystemClock())
        self._silent = [fleet.unhealthy_machine() for _ in range(2)]
        world.may_be_rebooted = {world.machine_at_provider(machine_id) for machine_id in self._silent}
        world.healthy = [fleet.unhealthy_machine(silent_for=60)]
        paused = fleet.unhealthy_machine()
        for machine_id in (*world.healthy, paused):
            world.machine_at_provider(machine_id)
        queries.pause(fleet.connection, owner="somebody", reason="new memory", machine_id=paused)
        return world

    def tick(self, world: World, points: Steps) -> Mapping[Metric, float]:
        """See ``Scenario``."""
        loop = Recoverer(
            self.way.equinix(world, points.clock),
            RecoveryRules(
                timeouts=HealthTimeouts(),
                backoff=Backoff(60, 3600, 1.2),
                policy=parse_policy(DEFAULT_POLICY, Timeouts(boot_wait=SETTLE_SECONDS)),
                limits=BreakerLimits(unhealthy=Limit(50, 1)),
            ),
        )
        return _run(loop, "equinix", self.way, world, points.clock)


class AgentStarts(scenarios.AgentStarts):
    """The Initializer's scenario, whose disk is full only if a fault fills it."""

    def __init__(self, fleet: Fleet, pool: MachinePool, private_key: str, folder: Path) -> None:
        """Play with all machines of *pool*, which stay."""
        super().__init__(fleet, pool, private_key, folder)
        self._agent.write_text(MOODY_AGENT)
        self.way = Way()

    def arrange(self) -> World:
        """See ``Scenario``."""
        world = super().arrange()
        self._park.free_disk(self._park.names()[0])
        return world

    def tick(self, world: World, points: Steps) -> Mapping[Metric, float]:
        """See ``Scenario``."""
        way = self.way
        entries = [
            {"ID": name, "Addr": way.addresses.get(name, self._park.address(name))} for name in self._park.names()
        ]
        loop = Initializer(
            StaticProvider(lambda: json.dumps(entries).encode()),
            SshDialer(self._key, "root", self._park.port, connect_timeout=way.connect_seconds),
            self._fetch,
            StartOptions(
                path="/root/agent",
                endpoint="agents.example:443",
                answer_seconds=way.answer_seconds,
                backoff=Backoff(300, 14_400, 1.2),
            ),
        )
        return _run(loop, PROVIDER, way, world, points.clock)

    def machines(self) -> dict[str, UUID]:
        """Return the machines by the names that they have in the pool."""
        return self._ids

    def _fetch(self) -> tuple[AgentBinary, bytes]:
        self.way.prepare()
        agents = AgentCache(self._agent.parent / "cache")
        return self.way.agent(agents.fetch(self.way.agent_source or str(self._agent))), b""


class Updates:
    """Machines about which the BMDB knows nothing yet, and one that the provider has lost."""

    name = "updater"

    def __init__(self, fleet: Fleet) -> None:
        """Play in *fleet*."""
        self._fleet = fleet
        self._gone: UUID | None = None
        self.way = Way()

    def arrange(self) -> World:
        """See ``Scenario``."""
        world = World(self._fleet, SystemClock())
        machines = [self._fleet.provided_machine() for _ in range(4)]
        for machine_id in machines:
            world.machine_at_provider(machine_id)
        self._gone = machines[0]
        self._fleet.sql("UPDATE machines SET machine_created_at = now() - interval '1 day'")
        world.api.forget(world.api.devices()[0].id)
        return world

    def tick(self, world: World, points: Steps) -> Mapping[Metric, float]:
        """See ``Scenario``."""
        clock = points.clock
        updater = Updater(self.way.equinix(world, clock), self.way.connect(world), clock, SESSION_SECONDS, 60)
        return updater.run(Deadline(clock, scenarios.INVOCATION_SECONDS), "chaos")

    def missing(self, world: World) -> list[str]:
        """See ``Scenario``."""
        rows = self._fleet.sql("SELECT machine_id, provider_status FROM machine_provided")
        wanted = {True: "Missing", False: "Running"}
        return [f"{row[0]} is {row[1]} on record" for row in rows if row[1] != wanted[row[0] == self._gone]]


Bendable = Provisions | Recoveries | AgentStarts | Updates


def _run(loop: Loop[F], provider: str, way: Way, world: World, clock: Clock) -> Mapping[Metric, float]:
    return runner.run(
        loop,
        provider,
        way.connect(world),
        clock,
        RunLimits(16, way.machine_seconds, SESSION_SECONDS),
        deadline=Deadline(clock, scenarios.INVOCATION_SECONDS),
        runtime_info="chaos",
    )
