"""The takeover: read the TakeoverInit, answer with a new key, then run in the background."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .ed25519 import SEED_LENGTH, PrivateKey
from .hardware.inventory import Inventory
from .installation.installer import Installer, time_limit
from .installation.permit import Permit
from .messages import TakeoverInit, takeover_success
from .process import PidFile, detach, has_open, keep_memory_private, older_agents
from .refusal import AgentRefusal
from .reports.endpoint import Endpoint
from .reports.heartbeat import Heartbeats, send_heartbeats
from .reports.interval import Interval
from .reports.reporter import Reporter

if TYPE_CHECKING:
    from typing import BinaryIO, NoReturn

_LONGEST_INIT = 1 << 20


def take_over(source: BinaryIO, answer: BinaryIO, path: str) -> NoReturn:
    """
    Read a TakeoverInit from *source* and write the TakeoverResponse to *answer*.

    Then the calling process exits with status 0, and a detached one sends
    heartbeats until it is killed. *path* is that of the executable: the agents that
    run from it are killed before the answer, the one in *path*.pid first; *path*.install
    is the operator's command for installations; *path*.generation records the last
    one that was started, *path*.interval how often to report. An installation would end with the
    agent that runs it, so meanwhile that agent is left alone.

    Raises:
        AgentRefusal: nothing was written to *answer*, and no agent was started.
    """
    init = TakeoverInit.decode(_read(source))
    endpoint = Endpoint(init.bmaas_endpoint, init.ca_certificate)
    interval = Interval(os.environ, f"{path}.interval")
    limit = time_limit(os.environ)
    installer = Installer(f"{path}.install", limit, Permit(init, f"{path}.generation"))
    if _installs(path, limit):
        raise AgentRefusal("the running agent carries out an installation: a new one would end it")
    warnings = []
    if init.ca_certificate and not endpoint.encrypted:
        warnings.append("the ca_certificate is not used, because the endpoint is plain HTTP")
    untimely = endpoint.untimely(time.time())
    if untimely:
        warnings.append(
            f"{untimely}, but this machine's clock says {time.strftime('%Y-%m-%d %H:%M:%SZ', time.gmtime())}"
        )
    pid_file = None
    try:
        pid_file = PidFile(f"{path}.pid")
    except OSError as error:
        warnings.append(f"no record of this agent's process: {error}")
    for older in older_agents(path):
        with contextlib.suppress(OSError):
            os.kill(older, signal.SIGKILL)
    keep_memory_private()
    key = PrivateKey(os.urandom(SEED_LENGTH))  # never leaves the memory of this process
    answer.write(takeover_success(init, key.public, warnings))
    answer.flush()
    detach(pid_file)
    send_heartbeats(Heartbeats(Reporter(endpoint, key, init.machine_id), Inventory(), installer, interval))


def _installs(path: str, limit: float) -> bool:
    """Return whether an agent of *path* carries out an installation that has begun less than *limit* seconds ago."""
    try:
        seconds = time.time() - Path(f"{path}.generation").stat().st_mtime
    except OSError:
        return False  # it has not begun
    return abs(seconds) < limit and any(has_open(older, f"{path}.install") for older in older_agents(path))


def _read(source: BinaryIO) -> bytes:
    message = source.read(_LONGEST_INIT + 1)
    if len(message) > _LONGEST_INIT:
        raise AgentRefusal(f"the standard input is longer than {_LONGEST_INIT} bytes")
    return message
