"""Decides which installations the agent carries out: those that an operator signed for this machine, each once."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ..ed25519 import verify
from ..messages import SignedInstallation

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..messages import InstallationRequest, TakeoverInit

_DOMAIN = b"shepherd-installation-v1"
_LONGEST_RECORD = 200
_REMEDY = "see docs/how-to/install#the-installation-key; then restart the agent"


class NotPermitted(Exception):
    """The installation is not carried out; the text is sent to Shepherd."""


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Permit:
    """
    Checks requests with the keys and the time that the takeover brought over SSH.

    It trusts neither the endpoint nor the machine's clock, which the network may set: the time is that of the takeover
    plus the seconds since then.
    """

    def __init__(self, init: TakeoverInit, record: str, elapsed: Callable[[], float] = _since_boot) -> None:
        """*record* is the file of the last generation that was started; *elapsed* returns seconds."""
        self._machine_id = init.machine_id
        self._keys = init.installation_keys
        self._record = record
        self._elapsed = elapsed
        self._epoch = init.time / 1000 - elapsed()

    def check(self, request: InstallationRequest) -> InstallationRequest:
        """
        Return the request that an operator signed, which *request* carries.

        Raises:
            NotPermitted: it has no signature by a known key, is for another machine or has expired.
        """
        if not self._keys:
            raise NotPermitted(f"this agent was started while there was no installation key: {_REMEDY}")
        if not request.signed or not request.signature:
            raise NotPermitted("the request is not signed")
        message = _DOMAIN + b"\n" + request.signed
        if not any(verify(key, request.signature, message) for key in self._keys):
            raise NotPermitted(f"the request is not signed with a key that this agent was started with: {_REMEDY}")
        try:
            signed = SignedInstallation.decode(request.signed)
        except ValueError as error:
            raise NotPermitted(f"what was signed is not a SignedInstallation: {error}") from error
        if signed.machine_id != self._machine_id:
            raise NotPermitted(f"the request was signed for machine {signed.machine_id}")
        if signed.request.generation != request.generation:
            raise NotPermitted(f"the request was signed as generation {signed.request.generation}")
        now = self._epoch + self._elapsed()
        if now * 1000 > signed.expires_at:
            raise NotPermitted(f"the signature expired at {_shown(signed.expires_at / 1000)}, and it is {_shown(now)}")
        return signed.request

    def use(self, generation: int) -> None:
        """
        Record that the installation of *generation* is started, so that no agent of this machine starts it again.

        Raises:
            NotPermitted: an earlier agent has started it, with an outcome that is not known, or a later one.
            OSError, ValueError: the record cannot be read or written.
        """
        file = os.open(self._record, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            machine_id, _, last = os.pread(file, _LONGEST_RECORD, 0).decode().partition(" ")
            if machine_id == self._machine_id and generation <= int(last):
                raise NotPermitted(f"an earlier agent has started generation {int(last)}: request a later one")
            written = f"{self._machine_id} {generation}\n".encode()
            os.pwrite(file, written.ljust(_LONGEST_RECORD), 0)
            os.fsync(file)
        finally:
            os.close(file)


def _shown(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))
