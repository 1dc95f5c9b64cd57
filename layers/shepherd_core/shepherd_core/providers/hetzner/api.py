"""The client of Hetzner's Robot web service: basic authentication, forms, errors with a code, and a lock-out."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

from shepherd_core.domain.errors import (
    MachineNotFound,
    NotSupported,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUnusable,
)
from shepherd_core.providers.kit.http import HttpApi

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shepherd_core.domain.clock import Clock
    from shepherd_core.providers.kit.answer import HttpAnswer

LOCKOUT_SECONDS = 600
"""How long Robot locks out an address after three failed logins."""
LIMIT_SECONDS = 3_600
"""The length of Robot's rate limit windows; used if the answer does not give one."""


class AlreadyEnabled(ProviderRefused):
    """A boot configuration of the server is active already."""


_KINDS: Mapping[str, type[ProviderError]] = {
    "SERVER_NOT_FOUND": MachineNotFound,
    "RESET_NOT_AVAILABLE": NotSupported,
    "BOOT_NOT_AVAILABLE": NotSupported,
    "RESET_MANUAL_ACTIVE": ProviderUnavailable,  # until the technician has finished
    "BOOT_ALREADY_ENABLED": AlreadyEnabled,  # not in the description, but observed
}


class RobotApi(HttpApi):
    """
    The web service, for the credential ``USER:PASSWORD``.

    One request at a time, so that a refused credential is sent only once: after
    three failed logins, Robot locks out the address and all clients behind it.
    Robot's rate limits leave little to gain from concurrent requests.
    """

    def __init__(self, url: str, credential: Callable[[], str], clock: Clock) -> None:
        super().__init__(url, "Authorization", credential, clock, 1, lockout_seconds=LOCKOUT_SECONDS)

    def _ask_credential(self) -> str:
        credential = super()._ask_credential()
        if not all(credential.partition(":")):
            self._known_credential = None
            raise ProviderUnusable(f"the credential for {self._url} is not of the form USER:PASSWORD; it was not sent")
        return credential

    def _authorization(self, credential: str) -> str:
        return f"Basic {_base64(credential)}"

    def _secrets(self, credential: str) -> tuple[str, ...]:
        return (credential, credential.partition(":")[2], _base64(credential))

    def _encoded(self, body: object) -> Mapping[str, Any]:
        return {"data": body}

    def _said(self, answer: HttpAnswer) -> str:
        fault = _fault(answer)
        fields = [f"{problem} {', '.join(map(str, named))}" for problem in ("missing", "invalid")
                  if isinstance(named := fault.get(problem), list) and named]  # fmt: skip
        return ": ".join(str(part) for part in (fault.get("code"), fault.get("message"), "; ".join(fields)) if part)

    def _failure(self, message: str, answer: HttpAnswer, missing: type[ProviderError]) -> ProviderError:
        fault = _fault(answer)
        if fault.get("code") == "RATE_LIMIT_EXCEEDED":  # with status 403
            interval = fault.get("interval")
            return ProviderUnavailable(
                message, interval if isinstance(interval, int) and interval > 0 else LIMIT_SECONDS
            )
        kind = _KINDS.get(str(fault.get("code")))
        return super()._failure(message, answer, missing) if kind is None else kind(message)


def _base64(credential: str) -> str:
    return b64encode(credential.encode()).decode("ascii")


def _fault(answer: HttpAnswer) -> dict[str, Any]:
    """Return the error in the answer; empty if the answer is not Robot's."""
    said = answer.decoded()
    fault = said.get("error") if isinstance(said, dict) else None
    return fault if isinstance(fault, dict) else {}
