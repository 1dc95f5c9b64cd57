"""
A real function in a process of its own, as Lambda runs it, that may be killed by SIGKILL at one of its effects.

The process is forked from one that has imported this module, and with it all
that functions use, so that it takes milliseconds.
"""

import importlib.util
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
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
"""Modules that are imported before the fork."""


class KillSelf:
    """A ``Guard`` that kills its own process at effect number *at* (0: never), before it or *after* it."""

    killed = False

    def __init__(self, at: int, *, after: bool, pipe: Connection) -> None:
        """Tell the name of that effect through *pipe*."""
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
        self._pipe.send(("killed", name))
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(SECONDS)  # until the signal arrives


def carry_out(request: dict[str, Any], pipe: Connection) -> None:
    """Invoke a function in this process, tell how it ended, and exit."""
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
        pipe.send(("done", ""))
    except Exception as error:  # noqa: BLE001 - reported to the parent
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
    os._exit(0)
