"""
Processes that run a real function, as Lambda does, and are killed by SIGKILL at one of its effects.

Run as ``python -m tests.chaos.stage.child FD``: reads one JSON request a line from
standard input, forks a process for it, and answers with one JSON line on the
file descriptor FD when that has ended. The parent has imported everything, so
that a forked process costs milliseconds.
"""

import importlib.util
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import aws_lambda_powertools.utilities.parameters
import boto3
from shepherd_core import handlers
from shepherd_core.adapters import aws, documents, ssh_keys
from shepherd_core.adapters.aws import secrets
from shepherd_core.adapters.ssh import dialer
from shepherd_core.agent import endpoint
from shepherd_core.domain.pace import Pace
from shepherd_core.loops import initializer, provisioner, recoverer, updater
from shepherd_core.providers.equinix import adapter
from shepherd_core.wiring import agent_endpoint, loops, pace

from simulator.lambda_.environment import Context
from tests.chaos.crash_points import Points

T = TypeVar("T")

ROOT = Path(__file__).parents[3]
SECONDS = 300.0
"""Time limit of an invocation."""

IMPORTED = (
    endpoint, aws, aws_lambda_powertools.utilities.parameters, boto3, loops, agent_endpoint, adapter, initializer,
    documents, provisioner, recoverer, handlers, secrets, dialer, ssh_keys, updater,
)  # fmt: skip
"""Modules that are imported before the fork, once for all processes."""


class KillSelf:
    """A ``Guard`` that kills its own process at effect number *at* (0: never), before it or *after* it."""

    killed = False

    def __init__(self, at: int, *, after: bool, pipe: int) -> None:
        """Write the name of that effect to *pipe*."""
        self._at = at
        self._after = after
        self._pipe = pipe
        self._lock = threading.Lock()
        self._count = 0

    def effect(self, name: str, call: Callable[[], T]) -> T:
        with self._lock:
            self._count += 1
            fatal = self._count == self._at
        if fatal and not self._after:
            self._kill(name)
        result = call()
        if fatal:
            self._kill(name)
        return result

    def starts(self, thread: threading.Thread) -> None: ...

    def _kill(self, name: str) -> None:
        os.write(self._pipe, name.encode())
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(SECONDS)  # until the signal arrives


def _serve(request: dict[str, Any], pipe: int) -> None:
    """Carry out *request* in this process, and exit."""
    os.environ.clear()
    os.environ.update(request["environment"])
    pace.current = Pace(**request["pace"])
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    name = request["function"]
    spec = importlib.util.spec_from_file_location(f"{name}_app", ROOT / "functions" / name / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    context = Context("chaos", name, time.monotonic() + SECONDS)
    try:
        with Points(KillSelf(request["at"], after=request["after"], pipe=pipe)):
            module.lambda_handler(request["event"], context)
    except Exception as error:  # noqa: BLE001 - reported to the parent
        os.write(pipe, f"{type(error).__name__}: {error}"[:1000].encode())
        os._exit(1)
    os._exit(0)


def main() -> None:
    """Serve requests until standard input ends."""
    with os.fdopen(int(sys.argv[1]), "w") as answers:
        for line in sys.stdin:
            reader, writer = os.pipe()
            process = os.fork()
            if process == 0:
                _serve(json.loads(line), writer)
            os.close(writer)
            with os.fdopen(reader, "rb") as pipe:
                told = pipe.read().decode()
            _, status = os.waitpid(process, 0)
            answers.write(json.dumps({"status": os.waitstatus_to_exitcode(status), "told": told}) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
