"""Ways in which a client proves its identity to an API, each a class that keeps nothing but its settings."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Protocol

from pydantic import Field

from shepherd_core.domain.errors.provider import ProviderUnusable
from shepherd_core.providers.kit.api_object import ApiObject, parse
from shepherd_core.providers.kit.context import readable
from shepherd_core.providers.kit.dialect import Dialect, Refusal
from shepherd_core.providers.kit.http import HttpApi

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shepherd_core.domain.clock import Clock, Deadline

RENEWAL_SECONDS = 30
"""A token is replaced so long before it ends."""


@dataclass(frozen=True, slots=True)
class Login:
    """The headers that the requests of a client carry, and their secrets."""

    headers: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    """The texts that must not be in errors."""
    until: float | None = field(default=None, compare=False)
    """By the monotonic clock, when it ends; None: unknown."""


class Authentication(Protocol):
    """A style of authentication. An API may have its own: ``HttpApi`` needs only this method."""

    def login(self, url: str, deadline: Deadline) -> Login:
        """
        Return a login for the API at *url*, read or requested again: the one before may have been replaced.

        Raises:
            ProviderUnavailable: there is no login now. Try again later.
            ProviderUnusable: the credential is missing, refused, or cannot be sent.
        """


class NoLogin:
    """No login: the API trusts its network, or bodies hold *secrets*, which must not be in errors."""

    def __init__(self, *secrets: str) -> None:
        self._secrets = secrets

    def login(self, url: str, deadline: Deadline) -> Login:  # noqa: ARG002 - see ``Authentication``
        """Return a login without headers."""
        return Login({}, self._secrets)


class Header:
    """The credential that *read* returns, in the header *name*, after *scheme*; *read* raises SecretError."""

    def __init__(self, name: str, read: Callable[[], str], scheme: str = "") -> None:
        self._name, self._read, self._scheme = name, read, scheme

    def login(self, url: str, deadline: Deadline) -> Login:  # noqa: ARG002 - see ``Authentication``
        """Return the login with the credential as it is now."""
        credential = _credential(self._read, url)
        return Login({self._name: f"{self._scheme}{credential}"}, (credential,))


class Bearer(Header):
    """A bearer token: ``Authorization: Bearer …``."""

    def __init__(self, read: Callable[[], str]) -> None:
        super().__init__("Authorization", read, "Bearer ")


class Basic:
    """Basic authentication with the credential ``USER:PASSWORD`` that *read* returns; it raises SecretError."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read

    def login(self, url: str, deadline: Deadline) -> Login:  # noqa: ARG002 - see ``Authentication``
        """Return the login with the credential as it is now."""
        credential = _credential(self._read, url)
        if not all(credential.partition(":")):
            raise ProviderUnusable(f"the credential for {url} is not of the form USER:PASSWORD; it was not sent")
        encoded = b64encode(credential.encode()).decode("ascii")
        return Login({"Authorization": f"Basic {encoded}"}, (credential, credential.partition(":")[2], encoded))


class ClientCredentials:
    """
    OAuth2 client credentials: a bearer token from *token_url* for ``CLIENT_ID:CLIENT_SECRET``, which *read* returns.

    A token is replaced shortly before its end, and when a read is answered with 401.
    """

    def __init__(self, token_url: str, read: Callable[[], str], clock: Clock) -> None:
        refused = Refusal(says="invalid_client|unauthorized_client|access_denied", error=ProviderUnusable)
        self._api = HttpApi(token_url, Basic(read), clock, 1, Dialect(refusals=(refused,), body="data"))
        self._read, self._clock = read, clock

    def login(self, url: str, deadline: Deadline) -> Login:
        """Return the login with a new token."""
        answer = self._api.ask("", {"grant_type": "client_credentials"}, deadline).decoded()
        token = parse(_Token, answer, f"the access token for {url}")
        text = sendable(token.access_token, url)
        until = None
        if token.expires_in is not None:
            until = self._clock.monotonic() + max(token.expires_in - RENEWAL_SECONDS, token.expires_in / 2)
        credential = _credential(self._read, url)
        return Login({"Authorization": f"Bearer {text}"}, (text, credential, credential.partition(":")[2]), until)


class _Token(ApiObject):
    access_token: str
    expires_in: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


def sendable(credential: str, url: str) -> str:
    """
    Return *credential*, which can be sent in a header.

    Raises:
        ProviderUnusable: it cannot. Checked here, because the error that requests would raise quotes it.
    """
    if not credential or not credential.isascii() or not credential.isprintable():
        raise ProviderUnusable(f"the credential for {url} is empty or holds characters that cannot be sent")
    return credential


def _credential(read: Callable[[], str], url: str) -> str:
    with readable(f"the credential for {url}"):
        return sendable(read().strip(), url)
