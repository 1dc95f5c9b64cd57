"""
A complete simulated environment: a provider's API, machines, agents, AWS, a database, functions and schedules.

Four things are simulated: the provider is a local server of its API, the
machines are SSH servers with folders as disks, AWS is moto, and fleet time
runs faster: a minute of fleet time takes ``60 / speed`` seconds. Everything
else is real. The functions run unchanged, as separate processes that are
configured by environment variables alone.
"""

import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from uuid import UUID

from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines.search import FoundMachine, matching
from shepherd_core.bmdb.work import open_work
from shepherd_core.bmdb.work.history import HistoryEvent, read_history
from shepherd_core.domain.clock import SystemClock
from shepherd_core.settings.functions.specs import LOOPS

from simulator.closeable import Assembled
from simulator.environment import certificate, deployment
from simulator.environment.agent_endpoint import AgentEndpoint, function_invoker
from simulator.environment.aws import Aws
from simulator.environment.faults import Faults
from simulator.environment.machine_source import SourceSpec
from simulator.environment.postgres import Postgres
from simulator.environment.scheduler import Schedules
from simulator.environment.tcp_proxy import TcpProxy
from simulator.lambda_.service import Invocation, LambdaService, Service
from simulator.machines.pool import MachinePool
from simulator.machines.shell import unprivileged_user
from simulator.providers import SimulatedProvider, machine_source
from simulator.temporary_folder import temporary_folder

_SESSIONS = 100
_EARLIER_TICK = """
INSERT INTO ticks (session_id, loop, provider, runtime_info, began_at, ended_at, outcome, counts)
SELECT gen_random_uuid(), 'recoverer', '{}', 'before the simulation', at, at, 'Succeeded', '{{}}'
FROM (SELECT now() - interval '3 minutes' AS at) AS x
"""


@dataclass(frozen=True, kw_only=True)
class EnvironmentSettings:
    """The settings of a simulated environment."""

    machines: int = 10
    """The capacity; all of it becomes machines."""
    provider: SimulatedProvider = "redfish"
    speed: float = 60
    """How many times faster than real time fleet time runs."""
    faults: Faults = field(default_factory=Faults)
    twice: float = 0.05
    """Probability that a schedule's event is delivered twice."""
    seed: int = 0
    migrated: bool = True
    """Whether the BMDB has its schema from the start; otherwise run the Migrator."""
    scheduled: bool = True
    """False: no events are fired; the caller invokes the functions."""
    remote: str | None = None
    """
    An IPv4 address of this computer at which the functions reach everything; the machines have this address and those
    after it. The BMDB is behind ``Environment.proxy`` there, with TLS and a password. None: loopback addresses, and
    the BMDB has only a Unix socket that other users cannot reach.
    """


class Environment(Assembled):
    """A simulated environment; it runs from entry to exit. Its attributes may be read and changed."""

    def __init__(
        self,
        settings: EnvironmentSettings,
        on_invocation: Callable[[Invocation], None] = lambda _: None,
        on_power_change: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        """*on_invocation* gets each outcome, *on_power_change* a provider id and the change; both on any thread."""
        super().__init__()
        self.settings = settings
        self._on_invocation = on_invocation
        self._on_power_change = on_power_change
        self._address = settings.remote or "127.0.0.1"
        self._lock = threading.Lock()
        self._machine_faults = list(settings.faults.machines)
        self._fleet_heartbeat_seconds = 60.0
        self.faulted: dict[str, str] = {}
        """The last fault of each machine that had one, by provider id."""

    @property
    def elapsed(self) -> float:
        """Return the real seconds since the schedules started."""
        return time.monotonic() - self._began

    @property
    def minutes(self) -> float:
        """Return the minutes of fleet time since the schedules started."""
        return self.elapsed * self.settings.speed / 60

    def machines(self) -> list[FoundMachine]:
        """Return the machines of the BMDB, as ``shepherdctl machine list`` does."""
        with self._lock:
            return list(matching(self._bmdb))

    def sessions(self) -> list[open_work.OpenSession]:
        """Return the sessions of invocations under way, with the machines that they work on."""
        with self._lock:
            return open_work.open_sessions(self._bmdb, _SESSIONS)

    def history(self, machine_id: UUID) -> list[HistoryEvent]:
        """Return the history of one machine, newest first."""
        with self._lock:
            return read_history(self._bmdb, machine_id)

    def inject_fault(self, provider_id: str, what: str) -> None:
        """Inject the fault *what*, a method of ``MachinePool``, into a machine, and record it."""
        self.faulted[provider_id] = what
        getattr(self.pool, what)(provider_id)

    def inject_due_faults(self) -> list[tuple[str, str]]:
        """Inject the machine faults that are due by the faults file; return provider id and fault of each."""
        done: list[tuple[str, str]] = []
        for fault in list(self._machine_faults):
            names = self.pool.names()
            if fault.at_seconds <= self.minutes * 60 and fault.machine < len(names):
                self._machine_faults.remove(fault)
                self.inject_fault(names[fault.machine], fault.fault)
                done.append((names[fault.machine], fault.fault))
        return done

    def change_faults(self, faults: Faults) -> None:
        """Inject *faults* instead of those before; their rules count from now on."""
        script = self.machine_source.faults
        script.clear()
        for rule in faults.api:
            script.add(rule)
        self._machine_faults = list(faults.machines)
        self._give_agent(faults)

    def _give_agent(self, faults: Faults) -> None:
        config = self.configs["initializer"]
        agent = {} if faults.agent is None else deployment.broken_agent(self.folder)
        self.functions.configure("initializer", replace(config, environment={**config.environment, **agent}))

    @property
    def operator_environment(self) -> dict[str, str]:
        """
        Return the environment variables with which ``shepherdctl`` operates this fleet, from another process.

        Their times are those of the loops, at the fleet's speed. Where loops differ, the value is the Recoverer's.
        """
        loops = (self.configs[name].environment for name in LOOPS)
        given = {name: value for loop in loops for name, value in loop.items() if value and name != "TMPDIR"}
        return {**given, "SHEPHERD_LOGS": str(self.log)}

    @property
    def heartbeat_seconds(self) -> float:
        """Return the fleet time between two heartbeats."""
        return self.interval_seconds * self.settings.speed

    @property
    def interval_seconds(self) -> int:
        """Return the real seconds between two heartbeats that agents are told: whole ones, at least one."""
        return max(1, round(self.scaled(self._fleet_heartbeat_seconds)))

    def set_heartbeat_seconds(self, seconds: float) -> None:
        """Tell agents from now on to report every *seconds* of fleet time, as a deployment with that setting does."""
        self._fleet_heartbeat_seconds = seconds
        config = self.configs["agent_api"]
        environment = {**config.environment, deployment.HEARTBEAT_INTERVAL: str(self.interval_seconds)}
        self.functions.configure("agent_api", replace(config, environment=environment))

    def scaled(self, seconds: float) -> float:
        """Return how many real seconds *seconds* of fleet time take."""
        return seconds / self.settings.speed

    def settle(self) -> None:
        """Let a function have run three minutes ago: else recovery takes this for the end of an outage of ours."""
        tick = _EARLIER_TICK.format(self.settings.provider)
        self._bmdb.transact(lambda: self._bmdb.script(tick))

    def _make(self) -> None:
        enter = self._enter
        self.folder = enter(lambda: temporary_folder("shepherd-"))
        remote = self.settings.remote is not None
        self.postgres = enter(lambda: Postgres(password=secrets.token_urlsafe() if remote else None))
        self.bmdb_settings = self.postgres.new_database(*(() if self.settings.migrated else ("template1",)))
        self._bmdb = Connection(self.bmdb_settings, self.postgres.password, SystemClock())
        self._stack.callback(self._bmdb.close)
        if self.settings.migrated:
            self.settle()
        tls, ca = certificate.make(self._address, self.folder)
        self.endpoint = enter(
            lambda: AgentEndpoint(function_invoker(lambda: self.agent_api, "agent_api"), tls=tls, address=self._address)
        )
        disks = enter(lambda: temporary_folder("machines-"))
        user = unprivileged_user()
        if user is not None:
            os.chown(disks, user, user)
        self.pool = enter(
            lambda: MachinePool(
                disks,
                0,
                boot_seconds=self.scaled(60),
                first_address=self.settings.remote,
                user=user,
                agent_environment={"SHEPHERD_AGENT_HEARTBEAT_SECONDS": str(self.scaled(60))},
                on_power_change=self._on_power_change,
            )
        )
        folder = self.folder / "provider"
        folder.mkdir()
        self.machine_source = enter(
            lambda: machine_source(self.settings.provider)(
                SourceSpec(
                    pool=self.pool,
                    folder=folder,
                    machines=self.settings.machines,
                    minute=self.scaled(60),
                    address=self._address,
                    faults=self.settings.faults.api,
                    seed=self.settings.seed,
                )
            )
        )
        if remote:
            self.proxy = enter(lambda: TcpProxy(self.postgres.socket, self._address, tls))
        aws = enter(lambda: Aws(self._address))
        bmdb_password = self.postgres.password and self.postgres.password()
        deployment.store(aws, self.machine_source.secrets, bmdb_password, ca)
        self.configs = deployment.functions(self, aws.environment)
        self.log = self.folder / "functions.log"
        self.functions = enter(lambda: LambdaService(self.configs, self.log))
        self._give_agent(self.settings.faults)
        self.agent_api: Service = self.functions
        """The service that runs the agent API; it can be replaced."""
        self._began = time.monotonic()
        self.schedules = enter(
            lambda: Schedules(
                self.functions,
                LOOPS if self.settings.scheduled else (),
                self.scaled(60),
                done=self._on_invocation,
                every=self.machine_source.every,
                twice=self.settings.twice,
                seed=self.settings.seed,
            )
        )
