"""The client of Hetzner's Robot web service: forms, errors with a code, rate limits by the hour, and a lock-out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core.domain.errors.provider import MachineNotFound, NotSupported, ProviderRefused, ProviderUnavailable
from shepherd_core.providers.kit.auth import Basic
from shepherd_core.providers.kit.dialect import Dialect, Refusal
from shepherd_core.providers.kit.http import HttpApi

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.domain.clock import Clock

LOCKOUT_SECONDS = 600
"""How long Robot locks out an address after three failed logins."""
LIMIT_SECONDS = 3_600
"""The length of Robot's rate limit windows; used if the answer does not give one."""


class AlreadyEnabled(ProviderRefused):
    """A boot configuration of the server is active already."""


DIALECT = Dialect(
    refusals=(
        Refusal(  # with status 403
            says="^RATE_LIMIT_EXCEEDED",
            error=ProviderUnavailable,
            retry_field="error.interval",
            retry_after=LIMIT_SECONDS,
        ),
        Refusal(says="^SERVER_NOT_FOUND", error=MachineNotFound),
        Refusal(says="^(RESET|BOOT)_NOT_AVAILABLE", error=NotSupported),
        Refusal(says="^RESET_MANUAL_ACTIVE", error=ProviderUnavailable),  # until the technician has finished
        Refusal(says="^BOOT_ALREADY_ENABLED", error=AlreadyEnabled),  # not in the description, but observed
    ),
    body="data",
    lockout_seconds=LOCKOUT_SECONDS,
)


def robot_api(url: str, credential: Callable[[], str], clock: Clock) -> HttpApi:
    """
    Return the client for the credential ``USER:PASSWORD``.

    One request at a time, so that a refused credential is sent only once: after
    three failed logins, Robot locks out the address and all clients behind it.
    Robot's rate limits leave little to gain from concurrent requests.
    """
    return HttpApi(url, Basic(credential), clock, 1, DIALECT)
