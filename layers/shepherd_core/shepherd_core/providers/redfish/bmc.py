"""
A BMC for sushy: its connector, with our time limits, retries and errors.

sushy knows Redfish and the vendors' deviations from it. Its own transport
retries, sleeps and logs in again without a deadline.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sushy import exceptions
from sushy.connector import Connector

from shepherd_core.domain.errors import ShepherdError, TimeLimitExceeded
from shepherd_core.domain.errors.provider import ProviderRefused, ProviderUnavailable
from shepherd_core.providers.redfish.answer import TEXT_LENGTH, BmcAnswer, said
from shepherd_core.providers.redfish.session import CLOSING_SECONDS, UNREADABLE, BmcSession
from shepherd_core.providers.redfish.transport import BmcRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shepherd_core.domain.clock import Clock, Deadline, Permission
    from shepherd_core.domain.errors.provider import ProviderError
    from shepherd_core.providers.redfish.login import BmcCredentials
    from shepherd_core.providers.redfish.transport import BmcAccess

TRIES = 3
"""The total number of tries of a read."""
PAUSE_SECONDS = 0.5
"""The pause after the first try, unless the BMC names one; doubled after each further one."""

_PASSING = (408, 409, 423, 425, 429, 500, 502, 503, 504, 507)


@dataclass(frozen=True, slots=True, kw_only=True)
class BmcOptions:
    """The options for all BMCs."""

    logins: BmcCredentials
    clock: Clock
    seconds: float
    """The time limit of a request, including all tries."""
    sessions: bool
    """Whether to use a session, with login and logout; otherwise every request has the credential."""


@contextmanager
def connected(options: BmcOptions, bmc_access: BmcAccess, deadline: Deadline) -> Iterator[Bmc]:
    """
    Yield the BMC at *bmc_access*, and close its session at the end; sushy's errors are raised as Shepherd's.

    Raises:
        ProviderUnavailable: no answer, one that was not understood, or a temporary refusal. Unknown whether a change
            took effect.
        ProviderRefused: the BMC refuses, or its certificate is not trusted.
        TimeLimitExceeded: no time is left.
        SessionExpired: the BMDB session ended before a change could be requested.
    """
    bmc = Bmc(options, bmc_access, deadline)
    try:
        yield bmc
    except (exceptions.SushyError, *UNREADABLE) as error:
        raise bmc.meaning(error) from error
    finally:
        bmc.session.close()


class Bmc(Connector):  # type: ignore[misc]  # sushy publishes no types
    """A BMC, for one thread and one operation; created by ``connected``."""

    def __init__(self, options: BmcOptions, bmc_access: BmcAccess, deadline: Deadline) -> None:
        # Without Connector.__init__, which would prepare its own connections.
        self._options = options
        self._bmc_access = bmc_access
        left = deadline.remaining()
        self._work = deadline.within(left - min(CLOSING_SECONDS, left / 4)) if options.sessions else deadline
        self.session = BmcSession(bmc_access, options.logins, deadline, sessions=options.sessions)
        self._retry_after: float | None = None
        self.permission: Permission | None = None
        """To interrupt the machine by the changes that are requested from now on; None: they do not interrupt it."""
        self.broken: ShepherdError | None = None
        """The last error of a request without a useful answer; kept here because sushy ignores some errors."""

    @property
    def name(self) -> str:
        """Return its name in errors."""
        return f"the BMC {self._bmc_access.url}"

    @property
    def asked(self) -> str:
        """Return the last request, as errors name it."""
        return self.session.asked

    @contextmanager
    def reserving(self, seconds: float) -> Iterator[None]:
        """Reserve *seconds*, at most a quarter of the time that is left, for what comes after the block."""
        work = self._work
        left = work.remaining()
        self._work = work.within(left - min(seconds, left / 4))
        try:
            yield
        finally:
            self._work = work

    def meaning(self, error: Exception) -> ShepherdError:
        """Return Shepherd's error for any that an operation on this BMC raises."""
        if isinstance(error, ShepherdError):
            return error
        if isinstance(error, exceptions.HTTPError):
            return self.failure(error)
        if isinstance(error, exceptions.SushyError):
            return ProviderRefused(f"{self.asked}: {str(error)[:TEXT_LENGTH]}")
        return ProviderUnavailable(f"{self.asked}: the answer is not understood: {error!r:.200}")

    def failure(self, error: exceptions.HTTPError) -> ProviderError:
        """Return Shepherd's error for a refusal of the BMC, with the BMC's message."""
        words = said(error.body)
        message = f"{self.asked}: {error.status_code}{': ' if words else ''}{words}"
        passing = error.status_code in _PASSING or self.check_retry_on_exception(error)
        return ProviderUnavailable(message, self._retry_after) if passing else ProviderRefused(message)

    def _op(
        self,
        method: str,
        path: str = "",
        data: object = None,
        headers: Mapping[str, str | None] | None = None,
        **_: object,
    ) -> BmcAnswer:
        """
        Send a request and return the answer; reads are tried up to three times, while there is time.

        All requests of sushy's resources come through here.
        """
        given = {name: value for name, value in (headers or {}).items() if value is not None}
        effect = method != "GET"
        request = BmcRequest(
            method=method,
            path=path,
            data=data,
            headers=given,
            effect=effect,
            permission=self.permission if effect else None,
        )
        try:
            answer = self._tried(request, self._work.within(self._options.seconds))
            exceptions.raise_for_response(method, path, answer)
            if not answer.ok:
                raise ProviderRefused(f"{self.asked}: {answer.status_code}: redirections are not followed")
            if method == "GET" and not (answer.content and isinstance(answer.decoded(), dict)):
                raise ProviderUnavailable(f"{self.asked}: {answer.status_code}, but no JSON object")
        except exceptions.HTTPError as error:
            failure = self.failure(error)
            if failure.retryable:
                self.broken = failure
            raise
        except ShepherdError as error:
            self.broken = error
            if isinstance(error, TimeLimitExceeded) and self._work.remaining() > 0:
                raise ProviderUnavailable(f"{self.asked}: not done within {self._options.seconds:g} s") from error
            raise
        return answer

    def _tried(self, request: BmcRequest, limit: Deadline) -> BmcAnswer:
        for tries in itertools.count(1):
            pause = PAUSE_SECONDS * 2 ** (tries - 1)
            last = request.effect or tries == TRIES
            try:
                answer = self.session.send(request, limit)
                self._retry_after = answer.retry_after
                pause = pause if self._retry_after is None else self._retry_after
                if last or answer.status_code not in _PASSING or limit.remaining() <= pause:
                    return answer
            except ProviderUnavailable:
                if last or limit.remaining() <= pause:
                    raise
            self._options.clock.sleep(pause)
        raise AssertionError  # count never ends
