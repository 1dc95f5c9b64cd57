"""
Invoke a function as Lambda would, in an environment with work for it.

    python -m simulator [FUNCTION] [--event FILE] [--sam BUILD_FOLDER]

Creates an environment, invokes the functions that come before FUNCTION, and
prints the log (to standard error) and the result (to standard output) of
FUNCTION; without FUNCTION, of all functions. The agent API receives the next
report of an agent of the environment. With --sam they run under `sam
local invoke`, as `sam build` built them into BUILD_FOLDER, otherwise under the
runtime interface emulator.
"""

import argparse
import json
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

from shepherd_core.settings.functions.specs import SPECS

from simulator.environment.environment import Environment, EnvironmentSettings
from simulator.environment.status import machine_statuses
from simulator.lambda_ import sam_local
from simulator.lambda_.emulator import Emulator
from simulator.lambda_.service import ROOT, Invocation, Service
from simulator.machines.server import MachineState

FUNCTIONS = tuple(spec.name for spec in SPECS)
_TIMEOUT_SECONDS = 60
_MACHINES = 3
_SPEED = 120


class _NextReport:
    """A service that gives the next report of an agent to *chosen*, and all others to *usual*."""

    def __init__(self, chosen: Service, usual: Service) -> None:
        self._chosen, self._usual = chosen, usual
        self._first = threading.Lock()
        self.outcome: queue.Queue[Invocation] = queue.Queue()

    def invoke(self, name: str, event: Mapping[str, Any]) -> Invocation:
        """Invoke a function with *event* and return the outcome."""
        if not self._first.acquire(blocking=False):
            return self._usual.invoke(name, event)
        outcome = self._chosen.invoke(name, event)
        self.outcome.put(outcome)
        return outcome


def event(function: str) -> dict[str, Any]:
    """Return the example event for *function*."""
    loaded: dict[str, Any] = json.loads((ROOT / "events" / f"{function}.json").read_text(encoding="utf-8"))
    return loaded


def make_work(environment: Environment, function: str) -> None:
    """
    Wait until there is work for *function*: capacity, machines without an agent, or unhealthy machines.

    Invoke the functions before it first.

    Raises:
        TimeoutError: one of them was not invoked or failed.
    """
    if function == "initializer":
        _until(lambda: _all_up(environment), "machines that answer SSH, past their boot time")
    if function == "recoverer":
        _until(
            lambda: (
                bool(machine_statuses(environment))
                and all(machine.running for machine in machine_statuses(environment))
            ),
            "agents that report",
        )
        # Of several machines, one goes on reporting: if none did, no machine would be interrupted.
        unhealthy = environment.pool.names()[:-1] or environment.pool.names()
        for name in unhealthy:
            environment.inject_fault(name, "hang")  # if it answered over SSH, only its agent would be restarted
        timeout = (
            float(environment.configs[function].environment["SHEPHERD_HEARTBEAT_TIMEOUT_SECONDS"])
            * environment.settings.speed
        )
        _until(
            lambda: (
                sum((machine.heartbeat_age or 0) > timeout for machine in machine_statuses(environment))
                >= len(unhealthy)
            ),
            "unhealthy machines",
        )
        environment.settle()


def next_report(environment: Environment, service: Service) -> Invocation:
    """
    Return the outcome of the next report that an agent sends, which *service* receives: signed, of a known machine.

    Raises:
        TimeoutError: no agent reports.
    """
    receiver = _NextReport(service, environment.functions)
    environment.agent_api = receiver
    try:
        outcome = receiver.outcome.get(timeout=_TIMEOUT_SECONDS)
    except queue.Empty:
        raise TimeoutError(f"no report of an agent within {_TIMEOUT_SECONDS} s") from None
    finally:
        environment.agent_api = environment.functions
    status = (outcome.result or {}).get("statusCode", HTTPStatus.OK)
    return outcome if status == HTTPStatus.OK else replace(outcome, error=f"the report was answered with {status}")


def invoke(
    environment: Environment, service: Service, function: str, sent: Mapping[str, Any] | None, *, shown: bool
) -> bool:
    """
    Make work for *function*, invoke it, print the outcome (all of it if *shown*); return whether it succeeded.

    The event is *sent*; None: the next report of an agent.
    """
    make_work(environment, function)
    offset = environment.log.stat().st_size
    outcome = next_report(environment, service) if sent is None else service.invoke(function, sent)
    if shown or outcome.error is not None:
        with environment.log.open("rb") as log:
            log.seek(offset)
            sys.stderr.write(log.read().decode(errors="replace"))
    if shown and outcome.result is not None:
        sys.stdout.write(json.dumps(outcome.result) + "\n")
        sys.stdout.flush()
    states = ", ".join(
        f"{count} {state}"
        for state, count in Counter(machine.state for machine in machine_statuses(environment)).items()
    )
    sys.stderr.write(
        f"{function}: {outcome.error or 'returned'} after {outcome.seconds:.1f} s; "
        f"machines in the BMDB: {states or 'none'}\n"
    )
    return outcome.error is None


def _all_up(environment: Environment) -> bool:
    names = environment.pool.names()
    up = bool(names) and all(environment.pool.state(name) is MachineState.UP for name in names)
    return up and not any(machine.backing_off for machine in environment.machines())


def _until(condition: Callable[[], bool], wanted: str) -> None:
    end = time.monotonic() + _TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"no {wanted} within {_TIMEOUT_SECONDS} s")
        time.sleep(0.05)


def _run(arguments: argparse.Namespace) -> bool:
    settings = EnvironmentSettings(machines=_MACHINES, speed=_SPEED, scheduled=False, migrated=False)
    if arguments.sam is not None:
        # Containers reach this computer at one address only, and none of its files: one machine, of a provider
        # that is asked for its list.
        settings = replace(settings, machines=1, provider="latitude", remote=sam_local.gateway())
    with ExitStack() as stack:
        environment = stack.enter_context(Environment(settings))
        service: Service
        if arguments.sam is None:
            service = stack.enter_context(Emulator(environment.configs, environment.log))
        else:
            service = sam_local.SamLocal(environment.configs, environment.log, arguments.sam)
        for function in FUNCTIONS[: FUNCTIONS.index(arguments.function or FUNCTIONS[-1]) + 1]:
            chosen = function == arguments.function
            sent = None if function == "agent_api" else event(function)
            if chosen and arguments.event:
                sent = json.loads(arguments.event.read_text())
            if not invoke(environment, service, function, sent, shown=chosen or arguments.function is None):
                return False
    return True


def main() -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="simulator", description="Invoke functions in a simulated environment.")
    parser.add_argument(
        "function", nargs="?", choices=FUNCTIONS, help="print the log and the result of this function only"
    )
    parser.add_argument(
        "--event",
        type=Path,
        metavar="FILE",
        help="send the event in FILE instead of events/FUNCTION.json (agent_api: instead of an agent's report)",
    )
    parser.add_argument(
        "--sam",
        type=Path,
        metavar="FOLDER",
        help="run the functions that sam build built there, under sam local invoke",
    )
    arguments = parser.parse_args()
    if arguments.event is not None and arguments.function is None:
        parser.error("--event needs FUNCTION")
    try:
        return 0 if _run(arguments) else 1
    except OSError as error:  # no emulator, no Docker engine, no such file, or a timeout
        sys.stderr.write(f"{error}\n")
        return 1
