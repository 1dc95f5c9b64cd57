"""A simulated API with OAuth 2.0: clients get a token for their credential."""

import secrets
import time
from typing import Any

from simulator.providers.kit.credentials import basic
from simulator.providers.kit.hardware import Hardware
from simulator.providers.kit.http_server import HttpRequest
from simulator.providers.kit.machines import RequestRefused
from simulator.providers.kit.rest import Call, RestApi, route


class OAuth2Api(RestApi):
    """Its secret is ``CLIENT_ID:CLIENT_SECRET``."""

    token_seconds: float = 300
    """How long a token is valid; it can be changed at any time."""

    def __init__(self, hardware: Hardware, **options: Any) -> None:
        self._tokens: dict[str, float] = {}
        super().__init__(hardware, **options)

    def logged_in(self, http: HttpRequest) -> bool:
        """Return whether the request has a valid token or, if it asks for a token, the credential."""
        if http.path == f"{self.base}/token":
            return basic(http, self.secret)
        token = http.headers.get("Authorization", "").removeprefix("Bearer ")
        return self._tokens.get(token, 0) > time.monotonic()

    def revoke_tokens(self) -> None:
        """End all tokens."""
        self._tokens.clear()

    @route("POST", "/token")
    def give_token(self, call: Call) -> Any:
        """Give a token."""
        if call.http.content != b"grant_type=client_credentials":
            raise RequestRefused(400, "unsupported_grant_type")
        token = secrets.token_hex(16)
        self._tokens[token] = time.monotonic() + self.token_seconds
        return {"access_token": token, "token_type": "Bearer", "expires_in": self.token_seconds}
