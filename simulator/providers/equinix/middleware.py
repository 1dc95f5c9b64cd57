"""The middleware of the simulated Equinix API: rate limit, API key, and the faults that only this API has."""

from __future__ import annotations

import hmac
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from simulator.environment import faults
from simulator.providers.equinix.answers import BASE, ApiRequest
from simulator.providers.equinix.operations import perform, template
from simulator.providers.equinix.records import EquinixRefused
from simulator.providers.kit.http_server import Reply
from simulator.providers.kit.middleware import Middleware

if TYPE_CHECKING:
    from simulator.providers.equinix.answers import Json
    from simulator.providers.equinix.state import EquinixOptions, EquinixState
    from simulator.providers.kit.http_server import HttpRequest

_log = logging.getLogger(__name__)
_WINDOW_SECONDS = 60


class EquinixMiddleware(Middleware):
    """Turns requests into replies. Safe to use from any thread."""

    def __init__(self, state: EquinixState, script: faults.FaultScript, api_key: str, options: EquinixOptions) -> None:
        super().__init__(script)
        self._state = state
        self._api_key = api_key
        self._per_page_cap = options.per_page_cap
        self._calls_per_minute = options.calls_per_minute
        self._window = (time.monotonic(), 0)

    def reply(self, http: HttpRequest) -> Reply | None:
        """Return the reply to a request, None to close the connection without one."""
        request, token = self._read(http), http.headers.get("X-Auth-Token")
        called = template(request.method, request.path)
        return self.pass_on(request.method, request.path, called, lambda fault: self._with_fault(request, token, fault))

    def _read(self, http: HttpRequest) -> ApiRequest:
        return ApiRequest(
            method=http.method,
            path=http.path.removeprefix(BASE) if http.path.startswith(f"{BASE}/") else f"/..{http.path}",
            query=dict(http.query),
            body=http.body,
            per_page_cap=self._per_page_cap,
        )

    def _with_fault(self, request: ApiRequest, token: str | None, fault: faults.Rule | None) -> Reply:
        """Carry out the request and return the answer, changed by *fault*."""
        if isinstance(fault, faults.CreateLate):
            self._state.timers.after(fault.seconds, lambda: self._real(request, token))
            return Reply(status=fault.status)
        hidden = fault.count if isinstance(fault, faults.Shrink) else 0
        reply = self._real(replace(request, hidden=hidden), token)
        if not isinstance(reply.body, dict):
            return reply
        if isinstance(fault, faults.RepeatPage) and "meta" in reply.body:
            page = max(1, reply.body["meta"]["current_page"] - 1)
            before = self._real(replace(request, query={**request.query, "page": str(page)}), token)
            return replace(reply, body={**before.body, "meta": reply.body["meta"]})
        return replace(reply, body=_changed(reply.body, fault))

    def _real(self, request: ApiRequest, token: str | None) -> Reply:
        """Carry out the request and return the answer of the API without faults."""
        headers, retry_after = self._rate()
        if retry_after:
            headers["Retry-After"] = str(retry_after)
            return Reply(status=429, body={"error": "Rate limit exceeded"}, headers=headers)
        if token is None or not hmac.compare_digest(token.encode(), self._api_key.encode()):
            return Reply(status=401, body={"error": "Invalid authentication token"}, headers=headers)
        try:
            status, body = perform(self._state, request)
        except EquinixRefused as refusal:
            return Reply(status=refusal.status, body={"errors": list(refusal.messages)}, headers=headers)
        except Exception as error:  # noqa: BLE001 - the client gets 500; ``errors`` keeps it
            _log.exception("the simulated Equinix API cannot answer %s %s", request.method, request.path)
            self.errors.append(error)
            return Reply(status=500, body={"error": "Internal server error"}, headers=headers)
        return Reply(status=status, body=body, headers=headers)

    def _rate(self) -> tuple[dict[str, str], int]:
        """Count a call; return the headers about the rate limit, and the seconds to wait, 0 if it is not exceeded."""
        with self._lock:
            began, count = self._window
            if time.monotonic() >= began + _WINDOW_SECONDS:
                began, count = time.monotonic(), 0
            self._window = (began, count + 1)
        left = began + _WINDOW_SECONDS - time.monotonic()
        headers = {
            "X-RateLimit-Limit": str(self._calls_per_minute),
            "X-RateLimit-Remaining": str(max(0, self._calls_per_minute - count - 1)),
            "X-RateLimit-Reset": str(int(time.time() + left) + 1),
        }
        return headers, int(left) + 1 if count >= self._calls_per_minute else 0


def _changed(body: Json, fault: faults.Rule | None) -> Json:
    """Return the body of an answer, changed by *fault*."""
    match fault:
        case faults.EmptyPage():
            return {name: [] if isinstance(value, list) and "meta" in body else value for name, value in body.items()}
        case faults.SameNext() if "meta" in body:
            return {**body, "meta": {**body["meta"], "next": body["meta"]["self"]}}
        case faults.UnknownState() if "devices" in body:
            shown = [
                {**device, "state": fault.state} if fault.count is None or number < fault.count else device
                for number, device in enumerate(body["devices"])
            ]
            return {**body, "devices": shown}
        case faults.UnknownState() if "hostname" in body:
            return {**body, "state": fault.state}
    return body
