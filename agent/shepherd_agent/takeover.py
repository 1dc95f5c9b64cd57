"""The takeover: read who we are, answer with a new key, then live on in the background."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .ed25519 import SEED_LENGTH, public_key
from .endpoint import Endpoint
from .heartbeat import interval, send_heartbeats
from .messages import TakeoverInit, takeover_success
from .process import PidFile, detach, keep_memory_private
from .refusal import Refusal

if TYPE_CHECKING:
    from typing import BinaryIO, NoReturn

_LONGEST_INIT = 1 << 20


def take_over(source: BinaryIO, answer: BinaryIO, pid_path: str) -> NoReturn:
    """
    Read a TakeoverInit from *source* and write the TakeoverResponse to *answer*.

    Then the calling process exits with status 0, and a detached one sends
    heartbeats until it is killed. An agent that runs already, as *pid_path*
    tells, is killed before the answer.

    Raises:
        Refusal: nothing was written to *answer*, and no agent was started.
    """
    init = TakeoverInit.decode(_read(source))
    endpoint = Endpoint(init.bmaas_endpoint, init.ca_certificate)
    seconds = interval(os.environ)
    warnings = []
    if init.ca_certificate and not endpoint.encrypted:
        warnings.append("the ca_certificate is not used: the endpoint is plain HTTP")
    pid_file = None
    try:
        pid_file = PidFile(pid_path)
    except OSError as error:
        warnings.append(f"a later agent will not replace this one: {error}")
    keep_memory_private()
    private_key = os.urandom(SEED_LENGTH)  # never leaves the memory of this process
    answer.write(takeover_success(init, public_key(private_key), warnings))
    answer.flush()
    detach(pid_file)
    send_heartbeats(endpoint, init.machine_id, seconds)


def _read(source: BinaryIO) -> bytes:
    message = source.read(_LONGEST_INIT + 1)
    if len(message) > _LONGEST_INIT:
        raise Refusal(f"the standard input is longer than {_LONGEST_INIT} bytes")
    return message
