"""
One BMC as sushy sees it: its connector, with transport, patience and logins of our own.

sushy knows Redfish and what vendors make of it. Its own transport retries,
sleeps and logs in again as it sees fit, and knows no deadline.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sushy import exceptions
from sushy.connector import Connector

from shepherd_core import telemetry
from shepherd_core.errors import ProviderRefused, ProviderUnavailable, ShepherdError, TimeLimitExceeded
from shepherd_core.providers.redfish_answer import TEXT_LENGTH, Answer, said
from shepherd_core.providers.redfish_transport import Request, Transport

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shepherd_core.clock import Clock, Deadline
    from shepherd_core.errors import ProviderError
    from shepherd_core.providers.redfish_login import Credential, Logins
    from shepherd_core.providers.redfish_transport import Door

ROOT = "/redfish/v1/"
TRIES = 3
"""How often a read is tried in all."""
PAUSE_SECONDS = 0.5
"""The pause after the first try; doubled after each further one."""
CLOSING_SECONDS = 2.0
"""Kept for closing a session, but never more than a quarter of the time."""

_PASSING = (408, 409, 423, 425, 429, 500, 502, 503, 504, 507)
_UNAUTHORIZED = 401


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How all BMCs are treated."""

    logins: Logins
    clock: Clock
    seconds: float
    """How long a BMC may take for one request, all tries included."""
    sessions: bool
    """Whether to log in, and out in the end; else every request carries the credential."""


@contextmanager
def connected(way: Way, door: Door, deadline: Deadline) -> Iterator[Bmc]:
    """
    Yield the BMC behind *door*, and close its session in the end; what sushy raises inside arrives as our errors.

    Raises:
        ProviderUnavailable: no answer, none that can be understood, or a passing refusal. Where something was to be
            changed, it is unknown whether it was.
        ProviderRefused: the BMC refuses, or could not prove who it is.
        TimeLimitExceeded: no time is left.
        SessionExpired: the BMDB session ended before a change could be asked for.
    """
    bmc = Bmc(way, door, deadline)
    try:
        yield bmc
    except exceptions.HTTPError as error:
        raise bmc.failure(error) from error
    except exceptions.SushyError as error:
        raise ProviderRefused(f"{bmc.asked}: {str(error)[:TEXT_LENGTH]}") from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        # sushy takes apart what the BMC sent, and does not look first.
        raise ProviderUnavailable(f"{bmc.asked}: the answer is not understood: {error!r:.200}") from error
    finally:
        bmc.close()


class Bmc(Connector):  # type: ignore[misc]  # sushy publishes no types
    """One BMC, for one thread and one piece of work; made by ``connected``."""

    def __init__(self, way: Way, door: Door, deadline: Deadline) -> None:
        # Not Connector's, which would prepare connections of its own.
        self._way = way
        self._door = door
        self._deadline = deadline
        left = deadline.remaining()
        self._work = deadline.within(left - min(CLOSING_SECONDS, left / 4)) if way.sessions else deadline
        self._transport = Transport(door, self._hidden)
        self._credential: Credential | None = None
        self._token: str | None = None
        self._session_path: str | None = None
        self._secrets: list[str] = []
        self.broken: ShepherdError | None = None
        """Why a request got no useful answer, if one did not: sushy passes over some errors, and these with them."""

    @property
    def name(self) -> str:
        """Return what errors call it."""
        return f"the BMC {self._door.url}"

    @property
    def asked(self) -> str:
        """Return what was asked for last, as errors name it."""
        return self._transport.asked

    def close(self) -> None:
        """End the session, if there is one. One that cannot be ended ends when the BMC has waited long enough."""
        if self._token is not None and self._session_path is not None:
            logout = Request(method="DELETE", path=self._session_path, headers={"X-Auth-Token": self._token})
            try:
                answer = self._transport.send(logout, self._deadline, self._deadline.within(CLOSING_SECONDS))
                if not answer.ok:
                    telemetry.warning("a session was left open", bmc=self._door.url, status=answer.status_code)
            except ShepherdError as error:
                telemetry.warning("a session was left open", bmc=self._door.url, error=error)
        self._transport.close()

    def failure(self, error: exceptions.HTTPError) -> ProviderError:
        """Return what a refusal of the BMC means to us, with its own words."""
        words = said(error.body)
        message = f"{self.asked}: {error.status_code}{': ' if words else ''}{words}"
        passing = error.status_code in _PASSING or self.check_retry_on_exception(error)
        return (ProviderUnavailable if passing else ProviderRefused)(message)

    def _op(
        self,
        method: str,
        path: str = "",
        data: object = None,
        headers: Mapping[str, str | None] | None = None,
        **_: object,
    ) -> Answer:
        """
        Ask, and return the answer; what only reads is tried up to three times, while there is time.

        All that sushy's resources do comes through here.
        """
        given = {name: value for name, value in (headers or {}).items() if value is not None}
        request = Request(method=method, path=path, data=data, headers=given, effect=method != "GET")
        try:
            answer = self._tried(request, self._work.within(self._way.seconds))
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
                raise ProviderUnavailable(f"{self.asked}: not done within {self._way.seconds:g} s") from error
            raise
        return answer

    def _tried(self, request: Request, limit: Deadline) -> Answer:
        for tries in itertools.count(1):
            pause = PAUSE_SECONDS * 2 ** (tries - 1)
            last = request.effect or tries == TRIES
            try:
                answer = self._authorized(request, limit)
                if last or answer.status_code not in _PASSING or limit.remaining() <= pause:
                    return answer
            except ProviderUnavailable:
                if last or limit.remaining() <= pause:
                    raise
            self._way.clock.sleep(pause)
        raise AssertionError  # count never ends

    def _authorized(self, request: Request, limit: Deadline) -> Answer:
        """Send with the credential; if that is refused, with the one that took its place, and with no third."""
        logins, url, secret = self._way.logins, self._door.url, self._door.secret
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

    def _as(self, credential: Credential, request: Request, limit: Deadline) -> Answer:
        if not self._way.sessions:
            return self._transport.send(request.carrying("Authorization", credential.basic), self._deadline, limit)
        if self._token is None:
            answer = self._log_in(credential, limit)
            if self._token is None:
                return answer
        return self._transport.send(request.carrying("X-Auth-Token", self._token), self._deadline, limit)

    def _log_in(self, credential: Credential, limit: Deadline) -> Answer:
        """Begin a session; afterwards there is a token, or the answer says why there is none."""
        root = _decoded(self._transport.send(Request(method="GET", path=ROOT, headers={}), self._deadline, limit))
        try:
            path = str(root["Links"]["Sessions"]["@odata.id"])
        except (LookupError, TypeError):
            path = f"{ROOT}SessionService/Sessions"  # where the specification puts them
        login = {"UserName": credential.user, "Password": credential.password}
        request = Request(method="POST", path=path, data=login, headers={})
        answer = self._transport.send(request, self._deadline, limit)
        if answer.ok:
            self._token = answer.headers.get("X-Auth-Token")
            if self._token is None:
                raise ProviderRefused(f"{self.asked}: the answer holds no X-Auth-Token: this BMC has no sessions")
            self._secrets.append(self._token)
            self._session_path = answer.headers.get("Location") or _decoded(answer).get("@odata.id")
        return answer

    def _hidden(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _decoded(answer: Answer) -> Any:
    """Return the answer's JSON; an empty object for none, and None for what is not JSON."""
    try:
        return answer.json() if answer.content else {}
    except ValueError:
        return None
