"""
The process of one machine: carries out requests over its connection, within hard limits.

Whatever a machine sends, and whatever a parser makes of it, this process uses no
more memory and processor time than its limits, writes no file and starts no
program. It ends when the function closes the socket of its requests.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import threading
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from shepherd_core.adapters.ssh import messages
from shepherd_core.adapters.ssh.client import Client, ProtocolViolation
from shepherd_core.adapters.ssh.messages import MEMORY_BYTES, MESSAGE_BYTES, TEXT, RequestFailed, SshFailure

_OUT_OF_MEMORY = 70
"""The exit status of a process that has no memory left to report that."""
_CRASHED = 71
_WITHOUT_LIMITS = 72
_NICENESS = 10
_PR_SET_PDEATHSIG = 1
_STACK_BYTES = 1 << 20
_FILES = 64

_MEMORY = f"it made the process that talks to it use more than {MEMORY_BYTES >> 20} MiB of memory"


def serve(machine: socket.socket, requests: socket.socket, fork_server: int) -> NoReturn:
    """Carry out requests until killed; to be called in a new process of the process *fork_server*."""
    status = _WITHOUT_LIMITS
    try:
        _limit()
        status = _CRASHED
        client = Client(machine)
        while os.getppid() == fork_server:  # else it ended before the kernel was told to end this process with it
            data, descriptors, _, _ = socket.recv_fds(requests, MESSAGE_BYTES, 1)
            if not data:
                break
            requests.send(_answer(client, json.loads(data), *descriptors))
    except MemoryError:
        status = _OUT_OF_MEMORY
    except OSError:
        pass  # the function has closed the socket, and the fork server is about to kill this process
    except Exception:  # noqa: BLE001 - a mistake in this code: for the log
        traceback.print_exc()
    finally:
        os._exit(status)


def how_it_ended(status: int) -> tuple[SshFailure, str]:
    """Return why a process ended by itself; *status* is its exit status, or the negative number of its signal."""
    if status == -signal.SIGKILL:
        return SshFailure.OURS, "the process that talks to it was killed: the function may need more memory"
    if status == _WITHOUT_LIMITS:
        return SshFailure.OURS, "the process that talks to it could not set its limits"
    if status == -signal.SIGXCPU:
        return SshFailure.MISBEHAVED, "it made the process that talks to it use up its processor time"
    if status == _OUT_OF_MEMORY:
        return SshFailure.MISBEHAVED, _MEMORY
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return SshFailure.MISBEHAVED, f"it made the process that talks to it end with {how}"


def _limit() -> None:
    """Set the limits of this process; only the one of processor time grows, with each request."""
    # Not everywhere allowed; then the timer of the last request ends a process whose fork server was killed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(_NICENESS)
    threading.stack_size(_STACK_BYTES)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    memory = pages * resource.getpagesize() + MEMORY_BYTES
    for what, limit in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _FILES),
    ):
        resource.setrlimit(what, (limit, limit))


def _answer(client: Client, request: dict[str, Any], stdin: int = -1) -> bytes:
    signal.setitimer(signal.ITIMER_REAL, request["seconds"] + request["grace_seconds"])
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + request["processor_seconds"]) + 1, most))
    try:
        match request["do"]:
            case "exchange keys":
                return messages.encode({"host_key": client.exchange_keys(request["kind"])})
            case "log in":
                client.log_in(request["user"], request["key"])
                return messages.encode({})
            case _:
                return messages.encode_result(client.execute(request["command"], stdin, request["until"].encode()))
    except RequestFailed as error:
        failure, text = error.failure, error.text
    except ProtocolViolation as error:
        failure, text = SshFailure.MISBEHAVED, str(error)
    except MemoryError:
        failure, text = SshFailure.MISBEHAVED, _MEMORY
    return messages.encode({"failure": failure, "text": text[:TEXT]})
