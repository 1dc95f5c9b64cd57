"""The endpoint that the agents of simulated machines report to, and the backends it can have."""

import base64
import logging
import ssl
import threading
import time
from collections.abc import Callable
from http import HTTPStatus

from simulator.closeable import Closeable
from simulator.lambda_.service import Service
from simulator.providers.kit.http_server import HttpRequest, Reply, Server

_LOG = logging.getLogger(__name__)
_LONGEST_REQUEST = 10 << 20
"""The most that API Gateway accepts, in bytes."""


class AgentEndpoint(Closeable):
    """
    An HTTP server at a free port of *address*, open from the start.

    *receive* gets each request, from many threads; if it raises, the agent
    gets status 500 and the error is logged.
    """

    def __init__(
        self, receive: Callable[[HttpRequest], Reply], *, tls: ssl.SSLContext | None = None, address: str = "127.0.0.1"
    ) -> None:
        """Open the endpoint; with *tls* it speaks HTTPS."""
        self.outage = False
        """While true, every request is answered with status 503 and goes no further."""
        self.accepted = 0
        """The number of accepted heartbeats."""
        self._receive = receive
        self._counting = threading.Lock()
        self._server = _Server(self._answer, address, tls)
        self.url = self._server.url
        self._server.start()

    def close(self) -> None:
        """Close the endpoint; returns when the last request is answered."""
        self._server.close(drain=True)

    def _answer(self, request: HttpRequest) -> Reply:
        if request.method != "POST":
            reply = Reply(status=HTTPStatus.NOT_IMPLEMENTED)
        elif len(request.content) > _LONGEST_REQUEST:
            reply = Reply(status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        elif self.outage:
            reply = Reply(status=HTTPStatus.SERVICE_UNAVAILABLE)
        else:
            reply = self._received(request)
        if reply.status == HTTPStatus.OK:
            with self._counting:
                self.accepted += 1
        return Reply(status=reply.status, body=reply.body, headers={**reply.headers, "Connection": "close"})

    def _received(self, request: HttpRequest) -> Reply:
        try:
            return self._receive(request)
        except Exception:  # noqa: BLE001 - whatever it was, the agent gets an answer
            _LOG.exception("unexpected error in a request to %s", request.path)
            return Reply(status=HTTPStatus.INTERNAL_SERVER_ERROR)


class _Server(Server):
    client_seconds = 5.0  # agents that are stopped (SIGSTOP) hang in the middle of a request


def function_invoker(service: Callable[[], Service], function: str) -> Callable[[HttpRequest], Reply]:
    """Return a backend that acts as a function URL: it invokes *function* with an event of payload version 2.0."""

    def receive(request: HttpRequest) -> Reply:
        event = {
            "version": "2.0",
            "routeKey": "$default",
            "rawPath": request.target,
            "rawQueryString": "",
            "headers": {name.lower(): value for name, value in request.headers.items()},
            "requestContext": {
                "http": {"method": request.method, "path": request.target, "sourceIp": request.client},
                "stage": "$default",
                "timeEpoch": int(time.time() * 1000),
            },
            "body": base64.b64encode(request.content).decode(),
            "isBase64Encoded": True,
        }
        answer = service().invoke(function, event).result
        if answer is None:  # throttled, killed or failed: a function URL answers much the same in each case
            return Reply(status=HTTPStatus.SERVICE_UNAVAILABLE)
        body = answer.get("body", "")
        return Reply(
            status=answer["statusCode"],
            headers=answer.get("headers", {}),
            body=base64.b64decode(body) if answer.get("isBase64Encoded") else body.encode(),
        )

    return receive
