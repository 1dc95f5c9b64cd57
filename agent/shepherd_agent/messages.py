"""The messages that the agent reads and writes; the field numbers are those of ``proto/``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from .ed25519 import KEY_LENGTH
from .refusal import AgentRefusal
from .wire import field, fields, integer, signed

if TYPE_CHECKING:
    from collections.abc import Sequence

V = TypeVar("V", int, bytes)

_TEXT = {1: "machine_id", 2: "bmaas_endpoint"}
_CA_CERTIFICATE = 3
_INSTALLATION_KEY, _TIME = 1000, 1001
_SIGNED, _SIGNATURE = 1000, 1001
_FAILED_ATTEMPTS, _INTERVAL_IN_USE = 1000, 1001
_INTERVAL = 1000


@dataclass(frozen=True)
class TakeoverInit:
    """The message that starts the agent."""

    machine_id: str
    bmaas_endpoint: str
    ca_certificate: bytes
    """The only CA to trust for the endpoint, in DER; empty: those of the system."""
    received: bytes
    """The message as received; the response repeats it."""
    installation_keys: tuple[bytes, ...] = ()
    """The public keys that installations may be signed with, 32 bytes each."""
    time: int = 0
    """When Shepherd wrote it, in milliseconds since the Unix epoch; 0: it does not say."""

    @classmethod
    def decode(cls, message: bytes) -> TakeoverInit:
        """
        Decode *message*; unknown fields are ignored.

        Raises:
            AgentRefusal: *message* is not a TakeoverInit, or names no machine or no endpoint; or it has keys for
                installations, and one is not a key, or no time.
        """
        try:
            text = {name: _last(message, number, b"").decode() for number, name in _TEXT.items()}
            keys = [key for number, key in fields(message) if number == _INSTALLATION_KEY]
            ca_certificate, time = _last(message, _CA_CERTIFICATE, b""), signed(_last(message, _TIME, 0))
        except ValueError as error:
            raise AgentRefusal(f"the standard input is not a TakeoverInit: {error}") from error
        for name, content in text.items():
            if not content:
                raise AgentRefusal(f"the TakeoverInit has no {name}")
        installation_keys = tuple(key for key in keys if isinstance(key, bytes) and len(key) == KEY_LENGTH)
        if len(installation_keys) != len(keys):
            raise AgentRefusal(f"an installation_key of the TakeoverInit is not {KEY_LENGTH} bytes long")
        if keys and time <= 0:
            raise AgentRefusal("the TakeoverInit has an installation_key but no time")
        return cls(text["machine_id"], text["bmaas_endpoint"], ca_certificate, message, installation_keys, time)


def _last(message: bytes, number: int, default: V) -> V:
    """Return the last value of field *number*, the one that counts; *default* if there is none of its type."""
    found = [value for each, value in fields(message) if each == number and isinstance(value, type(default))]
    return found[-1] if found else default


def takeover_success(init: TakeoverInit, key: bytes, warnings: Sequence[str]) -> bytes:
    """Return the TakeoverResponse that reports success; *key* is the public key."""
    return field(1, field(1, init.received) + field(2, key) + b"".join(field(3, each.encode()) for each in warnings))


def takeover_error(message: str) -> bytes:
    """Return the TakeoverResponse that reports a failure."""
    return field(2, field(1, message.encode(errors="replace")))


def heartbeat_request(
    machine_id: str, *, hardware: bytes = b"", installation: bytes = b"", failed_attempts: int = 0, interval: int = 0
) -> bytes:
    """
    Return the HeartbeatRequest of the machine, with the encoded reports that are not empty.

    *failed_attempts* is how many failed since the last one that was accepted, *interval* in seconds.
    """
    message = field(1, machine_id.encode())
    if hardware:
        message += field(2, hardware)
    if installation:
        message += field(3, installation)
    return message + integer(_FAILED_ATTEMPTS, failed_attempts) + integer(_INTERVAL_IN_USE, interval)


@dataclass(frozen=True)
class InstallationRequest:
    """A request to install an operating system: an OSInstallationRequest."""

    generation: int
    received: bytes
    """The message as received."""
    signed: bytes = b""
    """A SignedInstallation, encoded."""
    signature: bytes = b""

    @classmethod
    def decode(cls, message: bytes) -> InstallationRequest:
        """
        Decode *message*.

        Raises:
            ValueError: *message* is not an OSInstallationRequest.
        """
        return cls(signed(_last(message, 1, 0)), message, _last(message, _SIGNED, b""), _last(message, _SIGNATURE, b""))


@dataclass(frozen=True)
class SignedInstallation:
    """An installation as an operator signed it."""

    machine_id: str
    expires_at: int
    """Milliseconds since the Unix epoch."""
    request: InstallationRequest

    @classmethod
    def decode(cls, message: bytes) -> SignedInstallation:
        """
        Decode *message*.

        Raises:
            ValueError: *message* is not a SignedInstallation.
        """
        request = InstallationRequest.decode(_last(message, 3, b""))
        return cls(_last(message, 1, b"").decode(), signed(_last(message, 2, 0)), request)


@dataclass(frozen=True)
class HeartbeatResponse:
    """The endpoint's answer to a heartbeat."""

    installation: InstallationRequest | None
    """None: no installation is requested."""
    interval: int
    """How long to wait between two heartbeats, in seconds; 0: as before."""

    @classmethod
    def decode(cls, message: bytes) -> HeartbeatResponse:
        """
        Decode *message*.

        Raises:
            ValueError: *message* is not a HeartbeatResponse.
        """
        # By the protobuf specification, repeated occurrences of a message field are merged.
        parts = [value for number, value in fields(message) if number == 1 and isinstance(value, bytes)]
        return cls(InstallationRequest.decode(b"".join(parts)) if parts else None, _last(message, _INTERVAL, 0))


def installation_report(generation: int, error: str | None) -> bytes:
    """Return the OSInstallationReport of a failure with *error*; None: of a success."""
    result = field(2, b"") if error is None else field(3, field(1, error.encode(errors="replace")))
    return integer(1, generation) + result
