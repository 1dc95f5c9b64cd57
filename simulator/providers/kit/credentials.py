"""The checks of a client's credential: each takes the request and the secret."""

import base64
import hmac
from collections.abc import Callable

from simulator.providers.kit.http_server import HttpRequest


def in_header(name: str, scheme: str = "") -> Callable[[HttpRequest, str], bool]:
    """Return the check of a credential in a header."""
    return lambda request, secret: _same(request.headers.get(name, ""), f"{scheme}{secret}")


def basic(request: HttpRequest, secret: str) -> bool:
    """Check basic authentication with the credential ``USER:PASSWORD``."""
    return _same(request.headers.get("Authorization", ""), f"Basic {base64.b64encode(secret.encode()).decode()}")


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
