"""Logging in to Keystone, OpenStack's identity service, with an application credential."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import AwareDatetime  # noqa: TC002 - looked up when the class is made

from shepherd_core.domain.errors.provider import ProviderUnusable
from shepherd_core.providers.kit.api_object import ApiObject, parse
from shepherd_core.providers.kit.auth import RENEWAL_SECONDS, Login, NoLogin, sendable
from shepherd_core.providers.kit.context import readable
from shepherd_core.providers.kit.dialect import Dialect, Refusal
from shepherd_core.providers.kit.http import HttpApi

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.domain.clock import Clock, Deadline

_DIALECT = Dialect(refusals=(Refusal(status=404, error=ProviderUnusable),))


class Token(ApiObject):
    """The times of a token; by the clock of Keystone."""

    issued_at: AwareDatetime
    expires_at: AwareDatetime


class Tokens(ApiObject):
    """The object around it."""

    token: Token


class ApplicationCredential:
    """A token of the Keystone at *url* (``https://…/v3``) for ``ID:SECRET``, which *read* returns."""

    def __init__(self, url: str, read: Callable[[], str], clock: Clock) -> None:
        self._url = url
        self._read = read
        self._clock = clock

    def login(self, url: str, deadline: Deadline) -> Login:
        """Return the login with a new token. Raises as ``Authentication.login``."""
        with readable(f"the credential for {url}"):
            name, colon, secret = self._read().strip().partition(":")
        if not (name and colon and secret):
            raise ProviderUnusable(f"the credential for {url} is not of the form ID:SECRET; it was not sent")
        credential = {"methods": ["application_credential"], "application_credential": {"id": name, "secret": secret}}
        api = HttpApi(self._url, NoLogin(secret), self._clock, 1, _DIALECT)
        answer = api.ask("/auth/tokens", {"auth": {"identity": credential}}, deadline)
        times = parse(Tokens, answer.decoded(), f"the token for {url}").token
        token = sendable(answer.headers.get("X-Subject-Token", ""), url)
        seconds = (times.expires_at - times.issued_at).total_seconds()
        until = self._clock.monotonic() + max(seconds - RENEWAL_SECONDS, seconds / 2)
        return Login({"X-Auth-Token": token}, (token,), until)
