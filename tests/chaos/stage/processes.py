"""
Functions as real processes, as Lambda runs them, killed with SIGKILL one at a time, or running concurrently.

They are forked from one that has imported what functions use, so that each takes milliseconds.
"""

import importlib.util
import itertools
import json
import multiprocessing
import os
import signal
import threading
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, NoReturn

from shepherd_core.adapters import ssh_keys
from shepherd_core.agent.endpoint import AgentRequest
from shepherd_core.domain.pace import Pace
from shepherd_core.settings.functions.specs import LOOPS
from shepherd_core.wiring import pace as paces

from simulator.lambda_.environment import Context
from tests.chaos.crash_points import KillAt, Points
from tests.chaos.explore import SOON_SECONDS, Explored, converge
from tests.chaos.invariants import violations
from tests.chaos.scenarios.loops import Scenario
from tests.chaos.scenarios.recoveries import Crowd
from tests.chaos.stage.environment import API_KEY, MACHINE_SECONDS, PREFIX, PROJECT, SESSION_SECONDS, Environment
from tests.support.agents.signed_agent import SignedAgent
from tests.support.bmdb.fleet import Fleet
from tests.support.providers.scripted_http import Answer, Request, said, scripted_server

ROOT = Path(__file__).parents[3]
_PARAMETER, _KEY_PARAMETER = "/api-key", "/ssh-key"
PACE = Pace(session_seconds=SESSION_SECONDS, machine_seconds=MACHINE_SECONDS, connect_seconds=0.1, chunk=2)
_FORKING = multiprocessing.get_context("forkserver")
_CORE = ("wiring.loops", "wiring.agent_endpoint", "adapters.aws.secrets", "adapters.documents", "adapters.ssh.dialer")
_LIBRARIES = ("boto3", "aws_lambda_powertools.utilities.parameters")
_FORKING.set_forkserver_preload(["__main__", __name__, *_LIBRARIES, *(f"shepherd_core.{name}" for name in _CORE)])


class KillSelf(KillAt):
    """Kills its own process, and tells the name of the effect through *pipe*."""

    def __init__(self, at: int | None, *, after: bool, pipe: Connection) -> None:
        super().__init__(at, after=after)
        self._pipe = pipe

    def kill(self) -> NoReturn:
        self._pipe.send(("killed", self.names[-1]))
        os.kill(os.getpid(), signal.SIGKILL)
        while True:
            time.sleep(1)  # until the signal arrives


def carry_out(request: dict[str, Any], pipe: Connection) -> None:
    """Invoke a function in this process, tell how it ended, and exit."""
    os.environ.clear()
    os.environ.update(request["environment"])
    paces.current = Pace(**request["pace"])
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    name = request["function"]
    spec = importlib.util.spec_from_file_location(f"{name}_app", ROOT / "functions" / name / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    context = Context("chaos", name, time.monotonic() + 300)
    try:
        with Points(KillSelf(request["at"], after=request["after"], pipe=pipe)):
            module.lambda_handler(request["event"], context)
        pipe.send(("done", ""))
    except Exception as error:  # noqa: BLE001 - reported to the parent
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
    os._exit(0)


class Outcome(NamedTuple):
    how: str
    """``done``, ``killed`` or ``failed``."""
    told: str
    """The effect at which it was killed, or the error that its function raised."""


class Functions:
    def __init__(self, aws_url: str) -> None:
        self._aws_url = aws_url
        self.pid: int | None = None
        """The last process."""

    def invoke(
        self,
        environment: Environment,
        function: str,
        *,
        event: object = None,
        at: int | None = None,
        after: bool = False,
        settings: Mapping[str, str] | None = None,
        pace: Pace = PACE,
    ) -> Outcome:
        if event is None:
            event = json.loads((ROOT / "events" / f"{function}.json").read_text(encoding="utf-8"))
        request = {
            "function": function,
            "environment": {**self._variables(environment), **(settings or {})},
            "pace": asdict(pace),
            "event": event,
            "at": at,
            "after": after,
        }
        reader, writer = _FORKING.Pipe(duplex=False)
        process = _FORKING.Process(target=carry_out, args=(request, writer))
        process.start()
        self.pid = process.pid
        writer.close()
        outcome = Outcome("failed", "the process ended")
        with reader, suppress(EOFError):  # which comes when the process is gone
            outcome = Outcome(*reader.recv())
            reader.recv()
        return outcome

    def _variables(self, environment: Environment) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": "made-up",
            "AWS_SECRET_ACCESS_KEY": "made-up",
            "AWS_REGION": "eu-central-1",
            "AWS_DEFAULT_REGION": "eu-central-1",
            "AWS_ENDPOINT_URL": self._aws_url,
            **environment.fleet.variables,
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


@contextmanager
def functions(ssh_private_key: str) -> Iterator[Functions]:
    secrets = {
        _PARAMETER: API_KEY,
        _KEY_PARAMETER: ssh_private_key,
        ssh_keys.public_parameter(_KEY_PARAMETER): ssh_keys.public_line(ssh_private_key),
    }

    def answer(request: Request) -> Answer:
        name = json.loads(request.body)["Name"]
        if name not in secrets:
            return said(400, __type="ParameterNotFound")
        return said(200, Parameter={"Name": name, "Value": secrets[name]})

    first = _FORKING.Process(target=int)  # which waits until the parent of all has imported everything
    first.start()
    first.join()
    with scripted_server(answer) as server:
        yield Functions(server.url)


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


def explore_processes(scenario: Scenario, functions: Functions, numbers: range) -> Explored:
    """Kill the function of *scenario* before and after the effects with these *numbers*, then let it converge."""
    explored = Explored()
    for number, after in itertools.product(numbers, (False, True)):
        with closing(scenario.arrange()) as environment:
            ended = functions.invoke(environment, scenario.name, at=number, after=after)
            if ended.how != "killed":
                explored.broken += [f"{scenario.name}, a process: {ended.told}"] if ended.how == "failed" else []
                return explored
            explored.kills += 1
            found = violations(environment) or converge(scenario, environment, explored, SOON_SECONDS)
            when = f"killed {'after' if after else 'before'} effect {number} ({ended.told})"
            explored.broken += [f"{scenario.name}, {when}: {each}" for each in found]
    return explored


def load(fleet: Fleet, functions: Functions, at_once: int, seconds: float, seed: int) -> Explored:
    """Run random functions in *at_once* processes for *seconds*, and kill some; then let the environment converge."""
    loaded, lock, end = Explored(), threading.Lock(), time.monotonic() + seconds
    pace, crowd = replace(PACE, session_seconds=2.0), Crowd(fleet)
    environment = crowd.arrange()
    agents = [SignedAgent(fleet, machine_id) for machine_id in environment.healthy[:4]]

    def work(by: int) -> None:
        chance = Random(seed + by)
        while time.monotonic() < end:
            function = chance.choice((*LOOPS, "agent_api"))
            at = chance.randint(1, 12) if chance.random() < 1 / 3 else None
            with lock:
                event = event_of(chance.choice(agents).request()) if function == "agent_api" else None
            after = chance.random() < 1 / 2
            ended = functions.invoke(environment, function, event=event, at=at, after=after, pace=pace)
            with lock:
                loaded.invocations += 1
                loaded.kills += ended.how == "killed"
                loaded.errors |= {ended.told.partition(":")[0]} if ended.how == "failed" else set()

    with closing(environment), ThreadPoolExecutor(at_once) as pool:
        workers = [pool.submit(work, by) for by in range(at_once)]
        while not all(worker.done() for worker in workers):
            with lock:
                found = violations(environment)
            loaded.checks += 1
            loaded.broken += [each for each in found if each not in loaded.broken]
            time.sleep(0.05)
        for worker in workers:
            worker.result()
        loaded.broken += [] if loaded.broken else converge(crowd, environment, loaded, SOON_SECONDS)
    return loaded
