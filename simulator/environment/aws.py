"""AWS, simulated by moto, for clients with the access key of the environment only."""

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.request import Request, urlopen

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.exceptions import Forbidden
from werkzeug.serving import make_server

from simulator.closeable import Closeable

REGION = "eu-central-1"


class Aws(Closeable):
    """
    A server for all of AWS's services, which refuses the other users of this computer.

    moto itself answers every client. Here the access key is random, and a request
    that does not name it is refused; its signature is not checked.
    """

    def __init__(self, address: str) -> None:
        """Serve at a free port of *address*."""
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs every request
        self._key = secrets.token_hex(20)
        services = DomainDispatcherApplication(create_backend_app)

        def guarded(request: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
            allowed = f"Credential={self._key}/" in request.get("HTTP_AUTHORIZATION", "")
            return (services if allowed else Forbidden())(request, respond)

        self._server = make_server(address, 0, guarded, threaded=True, request_handler=MotoRequestHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="aws", daemon=True)
        self._thread.start()
        self.url = f"http://{address}:{self._server.server_port}"
        # moto's state lives as long as the process: a second environment would find the keys of the first.
        headers = {"Authorization": f"Credential={self._key}/"}
        urlopen(Request(f"{self.url}/moto-api/reset", headers=headers, method="POST")).close()  # noqa: S310 - our URL

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment variables with which boto3 reaches it."""
        return {
            "AWS_ACCESS_KEY_ID": self._key,
            "AWS_SECRET_ACCESS_KEY": self._key,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.url,
        }

    def client(self, service: str) -> Any:
        """Return boto3's client of *service*."""
        session = boto3.session.Session(self._key, self._key, region_name=REGION)
        return session.client(service, endpoint_url=self.url)
