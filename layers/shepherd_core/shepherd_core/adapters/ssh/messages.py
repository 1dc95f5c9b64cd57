"""
The messages between a function and the process of a machine, each one small JSON object.

The process reads what the machine sends, and a machine may find a way to write in
its name. So a function takes from it only texts and numbers of known size and
form, one answer to one request.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from shepherd_core.agent.takeover import STDERR_BYTES, RunResult, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

STDOUT_BYTES = 1 << 16
"""The largest answer of a program on a machine."""
MESSAGE_BYTES = 1 << 17
"""The largest message."""
TEXT = 2_000
"""Characters of a text that explains a failure."""
DETAIL = 200
"""Characters of one part of such a text."""
HOST_KEY = 8_192
"""Characters of a host key: twice that of an RSA key of 16,384 bits."""
MEMORY_BYTES = 32 << 20
"""How much more memory than at its start the process of a machine may use."""

_EXIT_STATUS = range(-1, 256)


class SshFailure(StrEnum):
    """The kind of failure of a request."""

    FAILED = "failed"
    """The machine refused it; the connection still works."""
    LOST = "lost"
    """The connection is lost."""
    LOGIN = "login"
    """The machine does not accept our key."""
    FLOODED = "flooded"
    """The program wrote more than ``STDOUT_BYTES``."""
    OURS = "ours"
    """The machine is not at fault: its process could not be made, or was killed from outside."""
    MISBEHAVED = "misbehaved"
    """The machine sent what no SSH server sends, or used up what its process may use."""


class RequestFailed(Exception):
    """The process of the machine reports a failure."""

    def __init__(self, failure: SshFailure, text: str) -> None:
        self.failure = failure
        self.text = text
        super().__init__(failure, text)


def encode(message: Mapping[str, Any]) -> bytes:
    """Return *message* as it is sent."""
    return json.dumps(message).encode()


def encode_result(result: RunResult) -> bytes:
    """Return the message with the *result* of a program."""
    outputs = {"stdout": b64encode(result.stdout).decode(), "stderr": b64encode(result.stderr).decode()}
    return encode({**outputs, "exit_status": result.exit_status})


def decode(data: bytes) -> dict[str, Any]:
    """
    Return the answer in *data*.

    Raises:
        RequestFailed: the request failed, or this is no answer.
    """
    try:
        answer = json.loads(data)
        if "failure" not in answer:
            return dict(answer)
        failure, text = SshFailure(answer["failure"]), str(answer["text"])[:TEXT]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RequestFailed(
            SshFailure.MISBEHAVED, "the process that talks to it sent something other than an answer"
        ) from error
    raise RequestFailed(failure, text)


def host_key(answer: Mapping[str, Any]) -> str:
    """
    Return the host key in *answer*, ``ssh-ed25519 AAAA...``.

    Raises:
        RequestFailed: there is none.
    """
    key = answer.get("host_key")
    valid = isinstance(key, str) and len(key) <= HOST_KEY and re.fullmatch(r"[a-z0-9@.-]{1,64} [^ ]+", key)
    if isinstance(key, str) and valid and _bytes(key.partition(" ")[2], HOST_KEY):
        return key
    raise RequestFailed(SshFailure.MISBEHAVED, "the process that talks to it sent no host key")


def result(answer: Mapping[str, Any]) -> RunResult:
    """
    Return the result of a program in *answer*.

    Raises:
        RequestFailed: there is none.
    """
    stdout, stderr = _bytes(answer.get("stdout"), STDOUT_BYTES), _bytes(answer.get("stderr"), STDERR_BYTES)
    status = answer.get("exit_status")
    if stdout is None or stderr is None or type(status) is not int or status not in _EXIT_STATUS:
        raise RequestFailed(SshFailure.MISBEHAVED, "the process that talks to it sent no result of a program")
    return RunResult(stdout, stderr, status)


def text_of(error: Exception) -> str:
    """Return the text of *error*, or its type; parts of it may come from the machine."""
    text = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    return printable(text, DETAIL)


def _bytes(text: object, limit: int) -> bytes | None:
    """Return the bytes that *text* holds in base64, or None if it does not hold at most *limit* bytes."""
    try:
        content = b64decode(text, validate=True) if isinstance(text, str) else None
    except ValueError:
        return None
    return content if content is not None and len(content) <= limit else None
