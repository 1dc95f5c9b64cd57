"""The messages that the agent reads and writes; the field numbers are those of ``proto/``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .refusal import Refusal
from .wire import field, fields, integer, signed

if TYPE_CHECKING:
    from collections.abc import Sequence

_TEXT = {1: "machine_id", 2: "bmaas_endpoint"}
_CA_CERTIFICATE = 3


@dataclass(frozen=True)
class TakeoverInit:
    """The message that starts the agent."""

    machine_id: str
    bmaas_endpoint: str
    ca_certificate: bytes
    """The only CA to trust for the endpoint, in DER; empty: those of the system."""
    received: bytes
    """The message as received; the response repeats it."""

    @classmethod
    def decode(cls, message: bytes) -> TakeoverInit:
        """
        Decode *message*; unknown fields are ignored.

        Raises:
            Refusal: *message* is not a TakeoverInit, or names no machine or no endpoint.
        """
        text = dict.fromkeys(_TEXT.values(), "")
        ca_certificate = b""
        try:
            for number, value in fields(message):
                if isinstance(value, int):
                    continue
                if number in _TEXT:
                    text[_TEXT[number]] = value.decode()
                elif number == _CA_CERTIFICATE:
                    ca_certificate = value
        except ValueError as error:
            raise Refusal(f"the standard input is not a TakeoverInit: {error}") from error
        for name, content in text.items():
            if not content:
                raise Refusal(f"the TakeoverInit has no {name}")
        return cls(text["machine_id"], text["bmaas_endpoint"], ca_certificate, message)


def takeover_success(init: TakeoverInit, key: bytes, warnings: Sequence[str]) -> bytes:
    """Return the TakeoverResponse that reports success; *key* is the public key."""
    success = field(1, init.received) + field(2, key)
    return field(1, success + b"".join(field(3, warning.encode()) for warning in warnings))


def takeover_error(message: str) -> bytes:
    """Return the TakeoverResponse that reports a failure."""
    return field(2, field(1, message.encode(errors="replace")))


def heartbeat_request(machine_id: str, *, hardware: bytes = b"", installation: bytes = b"") -> bytes:
    """Return the HeartbeatRequest of the machine, with the encoded reports that are not empty."""
    message = field(1, machine_id.encode())
    if hardware:
        message += field(2, hardware)
    if installation:
        message += field(3, installation)
    return message


@dataclass(frozen=True)
class InstallationRequest:
    """A request to install an operating system: an OSInstallationRequest."""

    generation: int
    received: bytes
    """The message as received."""


def installation_request(response: bytes) -> InstallationRequest | None:
    """
    Return the installation that the HeartbeatResponse *response* requests, None if it requests none.

    Raises:
        ValueError: *response* is not a HeartbeatResponse.
    """
    # By the protobuf specification, repeated occurrences of a message field are merged.
    parts = [value for number, value in fields(response) if number == 1 and isinstance(value, bytes)]
    if not parts:
        return None
    request = b"".join(parts)
    generation = 0
    for number, value in fields(request):
        if number == 1 and isinstance(value, int):
            generation = signed(value)
    return InstallationRequest(generation, request)


def installation_report(generation: int, error: str | None) -> bytes:
    """Return the OSInstallationReport of *error*; None: of success."""
    result = field(2, b"") if error is None else field(3, field(1, error.encode(errors="replace")))
    return integer(1, generation) + result
