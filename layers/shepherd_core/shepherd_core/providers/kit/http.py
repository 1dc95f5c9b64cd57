"""JSON over HTTP: the base of the clients of provider APIs, which override where an API differs."""

from __future__ import annotations

import itertools
import random
import threading
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING, Any

import requests
from urllib3.exceptions import HTTPError

from shepherd_core.domain.errors import (
    ProviderRefused,
    ProviderUnavailable,
    ProviderUnusable,
    SecretError,
    TimeLimitExceeded,
)
from shepherd_core.providers.kit.answer import HttpAnswer, declines, innermost, never_sent, read, retry_after
from shepherd_core.providers.kit.timed_headers import TimedAdapter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shepherd_core.domain.clock import Clock, Deadline
    from shepherd_core.domain.errors import ProviderError

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

_PASSING = (408, 425, 429)
_NOT_US = (401, 403)
_WITHOUT_ANSWER = (202, 204)


class HttpApi:
    """
    One API, with one credential, and at most *max_calls* requests at the same time.

    *credential* is called at the first request, and again when a read is
    answered with 401, because it may have been replaced. The credential is sent
    in the header *credential_header*, to this API only: redirections are not
    followed. It is never part of an error. Safe to use from several threads.

    A credential that was answered with 401 is not sent again for
    *lockout_seconds*: set it for an API that locks out clients after failed
    logins. With *max_calls* 1 it is sent only once in that time, however many
    threads wait.
    """

    def __init__(
        self,
        url: str,
        credential_header: str,
        credential: Callable[[], str],
        clock: Clock,
        max_calls: int,
        *,
        lockout_seconds: float = 0,
    ) -> None:
        """*url* is the base URL of all paths."""
        self._url = url.rstrip("/")
        self._header = credential_header
        self._credential = credential
        self._known_credential: str | None = None
        self._lockout_seconds = lockout_seconds
        self._locked_out: tuple[str, float] | None = None
        self._clock = clock
        self._calls = threading.BoundedSemaphore(max_calls)
        self._session = requests.Session()
        # No cookies: they would be state that the threads share.
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        for scheme in ("http://", "https://"):
            # ``get`` decides about retries: urllib3's Retry knows neither deadline nor clock.
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
        credential = self._usable_credential()
        for tries in itertools.count(1):
            try:
                answer = self._exchange("GET", path, deadline, credential, params=params)
                if answer.status == requests.codes.unauthorized and (newer := self._ask_credential()) != credential:
                    credential = newer
                    answer = self._exchange("GET", path, deadline, credential, params=params)
                return self._result(f"GET {path}", answer, credential, missing)
            except ProviderUnavailable as error:
                pause = error.retry_after
                if pause is None:
                    # Random, so that requests that failed together are not repeated together.
                    pause = PAUSE_SECONDS * 2 ** (tries - 1) * random.uniform(0.5, 1)  # noqa: S311 - not a secret
                if tries == TRIES or not _may_wait(pause, deadline):
                    raise
            self._clock.sleep(pause)
        raise AssertionError  # count never ends

    def post(
        self,
        path: str,
        body: object,
        deadline: Deadline,
        params: Params | None = None,
        missing: type[ProviderError] = ProviderRefused,
        *,
        interrupts: bool = False,
    ) -> Any:
        """
        Send a change, once, and return the decoded answer; None if the status means that there is none.

        *interrupts*: it interrupts a machine, so that ``Deadline.confirm`` is called before.

        Raises:
            ProviderUnavailable: unknown whether it was done, except after 429, when it was not.
            ProviderRefused: it was not done. A 404 is raised as *missing*.
            TimeLimitExceeded: the deadline passed before the request could be sent.
            SessionExpired: the BMDB session ended before the request could be sent.
        """
        credential = self._usable_credential()
        answer = self._exchange("POST", path, deadline, credential, params=params, body=body, interrupts=interrupts)
        return self._result(f"POST {path}", answer, credential, missing)

    def delete(self, path: str, deadline: Deadline, missing: type[ProviderError] = ProviderRefused) -> Any:
        """Send a deletion, once; see ``post``."""
        credential = self._usable_credential()
        answer = self._exchange("DELETE", path, deadline, credential, params=None)
        return self._result(f"DELETE {path}", answer, credential, missing)

    # Subclasses override the following methods where an API differs.

    def _authorization(self, credential: str) -> str:
        """Return the value of the header for *credential*."""
        return credential

    def _secrets(self, credential: str) -> tuple[str, ...]:
        """Return the texts of *credential* that must not be in errors."""
        return (credential,)

    def _encoded(self, body: object) -> Mapping[str, Any]:
        """Return *body* as an argument for ``requests.request``."""
        return {"json": body}

    def _said(self, answer: HttpAnswer) -> str:
        """Return the API's message about an error; empty for an answer of, say, a load balancer in front of it."""
        said = answer.decoded()
        if not isinstance(said, dict):
            return ""
        errors = said.get("errors")
        return "; ".join(map(str, errors)) if isinstance(errors, list) and errors else str(said.get("error") or "")

    def _failure(self, message: str, answer: HttpAnswer, missing: type[ProviderError]) -> ProviderError:
        """Return the error for an answer other than 2xx."""
        if answer.status in _PASSING or answer.status >= requests.codes.server_error:
            return ProviderUnavailable(message, answer.retry_after)
        if answer.status in _NOT_US:
            return ProviderUnusable(message, forbidden=answer.status == requests.codes.forbidden)
        return (missing if answer.status == requests.codes.not_found else ProviderRefused)(message)

    def _usable_credential(self) -> str:
        credential = self._known_credential or self._ask_credential()
        return self._ask_credential() if self._locked_seconds(credential) else credential

    def _locked_seconds(self, credential: str) -> float:
        """Return the seconds for which *credential* must not be sent."""
        refused, until = self._locked_out or (None, 0)
        return max(0.0, until - self._clock.monotonic()) if refused == credential else 0

    def _ask_credential(self) -> str:
        try:
            credential = self._credential().strip()
        except SecretError as error:
            kind = ProviderUnavailable if error.retryable else ProviderUnusable
            raise kind(f"the credential for {self._url}: {error}") from error
        if not credential or not credential.isascii() or not credential.isprintable():
            # Checked here, because the error that requests would raise quotes it.
            raise ProviderUnusable(f"the credential for {self._url} is empty or holds characters that cannot be sent")
        self._known_credential = credential
        return credential

    def _exchange(
        self,
        method: str,
        path: str,
        deadline: Deadline,
        credential: str,
        *,
        params: Params | None,
        body: object = None,
        interrupts: bool = False,
    ) -> HttpAnswer:
        def authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
            # As auth instead of a header: otherwise requests adds credentials from ~/.netrc.
            request.headers[self._header] = self._authorization(credential)
            return request

        if not self._calls.acquire(timeout=deadline.left(threading.TIMEOUT_MAX)):
            raise TimeLimitExceeded
        try:
            if locked := self._locked_seconds(credential):
                raise ProviderUnusable(
                    f"{method} {path}: not sent: the credential was refused; retry in {locked:.0f} s"
                )
            if method != "GET":
                (deadline.confirm if interrupts else deadline.check)()
            with self._session.request(
                method,
                self._url + path,
                params=params,
                **({} if body is None else self._encoded(body)),
                auth=authorize,
                timeout=deadline.left(ANSWER_SECONDS),
                allow_redirects=False,
                stream=True,
            ) as response:
                if interrupts and declines(response.status_code):
                    deadline.declined()
                if response.status_code == requests.codes.unauthorized:
                    self._locked_out = (credential, self._clock.monotonic() + self._lockout_seconds)
                content = read(f"{method} {path}", response.raw, deadline)
        except (requests.RequestException, HTTPError) as error:
            if interrupts and never_sent(error):
                deadline.declined()
            raise self._broken(f"{method} {path}", error) from error
        finally:
            self._calls.release()
        return HttpAnswer(response.status_code, content, retry_after(response.headers))

    def _broken(self, request: str, error: requests.RequestException | HTTPError) -> ProviderError:
        """Return the error for a request without a complete answer."""
        if isinstance(error, requests.RequestException):
            error.request = None  # it holds the credential
        if isinstance(error, ValueError):
            return ProviderRefused(f"{self._url!r} is not the http(s) URL of an API")
        reason = innermost(error)
        message = f"{type(reason).__name__}: {reason}"[:TEXT_LENGTH]
        return ProviderUnavailable(f"{request}: no complete answer: {message}")

    def _result(self, request: str, answer: HttpAnswer, credential: str, missing: type[ProviderError]) -> Any:
        """Return the decoded answer of a success; raise the error for anything else."""
        if answer.status in _WITHOUT_ANSWER:
            return None
        if requests.codes.ok <= answer.status < requests.codes.multiple_choices:
            decoded = answer.decoded()
            if decoded is None:
                raise ProviderUnavailable(f"{request}: the answer is not JSON")
            return decoded
        said = self._said(answer)
        for secret in self._secrets(credential):
            said = said.replace(secret, "***")
        said = " ".join(said.split())[:TEXT_LENGTH]
        raise self._failure(f"{request}: {answer.status}{': ' if said else ''}{said}", answer, missing)


def _may_wait(seconds: float, deadline: Deadline) -> bool:
    try:
        return seconds <= LONGEST_PAUSE_SECONDS and seconds < deadline.left()
    except TimeLimitExceeded:
        return False
