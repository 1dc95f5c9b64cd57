"""
Invoke a function as Lambda would, in a world that has work for it.

    python -m simulator.invoke [FUNCTION] [--event FILE] [--sam BUILD_FOLDER]

Makes a world, lets the functions that come before FUNCTION do their part, and
prints what FUNCTION logs (to standard error) and returns (to standard output).
Without FUNCTION it prints all of them. With --sam they run under `sam local
invoke`, as `sam build` built them into BUILD_FOLDER, else under the runtime
interface emulator.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from simulator import sam_local
from simulator.emulator import Emulator
from simulator.lambda_service import ROOT, Invocation
from simulator.machines import MachineState
from simulator.observation import look
from simulator.world import LOOPS, Settings, World

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FUNCTIONS = ("migrator", *LOOPS)
"""In the order in which each makes work for the next."""

_PATIENCE_SECONDS = 60
_MACHINES = 3
_SPEED = 120


class Service(Protocol):
    """Whatever runs functions."""

    def invoke(self, name: str, event: Mapping[str, Any]) -> Invocation:
        """Hand *event* to the function and return what came of it."""


def event(function: str) -> dict[str, Any]:
    """Return what a schedule, or a person, sends to *function*."""
    loaded: dict[str, Any] = json.loads((ROOT / "events" / f"{function}.json").read_text(encoding="utf-8"))
    return loaded


def make_work(world: World, function: str) -> None:
    """
    Return when there is work for *function*: capacity, machines without an agent, or silent agents.

    What comes before must have been invoked.

    Raises:
        TimeoutError: it was not, or it failed.
    """
    if function == "initializer":
        _until(lambda: _all_up(world), "machines that answer SSH and have had their time to boot")
    if function == "recoverer":
        _until(lambda: bool(look(world)) and all(sight.running for sight in look(world)), "agents that report")
        # One goes on reporting, if there are several: where nobody does, the Recoverer suspects the endpoint.
        silenced = world.park.names()[:-1] or world.park.names()
        for name in silenced:
            world.harm(name, "silence")
        silence = float(world.configs[function].environment["SHEPHERD_SILENCE_SECONDS"]) * world.settings.speed
        _until(
            lambda: sum((sight.heartbeat_age or 0) > silence for sight in look(world)) >= len(silenced), "silent agents"
        )


def invoke(world: World, service: Service, function: str, sent: Mapping[str, Any], *, shown: bool) -> bool:
    """Make work for *function*, invoke it, tell what came of it, and return whether it did its work."""
    make_work(world, function)
    offset = world.log.stat().st_size
    came = service.invoke(function, sent)
    if shown or came.error is not None:
        with world.log.open("rb") as log:
            log.seek(offset)
            sys.stderr.write(log.read().decode(errors="replace"))
    if shown and came.result is not None:
        sys.stdout.write(json.dumps(came.result) + "\n")
        sys.stdout.flush()
    states = ", ".join(f"{count} {state}" for state, count in Counter(sight.state for sight in look(world)).items())
    sys.stderr.write(
        f"{function}: {came.error or 'returned'} after {came.seconds:.1f} s; machines in the BMDB: {states or 'none'}\n"
    )
    return came.error is None


def _all_up(world: World) -> bool:
    names = world.park.names()
    up = bool(names) and all(world.park.state(name) is MachineState.UP for name in names)
    return up and not any(machine["backing_off"] for machine in world.machines())


def _until(condition: Callable[[], bool], wanted: str) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"there were no {wanted} within {_PATIENCE_SECONDS} s")
        time.sleep(0.05)


def _run(arguments: argparse.Namespace) -> bool:
    # Containers reach this computer at one address only: there is room for one machine.
    settings = (
        Settings(machines=_MACHINES, speed=_SPEED, scheduled=False, migrated=False)
        if arguments.sam is None
        else Settings(machines=1, speed=_SPEED, scheduled=False, migrated=False, remote=sam_local.gateway())
    )
    with ExitStack() as stack:
        world = stack.enter_context(World(settings))
        service: Service
        if arguments.sam is None:
            service = stack.enter_context(Emulator(world.configs, world.log))
        else:
            service = sam_local.SamLocal(world.configs, world.log, arguments.sam)
        for function in FUNCTIONS[: FUNCTIONS.index(arguments.function or FUNCTIONS[-1]) + 1]:
            chosen = function == arguments.function
            sent = json.loads(arguments.event.read_text()) if chosen and arguments.event else event(function)
            if not invoke(world, service, function, sent, shown=chosen or arguments.function is None):
                return False
    return True


def main() -> int:
    """Invoke what the command line asks for, and return the exit status."""
    parser = argparse.ArgumentParser(prog="simulator.invoke", description="Invoke functions in a world of their own.")
    parser.add_argument("function", nargs="?", choices=FUNCTIONS, help="print this one; else all")
    parser.add_argument("--event", type=Path, metavar="FILE", help="send this instead of events/FUNCTION.json")
    parser.add_argument(
        "--sam", type=Path, metavar="FOLDER", help="run what sam build put there under sam local invoke"
    )
    arguments = parser.parse_args()
    if arguments.event is not None and arguments.function is None:
        parser.error("an event is for one function: name it")
    try:
        return 0 if _run(arguments) else 1
    except OSError as error:  # no emulator, no engine, no such file, or no work within reasonable time
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
