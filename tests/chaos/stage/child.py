"""
A real function in a process of its own, as Lambda runs it, that may be killed by SIGKILL at one of its effects.

The process is forked from one that has imported this module, and with it all
that functions use, so that it takes milliseconds.
"""

import importlib.util
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

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
from tests.chaos.crash_points import KillAt, Points

ROOT = Path(__file__).parents[3]
SECONDS = 300.0
"""Time limit of an invocation."""

IMPORTED = (
    endpoint, aws, aws_lambda_powertools.utilities.parameters, boto3, loops, agent_endpoint, adapter, initializer,
    documents, provisioner, recoverer, handlers, secrets, dialer, ssh_keys, updater,
)  # fmt: skip
"""Modules that are imported before the fork."""


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
