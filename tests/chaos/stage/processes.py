"""Functions as real processes, killed with SIGKILL one at a time, or running concurrently."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from random import Random
from types import TracebackType
from typing import Any, NamedTuple, Self
from uuid import UUID

import boto3
from moto.server import ThreadedMotoServer
from shepherd_core.adapters import ssh_keys
from shepherd_core.agent.endpoint import AgentRequest
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.pace import Pace
from shepherd_core.settings.functions import LOOPS

from tests.chaos.explore import SOON_SECONDS, Explored, converge
from tests.chaos.invariants import violations
from tests.chaos.scenarios.loops import Scenario
from tests.chaos.stage.child import ROOT
from tests.chaos.stage.environment import MACHINE_SECONDS, SESSION_SECONDS, Environment
from tests.chaos.stage.project import API_KEY, PREFIX, PROJECT
from tests.support.agents.signed_agent import SignedAgent
from tests.support.bmdb.capacity import provided
from tests.support.bmdb.fleet import Fleet

_AWS = {
    "AWS_ACCESS_KEY_ID": "made-up",
    "AWS_SECRET_ACCESS_KEY": "made-up",
    "AWS_REGION": "eu-central-1",
    "AWS_DEFAULT_REGION": "eu-central-1",
}
_PARAMETER, _KEY_PARAMETER = "/api-key", "/ssh-key"
PACE = Pace(session_seconds=SESSION_SECONDS, machine_seconds=MACHINE_SECONDS, connect_seconds=0.1, chunk=2)
_LOAD_SESSION_SECONDS = 2.0
_MARGIN_SECONDS = 1.0
_CAPACITY, _UNHEALTHY, _HEALTHY = 6, 4, 30
_ROUNDS = 12


class Outcome(NamedTuple):
    """How a process ended."""

    status: int
    told: str
    """The effect at which it was killed, or the error that its function raised."""

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.status == -signal.SIGKILL


class _ChildProcess:
    """A child process that forks a process for each invocation, one at a time."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.stage.child", str(writer)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            pass_fds=(writer,),
            text=True,
        )
        os.close(writer)
        self._answers = os.fdopen(reader)

    def run(self, request: Mapping[str, Any]) -> Outcome:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._answers.readline())
        return Outcome(answer["status"], answer["told"])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._answers.close()


class Functions:
    """The functions; each invocation is a separate process. A context manager."""

    def __init__(self, at_once: int = 1, ssh_private_key: str | None = None) -> None:
        """Run up to *at_once* processes, with *ssh_private_key* or one of their own."""
        self._at_once = at_once
        key = ssh_private_key or ssh_keys.generate()
        self._secrets = {
            _PARAMETER: API_KEY,
            _KEY_PARAMETER: key,
            ssh_keys.public_parameter(_KEY_PARAMETER): ssh_keys.public_line(key),
        }
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        self._stack.callback(server.stop)
        self._aws = "http://{}:{}".format(*server.get_host_and_port())
        session = boto3.session.Session(
            _AWS["AWS_ACCESS_KEY_ID"], _AWS["AWS_SECRET_ACCESS_KEY"], region_name="eu-central-1"
        )
        ssm = session.client("ssm", endpoint_url=self._aws)
        for name, secret in self._secrets.items():
            ssm.put_parameter(Name=name, Value=secret, Type="SecureString", Overwrite=True)
        ssm.close()
        self._children = [_ChildProcess() for _ in range(self._at_once)]
        for child in self._children:
            self._stack.callback(child.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def invoke(
        self,
        environment: Environment,
        function: str,
        *,
        event: object = None,
        at: int = 0,
        after: bool = False,
        by: int = 0,
        settings: Mapping[str, str] | None = None,
        pace: Pace = PACE,
    ) -> Outcome:
        """Run *function* with the database and the provider of *environment*, in the child process number *by*."""
        if event is None:
            event = json.loads((ROOT / "events" / f"{function}.json").read_text(encoding="utf-8"))
        variables = {**self._variables(environment), **(settings or {})}
        return self._children[by].run(
            {
                "function": function,
                "environment": variables,
                "pace": asdict(pace),
                "event": event,
                "at": at,
                "after": after,
            }
        )

    def _variables(self, environment: Environment) -> dict[str, str]:
        settings = environment.fleet.settings
        return {
            **_AWS,
            "AWS_ENDPOINT_URL": self._aws,
            "SHEPHERD_BMDB_HOST": settings.bmdb_host,
            "SHEPHERD_BMDB_NAME": settings.bmdb_name,
            "SHEPHERD_BMDB_USER": settings.bmdb_user,
            "SHEPHERD_BMDB_ROLES": settings.bmdb_roles or "",
            "SHEPHERD_PROVIDER": "equinix",
            "SHEPHERD_PROVIDER_PROJECT": PROJECT,
            "SHEPHERD_PROVIDER_CREDENTIAL_PARAMETER": _PARAMETER,
            "SHEPHERD_PROVIDER_API_URL": environment.api.url,
            "SHEPHERD_PROVIDER_FLEET": PREFIX,
            "SHEPHERD_PROVIDER_KEY_NAME": "functions",
            "SHEPHERD_SSH_KEY_PARAMETER": _KEY_PARAMETER,
            "SHEPHERD_MAX_MACHINES": str(environment.limit),
            "SHEPHERD_CREATION_SECONDS": "0",
            "SHEPHERD_AGENT_ENDPOINT": "https://agents.example",
        }


def event_of(request: AgentRequest) -> dict[str, Any]:
    """Return the event that API Gateway makes of an agent's request."""
    return {
        "rawPath": request.path,
        "headers": dict(request.headers),
        "requestContext": {
            "http": {"method": request.method, "sourceIp": request.address},
            "timeEpoch": request.received_at,
        },
        "body": b64encode(request.body).decode(),
        "isBase64Encoded": True,
    }


def explore_processes(
    scenario: Scenario,
    functions: Functions,
    numbers: range,
    event: Callable[[], object] = lambda: None,
    settings: Mapping[str, str] | None = None,
    pace: Pace = PACE,
) -> Explored:
    """
    Kill the function of *scenario* before and after the effects with these *numbers*, then let it converge.

    *event* returns the function's event, None: the one of its schedule. *settings* are environment variables.
    """
    explored, function = Explored(), scenario.name.partition(",")[0]
    for number in numbers:
        for after in (False, True):
            environment = scenario.arrange()
            try:
                ended = functions.invoke(
                    environment, function, event=event(), at=number, after=after, settings=settings, pace=pace
                )
                if not ended.killed:
                    explored.broken += [f"{scenario.name}, a process: {ended.told}"] if ended.status else []
                    return explored
                explored.kills += 1
                found = violations(environment) or converge(scenario, environment, explored, SOON_SECONDS)
                when = "after" if after else "before"
                explored.broken += [
                    f"{scenario.name}, killed {when} effect {number} ({ended.told}): {each}" for each in found
                ]
            finally:
                environment.close()
    return explored


@dataclass
class Loaded:
    """The results of concurrent processes."""

    invocations: int = 0
    killed: int = 0
    checks: int = 0
    errors: set[str] = field(default_factory=set)
    """Names of the errors that functions raised; allowed, since another may have been faster."""
    broken: list[str] = field(default_factory=list)


def load(fleet: Fleet, functions: Functions, at_once: int, seconds: float, seed: int) -> Loaded:
    """
    Run random functions in one environment for *seconds*, in *at_once* processes, and kill some of them.

    Then run the schedules, one function at a time, until nothing is missing.
    """
    environment, unhealthy, agents = _arrange_load(fleet)
    loaded = Loaded()
    lock = threading.Lock()
    end = time.monotonic() + seconds
    pace = replace(PACE, session_seconds=_LOAD_SESSION_SECONDS)

    def work(by: int) -> None:
        chance = Random(seed + by)
        while time.monotonic() < end:
            function = chance.choice((*LOOPS, "agent_api"))
            at = chance.randint(1, 50) if chance.random() < 1 / 3 else 0
            with lock:
                event = event_of(chance.choice(agents).request()) if function == "agent_api" else None
            ended = functions.invoke(
                environment, function, event=event, at=at, after=chance.random() < 1 / 2, by=by, pace=pace
            )
            with lock:
                loaded.invocations += 1
                loaded.killed += ended.killed
                if ended.status > 0:
                    loaded.errors.add(ended.told.partition(":")[0])

    try:
        workers = [threading.Thread(target=work, args=(by,)) for by in range(at_once)]
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            with lock:
                found = violations(environment)
            loaded.checks += 1
            loaded.broken += [each for each in found if each not in loaded.broken]
            time.sleep(0.05)
        loaded.broken += [] if loaded.broken else _converge(environment, functions, unhealthy)
    finally:
        environment.close()
    return loaded


def _arrange_load(fleet: Fleet) -> tuple[Environment, list[UUID], list[SignedAgent]]:
    environment = Environment(fleet, SystemClock(), reservations=_CAPACITY, margin_seconds=_MARGIN_SECONDS)
    unhealthy = [fleet.unhealthy_machine() for _ in range(_UNHEALTHY)]
    environment.healthy = [fleet.reporting_machine(60) for _ in range(_HEALTHY)]
    environment.may_be_rebooted = {environment.machine_at_provider(machine_id) for machine_id in unhealthy}
    for machine_id in environment.healthy:
        environment.machine_at_provider(machine_id)
    agents = [SignedAgent(fleet, machine_id) for machine_id in environment.healthy[:4]]
    fleet.sql("UPDATE machines SET machine_created_at = now() - interval '1 day'")
    environment.limit = _UNHEALTHY + _HEALTHY + _CAPACITY - 1
    return environment, unhealthy, agents


def _converge(environment: Environment, functions: Functions, unhealthy: list[UUID]) -> list[str]:
    missing: list[str] = []
    for _ in range(_ROUNDS):
        environment.pass_time(SOON_SECONDS)
        for function in ("provisioner", "recoverer", "updater"):
            ended = functions.invoke(environment, function)
            if ended.status:
                return [f"{function}, undisturbed, failed: {ended.told}"]
        if broken := violations(environment):
            return broken
        missing = _missing(environment, unhealthy)
        if not missing:
            return []
    return missing


def _missing(environment: Environment, unhealthy: list[UUID]) -> list[str]:
    acted = {device.id for device in environment.api.snapshot() if device.actions_taken}
    found = environment.unprovided(environment.limit)
    found += [
        f"{each} was not rebooted"
        for name, each in provided(environment.fleet).items()
        if each in unhealthy and name not in acted and not environment.counts_as_rebooted(each)
    ]
    return found + [f"there is still work on {row[0]}" for row in environment.fleet.sql("SELECT machine_id FROM work")]
