"""JSON over HTTP: the client of every provider's API. How the APIs differ is given to it as data."""

from __future__ import annotations

import itertools
import random
import threading
from dataclasses import dataclass, field
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import requests
from urllib3.exceptions import HTTPError

from shepherd_core.adapters.http.timed_requests import TimedAdapter
from shepherd_core.domain.errors import TimeLimitExceeded
from shepherd_core.domain.errors.provider import MachineNotFound, ProviderRefused, ProviderUnavailable, ProviderUnusable
from shepherd_core.providers.kit.answer import HttpAnswer, declines, innermost, never_sent, read, retry_after
from shepherd_core.providers.kit.dialect import COMMON, refused, said
from shepherd_core.providers.kit.logins import Logins

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shepherd_core.domain.clock import Clock, Deadline, Permission
    from shepherd_core.domain.errors.provider import ProviderError
    from shepherd_core.providers.kit.auth import Authentication, Login
    from shepherd_core.providers.kit.dialect import Dialect

    Params = Mapping[str, str | int]

ANSWER_SECONDS = 10
"""How long to wait for a connection, or for the next part of an answer."""
TRIES = 3
"""The total number of tries of a read."""
PAUSE_SECONDS = 0.5
"""The longest pause after the first try; doubled after each further one."""
LONGEST_PAUSE_SECONDS = 10
"""A longer pause is raised as an error instead: waiting in a function costs money."""
TEXT_LENGTH = 200
"""The number of characters of a foreign message that an error quotes."""

_WITHOUT_ANSWER = (202, 204)
"""There may be an answer nevertheless."""


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    params: Params | None = None
    body: object = None
    effect: bool = field(default=False, kw_only=True)
    permission: Permission | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class HttpApi:
    """
    One API, with one login, and at most *max_calls* requests at the same time.

    The login of *authentication* is asked for at the first request, when it ends,
    and again when a read is answered with 401, because it may have been replaced.
    It is sent to this API only: redirections are not followed. It is never part of
    an error. Safe to use from several threads.

    A login that was answered with 401 is not sent again for the lock-out seconds
    of *dialect*. With *max_calls* 1 it is sent only once in that time, however
    many threads wait.
    """

    def __init__(
        self,
        url: str,
        authentication: Authentication,
        clock: Clock,
        max_calls: int = 3,
        dialect: Dialect = COMMON,
    ) -> None:
        """*url* is the base URL of all paths."""
        self._url = url.rstrip("/")
        self._clock = clock
        self._dialect = dialect
        self._logins = Logins(self._url, authentication, clock, dialect.lockout_seconds)
        self._calls = threading.BoundedSemaphore(max_calls)
        self._session = requests.Session()
        self._session.headers.update(dialect.headers)
        # No cookies: they would be state that the threads share.
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        for scheme in ("http://", "https://"):
            # ``_read`` decides about retries: urllib3's Retry knows neither deadline nor clock.
            self._session.mount(scheme, TimedAdapter(max_retries=0, pool_maxsize=max_calls))

    def get(
        self,
        path: str,
        deadline: Deadline,
        params: Params | None = None,
        missing: type[ProviderError] = ProviderRefused,
    ) -> Any:
        """
        Return the decoded answer. Tries up to three times, with pauses, while the deadline allows.

        Raises:
            ProviderUnavailable: no answer, no JSON, 429 or 5xx, also at the last try.
            ProviderRefused: any other refusal, but a 404 is raised as *missing*.
            TimeLimitExceeded: the deadline passed before a request could be sent.
        """
        return self._read(_Request("GET", path, params), deadline, missing).decoded()

    def ask(self, path: str, body: object, deadline: Deadline) -> HttpAnswer:
        """Send a POST that changes nothing, such as a login, and return the answer; see ``get``."""
        return self._read(_Request("POST", path, body=body), deadline, ProviderRefused)

    def post(
        self,
        path: str,
        body: object,
        deadline: Deadline,
        params: Params | None = None,
        missing: type[ProviderError] = ProviderRefused,
    ) -> Any:
        """
        Send a change, once, and return the decoded answer; None if the status means that there is none.

        Raises:
            ProviderUnavailable: it is unknown whether it was done; after 429 it was not.
            ProviderRefused: it was not done. A 404 is raised as *missing*.
            TimeLimitExceeded: the deadline passed before the request could be sent.
            SessionExpired: the BMDB session ended before the request could be sent.
        """
        return self._change(_Request("POST", path, params, body, effect=True), deadline, missing)

    def interrupt(
        self,
        method: str,
        path: str,
        body: object,
        permission: Permission,
        missing: type[ProviderError] = ProviderRefused,
    ) -> Any:
        """
        Send a change that interrupts a machine, once, and confirm the permission just before.

        Raises:
            NoLongerDue: it was not sent.
            ProviderUnavailable, ProviderRefused, TimeLimitExceeded, SessionExpired: see ``post``.
        """
        request = _Request(method, path, body=body, effect=True, permission=permission)
        return self._change(request, permission.deadline, missing)

    def put(self, path: str, body: object, deadline: Deadline, missing: type[ProviderError] = ProviderRefused) -> Any:
        """Send a PUT, once; see ``post``."""
        return self._change(_Request("PUT", path, body=body, effect=True), deadline, missing)

    def patch(self, path: str, body: object, deadline: Deadline) -> Any:
        """Send a PATCH, once; see ``post``."""
        return self._change(_Request("PATCH", path, body=body, effect=True), deadline, ProviderRefused)

    def delete(self, path: str, deadline: Deadline, missing: type[ProviderError] = ProviderRefused) -> Any:
        """Send a deletion, once; see ``post``."""
        return self._change(_Request("DELETE", path, effect=True), deadline, missing)

    def _change(self, request: _Request, deadline: Deadline, missing: type[ProviderError]) -> Any:
        login = self._logins.usable(deadline)
        return self._success(request, self._exchange(request, deadline, login), login, missing).decoded()

    def _read(self, request: _Request, deadline: Deadline, missing: type[ProviderError]) -> HttpAnswer:
        login = self._logins.usable(deadline)
        for tries in itertools.count(1):
            try:
                answer = self._exchange(request, deadline, login)
                if (
                    answer.status == requests.codes.unauthorized
                    and (newer := self._logins.after(login, deadline)) != login
                ):
                    login = newer
                    answer = self._exchange(request, deadline, login)
                return self._success(request, answer, login, missing)
            except ProviderUnavailable as error:
                pause = error.retry_after
                if pause is None:
                    # Random, so that requests that failed together are not repeated together.
                    pause = PAUSE_SECONDS * 2 ** (tries - 1) * random.uniform(0.5, 1)  # noqa: S311 - not a secret
                if tries == TRIES or not _may_wait(pause, deadline):
                    raise
            self._clock.sleep(pause)
        raise AssertionError  # count never ends

    def _exchange(self, request: _Request, deadline: Deadline, login: Login) -> HttpAnswer:
        def authorize(prepared: requests.PreparedRequest) -> requests.PreparedRequest:
            # As auth instead of headers: otherwise requests adds credentials from ~/.netrc.
            prepared.headers.update(login.headers)
            return prepared

        body: dict[str, Any] = {} if request.body is None else {self._dialect.body: request.body}
        if not self._calls.acquire(timeout=deadline.left(threading.TIMEOUT_MAX)):
            raise TimeLimitExceeded
        try:
            if locked := self._logins.locked_seconds(login):
                raise ProviderUnusable(f"{request}: not sent: the credential was refused; retry in {locked:.0f} s")
            if request.permission is not None:
                request.permission.confirm()
            elif request.effect:
                deadline.check()
            with self._session.request(
                request.method,
                self._url + request.path,
                params=request.params,
                **body,
                auth=authorize,
                timeout=deadline.left(ANSWER_SECONDS),
                allow_redirects=False,
                stream=True,
            ) as response:
                if request.permission is not None and declines(response.status_code):
                    request.permission.declined()
                if response.status_code == requests.codes.unauthorized:
                    self._logins.refuse(login)
                content = read(str(request), response.raw, deadline)
        except (requests.RequestException, HTTPError) as error:
            if request.permission is not None and never_sent(error):
                request.permission.declined()
            raise self._broken(request, error) from error
        finally:
            self._calls.release()
        return HttpAnswer(response.status_code, content, retry_after(response.headers), response.headers)

    def _success(self, request: _Request, answer: HttpAnswer, login: Login, missing: type[ProviderError]) -> HttpAnswer:
        """Return the answer if it is a success; raise the error for anything else."""
        if answer.status in _WITHOUT_ANSWER or (answer.status == requests.codes.created and not answer.body):
            return answer
        decoded = answer.decoded()
        if requests.codes.ok <= answer.status < requests.codes.multiple_choices:
            if decoded is None:
                raise ProviderUnavailable(f"{request}: the answer is not JSON")
            return answer
        words = said(decoded)
        for secret in login.secrets:
            words = words.replace(secret, "***")
        words = " ".join(words.split())[:TEXT_LENGTH]
        message = f"{request}: {answer.status}{': ' if words else ''}{words}"
        raise refused(message, answer, words, self._dialect.refusals, missing)

    def _broken(self, request: _Request, error: requests.RequestException | HTTPError) -> ProviderError:
        """Return the error for a request without a complete answer."""
        if isinstance(error, requests.RequestException):
            error.request = None  # it holds the credential
        if isinstance(error, ValueError):
            return ProviderRefused(f"{self._url!r} is not the http(s) URL of an API")
        reason = innermost(error)
        message = f"{type(reason).__name__}: {reason}"[:TEXT_LENGTH]
        return ProviderUnavailable(f"{request}: no complete answer: {message}")


def segment(provider_id: str) -> str:
    """
    Return an id as one segment of a path.

    Raises:
        MachineNotFound: it cannot be one. Quoting does not change it, and it would name another path.
    """
    if provider_id in {"", ".", ".."}:
        raise MachineNotFound(f"{provider_id!r} is not the id of a machine")
    return quote(provider_id, "")


def _may_wait(seconds: float, deadline: Deadline) -> bool:
    try:
        return seconds <= LONGEST_PAUSE_SECONDS and seconds < deadline.left()
    except TimeLimitExceeded:
        return False
