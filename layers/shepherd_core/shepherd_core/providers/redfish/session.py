"""
Requests to one BMC with our credential: in each request, or in a session.

A refused credential is not repeated, because some BMCs lock accounts (``login``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core import telemetry
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.provider import ProviderRefused
from shepherd_core.providers.redfish.transport import ROOT, BmcRequest, Transport

if TYPE_CHECKING:
    from shepherd_core.domain.clock import Deadline
    from shepherd_core.providers.redfish.answer import BmcAnswer
    from shepherd_core.providers.redfish.login import BmcCredentials, Credential
    from shepherd_core.providers.redfish.transport import BmcAccess

UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""The errors of sushy at an unexpected answer: it parses answers without validating them."""
CLOSING_SECONDS = 2.0
"""The time reserved for closing a session, at most a quarter of the time that is left."""

_UNAUTHORIZED = 401


class BmcSession:
    """The requests of one operation, from one thread."""

    def __init__(self, bmc_access: BmcAccess, logins: BmcCredentials, deadline: Deadline, *, sessions: bool) -> None:
        """*deadline* is that of the operation; *sessions*: see ``BmcOptions``."""
        self._bmc_access = bmc_access
        self._logins = logins
        self._deadline = deadline
        self._sessions = sessions
        self._transport = Transport(bmc_access, self._hidden)
        self._credential: Credential | None = None
        self._token: str | None = None
        self._session_path: str | None = None
        self._secrets: list[str] = []

    @property
    def asked(self) -> str:
        """Return the last request, as errors name it."""
        return self._transport.asked

    def send(self, request: BmcRequest, limit: Deadline) -> BmcAnswer:
        """
        Send with the credential; if it is refused, once more with its replacement, if there is one.

        Raises as ``Transport.send`` and ``BmcCredentials.get``.
        """
        logins, url, secret = self._logins, self._bmc_access.url, self._bmc_access.secret
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

    def _as(self, credential: Credential, request: BmcRequest, limit: Deadline) -> BmcAnswer:
        if not self._sessions:
            return self._transport.send(request.carrying("Authorization", credential.basic), self._deadline, limit)
        if self._token is None:
            answer = self._log_in(credential, limit)
            if self._token is None:
                return answer
        return self._transport.send(request.carrying("X-Auth-Token", self._token), self._deadline, limit)

    def _log_in(self, credential: Credential, limit: Deadline) -> BmcAnswer:
        """Open a session; afterwards there is a token, or the answer has the reason why not."""
        request = BmcRequest(method="GET", path=ROOT, headers={})
        root = self._transport.send(request, self._deadline, limit).decoded()
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
            self._session_path = answer.headers.get("Location") or answer.decoded().get("@odata.id")
        return answer

    def _hidden(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text
