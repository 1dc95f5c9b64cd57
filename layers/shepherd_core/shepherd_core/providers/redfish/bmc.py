"""
A BMC for sushy: its connector, with our transport, retries and logins.

sushy knows Redfish and the vendors' deviations from it. Its own transport
retries, sleeps and logs in again without a deadline.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sushy import exceptions
from sushy.connector import Connector

from shepherd_core import telemetry
from shepherd_core.domain.errors import ShepherdError, TimeLimitExceeded
from shepherd_core.domain.errors.provider import ProviderRefused, ProviderUnavailable
from shepherd_core.providers.redfish.answer import TEXT_LENGTH, BmcAnswer, said
from shepherd_core.providers.redfish.transport import BmcRequest, Transport

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shepherd_core.domain.clock import Clock, Deadline
    from shepherd_core.domain.errors.provider import ProviderError
    from shepherd_core.providers.redfish.login import Credential, Logins
    from shepherd_core.providers.redfish.transport import BmcAccess

ROOT = "/redfish/v1/"
TRIES = 3
"""The total number of tries of a read."""
PAUSE_SECONDS = 0.5
"""The pause after the first try, unless the BMC names one; doubled after each further one."""
CLOSING_SECONDS = 2.0
"""The time reserved for closing a session, at most a quarter of the time that is left."""

_PASSING = (408, 409, 423, 425, 429, 500, 502, 503, 504, 507)
_UNAUTHORIZED = 401


UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What sushy raises for an answer that is not what it expects: it parses answers without validating them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BmcOptions:
    """The options for all BMCs."""

    logins: Logins
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
        bmc.close()


class Bmc(Connector):  # type: ignore[misc]  # sushy publishes no types
    """A BMC, for one thread and one operation; created by ``connected``."""

    def __init__(self, options: BmcOptions, bmc_access: BmcAccess, deadline: Deadline) -> None:
        # Without Connector.__init__, which would prepare its own connections.
        self._options = options
        self._bmc_access = bmc_access
        self._deadline = deadline
        left = deadline.remaining()
        self._work = deadline.within(left - min(CLOSING_SECONDS, left / 4)) if options.sessions else deadline
        self._transport = Transport(bmc_access, self._hidden)
        self._credential: Credential | None = None
        self._token: str | None = None
        self._session_path: str | None = None
        self._secrets: list[str] = []
        self._retry_after: float | None = None
        self.interrupts = False
        """Whether requests from now on interrupt the machine."""
        self.broken: ShepherdError | None = None
        """The last error of a request without a useful answer, because sushy ignores some errors, also such ones."""

    @property
    def name(self) -> str:
        """Return its name in errors."""
        return f"the BMC {self._bmc_access.url}"

    @property
    def asked(self) -> str:
        """Return the last request, as errors name it."""
        return self._transport.asked

    def close(self) -> None:
        """Close the session, if there is one. If that fails, it ends by the BMC's own timeout."""
        if self._token is not None and self._session_path is not None:
            logout = BmcRequest(method="DELETE", path=self._session_path, headers={"X-Auth-Token": self._token})
            try:
                answer = self._transport.send(logout, self._deadline, self._deadline.within(CLOSING_SECONDS))
                if not answer.ok:
                    telemetry.warning("a session was left open", bmc=self._bmc_access.url, status=answer.status_code)
            except (ShepherdError, *UNREADABLE) as error:  # its path and its token may be anything
                telemetry.warning("a session was left open", bmc=self._bmc_access.url, error=error)

    @contextmanager
    def reserving(self, seconds: float) -> Iterator[None]:
        """Leave the last *seconds*, at most a quarter of the time that is left, to what comes after the block."""
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
            method=method, path=path, data=data, headers=given, effect=effect, interrupts=effect and self.interrupts
        )
        try:
            answer = self._tried(request, self._work.within(self._options.seconds))
            exceptions.raise_for_response(method, path, answer)
            if not answer.ok:
                raise ProviderRefused(f"{self.asked}: {answer.status_code}: redirections are not followed")
            if method == "GET" and not (answer.content and isinstance(_decoded(answer), dict)):
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
                answer = self._authorized(request, limit)
                self._retry_after = answer.retry_after
                pause = pause if self._retry_after is None else self._retry_after
                if last or answer.status_code not in _PASSING or limit.remaining() <= pause:
                    return answer
            except ProviderUnavailable:
                if last or limit.remaining() <= pause:
                    raise
            self._options.clock.sleep(pause)
        raise AssertionError  # count never ends

    def _authorized(self, request: BmcRequest, limit: Deadline) -> BmcAnswer:
        """Send with the credential; if it is refused, once more with its replacement, if there is one."""
        logins, url, secret = self._options.logins, self._bmc_access.url, self._bmc_access.secret
        credential = self._credential = self._credential or logins.get(url, secret, limit)
        self._secrets += credential.secrets
        answer = self._as(credential, request, limit)
        if answer.status_code == _UNAUTHORIZED and self._token is not None:  # the session ended early
            self._token = None
            answer = self._as(credential, request, limit)
        if answer.status_code == _UNAUTHORIZED and self._token is None:
            self._credential = logins.refuse(url, secret, credential, limit)
            if self._credential is not None:
                self._secrets += self._credential.secrets
                answer = self._as(self._credential, request, limit)
                if answer.status_code == _UNAUTHORIZED and self._token is None:
                    logins.refuse(url, secret, self._credential, limit)
                    self._credential = None
        return answer

    def _as(self, credential: Credential, request: BmcRequest, limit: Deadline) -> BmcAnswer:
        if not self._options.sessions:
            return self._transport.send(request.carrying("Authorization", credential.basic), self._deadline, limit)
        if self._token is None:
            answer = self._log_in(credential, limit)
            if self._token is None:
                return answer
        return self._transport.send(request.carrying("X-Auth-Token", self._token), self._deadline, limit)

    def _log_in(self, credential: Credential, limit: Deadline) -> BmcAnswer:
        """Open a session; afterwards there is a token, or the answer has the reason why not."""
        root = _decoded(self._transport.send(BmcRequest(method="GET", path=ROOT, headers={}), self._deadline, limit))
        try:
            path = str(root["Links"]["Sessions"]["@odata.id"])
        except (LookupError, TypeError):
            path = f"{ROOT}SessionService/Sessions"  # the path of the specification
        login = {"UserName": credential.user, "Password": credential.password}
        request = BmcRequest(method="POST", path=path, data=login, headers={})
        answer = self._transport.send(request, self._deadline, limit)
        if answer.ok:
            self._token = answer.headers.get("X-Auth-Token")
            if self._token is None:
                raise ProviderRefused(f"{self.asked}: the answer has no X-Auth-Token: this BMC has no sessions")
            self._secrets.append(self._token)
            self._session_path = answer.headers.get("Location") or _decoded(answer).get("@odata.id")
        return answer

    def _hidden(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _decoded(answer: BmcAnswer) -> Any:
    """Return the answer's JSON; an empty object if there is no content, None if it is not JSON."""
    try:
        return answer.json() if answer.content else {}
    except ValueError:
        return None
