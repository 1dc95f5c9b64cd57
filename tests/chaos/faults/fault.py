"""
Scenarios of the loops whose access to provider, database and machines can be disturbed.

Each is a scenario like those of ``scenarios``, with the same environment and the
same final state. Only its ticks differ: they reach everything through an
``Access``.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar
from uuid import UUID

from shepherd_core.adapters.agent_cache import AgentCache
from shepherd_core.adapters.ssh.dialer import SshDialer
from shepherd_core.agent.takeover import AgentBinary
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.domain.backoff import Backoff
from shepherd_core.domain.clock import Clock, Deadline, SystemClock
from shepherd_core.domain.remediation import provider_steps
from shepherd_core.loops import runner
from shepherd_core.loops.base import Loop
from shepherd_core.loops.initializer import Initializer, StartOptions
from shepherd_core.loops.provisioner import Provisioner, RateLimits
from shepherd_core.loops.recoverer import Recoverer
from shepherd_core.loops.runner import RunLimits
from shepherd_core.loops.updater import Updater
from shepherd_core.providers.equinix.adapter import EquinixProvider
from shepherd_core.providers.static import StaticProvider
from shepherd_core.rules.provisioning import PlanLimits as ReconcileLimits
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.telemetry import Metric

from simulator.machines.pool import MachinePool
from tests.chaos.scenarios import loops
from tests.chaos.stage.environment import SESSION_SECONDS, Environment
from tests.chaos.stage.project import API_KEY, PUBLIC_KEY, equinix_settings
from tests.support import defaults
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet

FAULTY_AGENT = (
    loops.AGENT.replace(
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
"""An agent that behaves as the file ``mood`` beside it says; long enough for an upload that breaks in the middle."""

MACHINE_SECONDS = 60.0
ANSWER_SECONDS = 20.0
BOOT_WAIT_SECONDS = 120

F = TypeVar("F")


class Steps(Protocol):
    """The context of a tick: ``crash_points.Points``, or a clock alone."""

    @property
    def clock(self) -> Clock:
        """Return the clock of the invocation."""


class SkippingClock(SystemClock):
    """The real time, but ``sleep`` returns at once and moves the clock ahead."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._skipped

    def sleep(self, seconds: float) -> None:
        self._skipped += max(0.0, seconds)


@dataclass
class Access:
    """How the functions reach database, provider and machines; undisturbed by default."""

    bmdb: BmdbSettings | None = None
    """None: the fleet's database, without a proxy."""
    api_url: str | None = None
    """None: the URL of the environment's provider."""
    api_key: Callable[[], str] = lambda: API_KEY
    addresses: dict[str, str] = field(default_factory=dict)
    """Addresses that replace the real ones, by machine name."""
    agent: Callable[[AgentBinary], AgentBinary] = lambda agent: agent
    """Applied to the agent between its download and its use."""
    agent_source: str | None = None
    """None: the scenario's agent."""
    prepare: Callable[[], object] = lambda: None
    """Called by the Initializer before anything else, once a machine is due."""
    password: Callable[[], str] | None = None
    limits: TimeLimits = field(default_factory=TimeLimits)
    machine_seconds: float = MACHINE_SECONDS
    answer_seconds: float = ANSWER_SECONDS
    connect_seconds: float = 5.0

    def connect(self, environment: Environment) -> Connection:
        connection = Connection(
            self.bmdb or environment.fleet.settings, self.password, environment.clock, limits=self.limits
        )
        environment.fleet._connections.append(connection)
        return connection

    def equinix(self, environment: Environment, clock: Clock) -> EquinixProvider:
        settings = equinix_settings(environment.api)
        if self.api_url is not None:
            settings = settings.model_copy(update={"api_url": self.api_url})
        return EquinixProvider(settings, self.api_key, lambda: PUBLIC_KEY, clock)


class Provisions(loops.Provisioning):
    """The Provisioner's scenario."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self.access = Access()

    def tick(self, environment: Environment, points: Steps) -> Mapping[Metric, float]:
        return Provisioner(
            self.access.equinix(environment, points.clock),
            self.access.connect(environment),
            points.clock,
            ReconcileLimits(
                max_machines=environment.limit, chunk=2, drift_limit=3, assimilate=False, abandon_seconds=HOUR
            ),
            RateLimits(session_seconds=SESSION_SECONDS, creation_seconds=0, penalty_seconds=HOUR),
        ).run(Deadline(points.clock, loops.INVOCATION_SECONDS), "chaos")


class Recoveries(loops.Recoveries):
    """The Recoverer's scenario with a smaller fleet, since it runs many times."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self.access = Access()

    def arrange(self) -> Environment:
        fleet = self._fleet
        environment = Environment(fleet, SystemClock())
        self._unhealthy = [fleet.unhealthy_machine() for _ in range(2)]
        environment.may_be_rebooted = {environment.machine_at_provider(machine_id) for machine_id in self._unhealthy}
        environment.healthy = [fleet.reporting_machine(60)]
        paused = fleet.unhealthy_machine()
        for machine_id in (*environment.healthy, paused):
            environment.machine_at_provider(machine_id)
        pauses.pause(fleet.connection, owner="somebody", reason="new memory", machine_id=paused)
        return environment

    def tick(self, environment: Environment, points: Steps) -> Mapping[Metric, float]:
        provider = self.access.equinix(environment, points.clock)
        loop = Recoverer(
            provider,
            provider_steps(provider),
            replace(defaults.RULES, policy=defaults.policy(boot_wait=BOOT_WAIT_SECONDS)),
        )
        return _run(loop, "equinix", self.access, environment, points.clock)


class AgentStarts(loops.AgentStarts):
    """The Initializer's scenario, with no full disk unless a fault fills it."""

    def __init__(self, fleet: Fleet, pool: MachinePool, private_key: str, folder: Path) -> None:
        super().__init__(fleet, pool, private_key, folder)
        self._agent.write_text(FAULTY_AGENT)
        self.access = Access()

    def arrange(self) -> Environment:
        environment = super().arrange()
        self._pool.free_disk(self._pool.names()[0])
        return environment

    def tick(self, environment: Environment, points: Steps) -> Mapping[Metric, float]:
        access = self.access
        entries = [
            {"ID": name, "Addr": access.addresses.get(name, self._pool.address(name))} for name in self._pool.names()
        ]
        loop = Initializer(
            StaticProvider(lambda: json.dumps(entries).encode()),
            SshDialer(self._key, "root", self._pool.port, connect_timeout=access.connect_seconds),
            self._fetch,
            StartOptions(
                path="/root/agent",
                endpoint="agents.example:443",
                answer_seconds=access.answer_seconds,
                backoff=Backoff(300, 14_400, 1.2),
            ),
        )
        return _run(loop, PROVIDER, access, environment, points.clock)

    def machines(self) -> dict[str, UUID]:
        return self._ids

    def _fetch(self) -> tuple[AgentBinary, bytes]:
        self.access.prepare()
        agents = AgentCache(self._agent.parent / "cache")
        return self.access.agent(agents.fetch(self.access.agent_source or str(self._agent))), b""


class Updates:
    """Machines without recorded provider facts, and one that vanished from the provider."""

    name = "updater"

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._gone: UUID | None = None
        self.access = Access()

    def arrange(self) -> Environment:
        environment = Environment(self._fleet, SystemClock())
        machines = [self._fleet.provided_machine() for _ in range(4)]
        for machine_id in machines:
            environment.machine_at_provider(machine_id)
        self._gone = machines[0]
        self._fleet.sql("UPDATE machines SET machine_created_at = now() - interval '1 day'")
        environment.api.forget(environment.api.snapshot()[0].id)
        return environment

    def tick(self, environment: Environment, points: Steps) -> Mapping[Metric, float]:
        clock = points.clock
        updater = Updater(
            self.access.equinix(environment, clock), self.access.connect(environment), clock, SESSION_SECONDS, 60
        )
        return updater.run(Deadline(clock, loops.INVOCATION_SECONDS), "chaos")

    def missing(self, environment: Environment) -> list[str]:
        rows = self._fleet.sql("SELECT machine_id, provider_status FROM machine_provided")
        wanted = {True: "Missing", False: "Running"}
        return [f"{row[0]} is {row[1]} on record" for row in rows if row[1] != wanted[row[0] == self._gone]]


FaultyScenario = Provisions | Recoveries | AgentStarts | Updates


def _run(
    loop: Loop[F], provider: str, access: Access, environment: Environment, clock: Clock
) -> Mapping[Metric, float]:
    return runner.run(
        loop,
        provider,
        access.connect(environment),
        clock,
        RunLimits(16, access.machine_seconds, SESSION_SECONDS),
        deadline=Deadline(clock, loops.INVOCATION_SECONDS),
        runtime_info="chaos",
    )
