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
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from shepherd_core.adapters import ssh_keys
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import queries
from shepherd_core.bmdb.machines.search import matching
from shepherd_core.bmdb.work import open_work
from shepherd_core.domain.clock import SystemClock
from shepherd_core.settings.functions.bmdb import ROLES

from shepherdctl.interrupts import deferred
from simulator.environment import certificate
from simulator.environment.agent_endpoint import AgentEndpoint, function_invoker
from simulator.environment.aws import REGION, Aws
from simulator.environment.faults import Faults
from simulator.environment.machine_source import SSH_KEY_PARAMETER, SourceSpec
from simulator.environment.postgres import Postgres
from simulator.environment.relay import Relay
from simulator.environment.scheduler import Schedules
from simulator.environment.tcp_proxy import TcpProxy
from simulator.lambda_.service import ROOT, FunctionConfig, Invocation, LambdaService, Service
from simulator.lifecycle import Assembled
from simulator.machines.pool import MachinePool
from simulator.machines.shell import unprivileged_user
from simulator.providers import SimulatedProvider, machine_source
from simulator.scratch import scratch

LOOPS = ("provisioner", "initializer", "recoverer", "updater")

_SESSIONS = 100
_BUCKET = "shepherd-agents"
_CA = f"s3://{_BUCKET}/ca.pem"
_INTERVAL_VARIABLE = "SHEPHERD_HEARTBEAT_INTERVAL_SECONDS"
_BMDB_PASSWORD = "/simulated/bmdb-password"  # noqa: S105 - its name
_INSTALLATION_KEY, _INSTALLATION_PUBLIC_KEY = "/shepherd/installation-key", "/shepherd/installation-key.pub"


@dataclass(frozen=True, kw_only=True)
class EnvironmentSettings:
    """The settings of a simulated environment."""

    machines: int = 10
    """The capacity; all of it becomes machines."""
    provider: SimulatedProvider = "equinix"
    speed: float = 60
    """How many times faster than real time fleet time runs."""
    heartbeat_seconds: float = 60
    """The fleet time between two heartbeats that agents are told."""
    relays: int = 0
    """How many relays machines report through, each at a location of its own; 0: machines report directly."""
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
        self._fleet_heartbeat_seconds = settings.heartbeat_seconds
        self.relays: dict[str, Relay] = {}
        """By the location of their machines; empty text: any."""
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

    def machines(self) -> list[dict[str, Any]]:
        """Return the machines of the BMDB, as ``shepherdctl machine list`` does."""
        with self._lock:
            return list(matching(self._bmdb))

    def sessions(self) -> list[dict[str, Any]]:
        """Return the sessions of invocations under way, with the machines that they work on."""
        with self._lock:
            return open_work.open_sessions(self._bmdb, _SESSIONS)

    def history(self, machine_id: UUID) -> list[dict[str, Any]]:
        """Return the history of one machine, newest first."""
        with self._lock:
            return queries.history(self._bmdb, machine_id)

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

    @property
    def operator_environment(self) -> dict[str, str]:
        """
        Return the environment variables with which ``shepherdctl`` operates this fleet, from another process.

        They have the times of the loops, which run at the fleet's speed; a name that two loops have is the Recoverer's.
        """
        loops = (self.configs[name].environment for name in LOOPS)
        given = {name: value for loop in loops for name, value in loop.items() if value and name != "TMPDIR"}
        return {**given, "SHEPHERD_LOGS": str(self.log)}

    @property
    def heartbeat_seconds(self) -> float:
        """Return the fleet time between two heartbeats; agents are told whole real seconds, at least one."""
        return self._heartbeat_seconds * self.settings.speed

    @property
    def _heartbeat_seconds(self) -> int:
        return max(1, round(self.scaled(self._fleet_heartbeat_seconds)))

    def set_heartbeat_seconds(self, seconds: float) -> None:
        """Tell agents from now on to report every *seconds* of fleet time, as a deployment with that setting does."""
        self._fleet_heartbeat_seconds = seconds
        config = self.configs["agent_api"]
        environment = {**config.environment, _INTERVAL_VARIABLE: str(self._heartbeat_seconds)}
        self.functions.configure("agent_api", replace(config, environment=environment))

    def scaled(self, seconds: float) -> float:
        """Return the real seconds of *seconds* of fleet time."""
        return seconds / self.settings.speed

    def _make(self) -> None:
        enter = self._enter
        self.folder = enter(lambda: scratch("shepherd-"))
        remote = self.settings.remote is not None
        self.postgres = enter(lambda: Postgres(password=secrets.token_urlsafe() if remote else None))
        self.bmdb_settings = self.postgres.new_database(*(() if self.settings.migrated else ("template1",)))
        self._bmdb = Connection(self.bmdb_settings, self.postgres.password, SystemClock())
        self._stack.callback(self._bmdb.close)
        tls, self._ca = certificate.make(self._address, self.folder)
        self.endpoint = enter(
            lambda: AgentEndpoint(function_invoker(lambda: self.agent_api, "agent_api"), tls=tls, address=self._address)
        )
        disks = enter(lambda: scratch("machines-"))
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
                    locations=max(1, self.settings.relays),
                    seed=self.settings.seed,
                )
            )
        )
        if remote:
            self.proxy = enter(lambda: TcpProxy(self.postgres.socket, self._address, tls))
        for location in self.machine_source.locations[: self.settings.relays] or ("",) * bool(self.settings.relays):
            self.relays[location] = self._enter(lambda: Relay(self._address, self.endpoint.url, self._ca, self.folder))
        self.configs = self._functions(self._make_aws())
        self.log = self.folder / "functions.log"
        self.functions = enter(lambda: LambdaService(self.configs, self.log))
        self.agent_api: Service = self.functions
        """What runs the function that agents report to."""
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

    def _make_aws(self) -> Mapping[str, str]:
        """Start AWS, store what an operator stores before a deployment, and return the functions' access to it."""
        aws = self._enter(lambda: Aws(self._address))
        stored = dict(self.machine_source.secrets)
        if self.postgres.password is not None:
            names = [_BMDB_PASSWORD, *(f"{_BMDB_PASSWORD}-{role}" for role in ROLES)]
            stored |= dict.fromkeys(names, self.postgres.password())
        stored[_INSTALLATION_KEY] = ssh_keys.generate()
        stored[_INSTALLATION_PUBLIC_KEY] = ssh_keys.public_line(stored[_INSTALLATION_KEY])
        ssm = aws.client("ssm")
        for name, secret in stored.items():
            ssm.put_parameter(Name=name, Value=secret, Type="SecureString")
        agent = self.folder / "agent"
        with deferred():  # or it complains of being interrupted
            build = [sys.executable, str(ROOT / "agent" / "build.py"), str(agent)]
            self._agent_sha256 = subprocess.run(build, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        s3 = aws.client("s3")
        s3.create_bucket(Bucket=_BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        s3.upload_file(str(agent), _BUCKET, "agent")
        s3.upload_file(str(self._ca), _BUCKET, "ca.pem")
        return aws.environment

    def _functions(self, aws: Mapping[str, str]) -> Mapping[str, FunctionConfig]:
        """Return the functions with the default settings, scaled to fleet time."""
        bmdb = self.bmdb_settings
        if self.settings.remote is not None:
            bmdb = bmdb.model_copy(
                update={"bmdb_host": self._address, "bmdb_port": self.proxy.port, "bmdb_ca_source": _CA}
            )
        common = {
            **aws,
            "TMPDIR": str(self.folder),
            **self.machine_source.environment,
            "SHEPHERD_BMDB_HOST": bmdb.bmdb_host,
            "SHEPHERD_BMDB_PORT": str(bmdb.bmdb_port),
            "SHEPHERD_BMDB_NAME": bmdb.bmdb_name,
            "SHEPHERD_BMDB_USER": bmdb.bmdb_user,
            "SHEPHERD_BMDB_ROLES": bmdb.bmdb_roles or "",
            "SHEPHERD_BMDB_PASSWORD_PARAMETER": "" if self.settings.remote is None else _BMDB_PASSWORD,
            "SHEPHERD_BMDB_CA_SOURCE": bmdb.bmdb_ca_source or "",
            "SHEPHERD_SSH_KEY_PARAMETER": SSH_KEY_PARAMETER,
            "SHEPHERD_INSTALLATION_PUBLIC_KEY_PARAMETER": _INSTALLATION_PUBLIC_KEY,
            "SHEPHERD_SESSION_SECONDS": "10",
        }
        return {
            "migrator": FunctionConfig(common, timeout_seconds=60),
            # High enough never to throttle: agents that are throttled wait longer, and become unhealthy in the end.
            "agent_api": FunctionConfig(
                {
                    **common,
                    "SHEPHERD_REPORT_SECONDS": str(self.scaled(5)),
                    _INTERVAL_VARIABLE: str(self._heartbeat_seconds),
                    "SHEPHERD_RELAYS": ",".join(
                        f"{self.settings.provider}{location and '/'}{location}={relay.address}"
                        for location, relay in self.relays.items()
                    ),
                },
                timeout_seconds=10,
                concurrency=8,
            ),
            "provisioner": FunctionConfig(
                {
                    **common,
                    "SHEPHERD_MAX_MACHINES": "0",
                    "SHEPHERD_CREATION_SECONDS": str(self.scaled(5)),
                    "SHEPHERD_PENALTY_SECONDS": str(self.scaled(3600)),
                    "SHEPHERD_BOOT_SECONDS": str(self.scaled(300)),
                },
                timeout_seconds=90,
            ),
            "initializer": FunctionConfig(
                {
                    **common,
                    "SHEPHERD_MACHINE_SECONDS": "20",
                    "SHEPHERD_AGENT_SOURCE": f"s3://{_BUCKET}/agent",
                    "SHEPHERD_AGENT_SHA256": self._agent_sha256,
                    "SHEPHERD_AGENT_ENDPOINT": self.endpoint.url,
                    "SHEPHERD_AGENT_CA_SOURCE": _CA,
                    "SHEPHERD_SSH_PORT": str(self.pool.port),
                    "SHEPHERD_BACKOFF_INITIAL_SECONDS": str(self.scaled(300)),
                    "SHEPHERD_BACKOFF_MAXIMUM_SECONDS": str(self.scaled(14_400)),
                },
                timeout_seconds=60,
            ),
            "updater": FunctionConfig(
                {**common, "SHEPHERD_UPDATE_SECONDS": str(self.scaled(3600))}, timeout_seconds=60
            ),
            "recoverer": FunctionConfig(
                {
                    **common,
                    "SHEPHERD_MACHINE_SECONDS": "20",
                    "SHEPHERD_SSH_PORT": str(self.pool.port),
                    "SHEPHERD_LOOK_SECONDS": "5",
                    "SHEPHERD_STARTUP_TIMEOUT_SECONDS": str(self.scaled(1800)),
                    "SHEPHERD_HEARTBEAT_TIMEOUT_SECONDS": str(self.scaled(600)),
                    "SHEPHERD_BOOT_WAIT_SECONDS": str(self.scaled(120)),
                    "SHEPHERD_GRACE_SECONDS": str(self.scaled(1800)),
                    "SHEPHERD_COOLDOWN_SECONDS": str(self.scaled(600)),
                    "SHEPHERD_RESET_AFTER_SECONDS": str(self.scaled(3600)),
                    "SHEPHERD_BACKOFF_INITIAL_SECONDS": str(self.scaled(60)),
                    "SHEPHERD_BACKOFF_MAXIMUM_SECONDS": str(self.scaled(3600)),
                },
                timeout_seconds=60,
            ),
        }
