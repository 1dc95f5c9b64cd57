"""What happens to a request of the simulated Equinix API around its operation: counting, limits, keys, faults."""

from __future__ import annotations

import hmac
import logging
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from simulator import faults
from simulator.equinix_http import Reply
from simulator.equinix_operations import perform, template
from simulator.equinix_records import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.equinix_answers import Json, Request
    from simulator.equinix_state import EquinixState

_log = logging.getLogger(__name__)
_WINDOW_SECONDS = 60


class Front:
    """Turns requests into replies. Safe to use from any thread."""

    def __init__(
        self,
        state: EquinixState,
        script: faults.FaultScript,
        *,
        api_key: str,
        per_page_cap: int,
        calls_per_minute: int,
    ) -> None:
        self.errors: list[Exception] = []
        """Faults of the simulator itself."""
        self.closing = threading.Event()
        """Set it to end all delays; no call has an effect from then on."""
        self._state = state
        self._script = script
        self._api_key = api_key
        self._per_page_cap = per_page_cap
        self._calls_per_minute = calls_per_minute
        self._lock = threading.Lock()
        self._calls: Counter[tuple[str, str]] = Counter()
        self._window = (time.monotonic(), 0)

    @property
    def calls(self) -> Counter[tuple[str, str]]:
        """Return how often each method and template of a path was called."""
        with self._lock:
            return self._calls.copy()

    def reply(self, request: Request, token: str | None) -> Reply | None:
        """Return the reply to a request, None to close the connection without one."""
        with self._lock:
            self._calls[request.method, template(request.method, request.path)] += 1
        delays, fault = self._script.hits(request.method, request.path)
        request = replace(request, per_page_cap=self._per_page_cap)
        if self._closed_in(delays, "before"):
            return None
        reply = self._spoiled(request, token, fault)
        return None if self._closed_in(delays, "after") else reply

    def _closed_in(self, delays: Sequence[faults.Delay], when: faults.When) -> bool:
        """Wait as long as told; tell whether the API was closed meanwhile."""
        return self.closing.wait(sum(delay.seconds for delay in delays if delay.when == when))

    def _spoiled(self, request: Request, token: str | None, fault: faults.Rule | None) -> Reply | None:
        match fault:
            case faults.Drop(when="before"):
                return None
            case faults.Answer(when="before"):
                return _scripted(fault)
            case faults.CreateLate():
                self._state.agenda.after(fault.seconds, lambda: self._real(request, token))
                return Reply(status=fault.status)
        return self._altered(request, token, fault)

    def _altered(self, request: Request, token: str | None, fault: faults.Rule | None) -> Reply | None:
        hidden = fault.count if isinstance(fault, faults.Shrink) else 0
        reply = self._real(replace(request, hidden=hidden), token)
        match fault:
            case faults.Drop():
                return None
            case faults.Answer():
                return _scripted(fault)
            case faults.Cut():
                return replace(reply, cut=True)
            case faults.RepeatPage() if isinstance(reply.body, dict) and "meta" in reply.body:
                page = max(1, reply.body["meta"]["current_page"] - 1)
                before = self._real(replace(request, query={**request.query, "page": str(page)}), token)
                return replace(reply, body={**before.body, "meta": reply.body["meta"]})
        return replace(reply, body=_bent(reply.body, fault)) if isinstance(reply.body, dict) else reply

    def _real(self, request: Request, token: str | None) -> Reply:
        """Carry the request out, and return the answer that the API would give."""
        headers, retry_after = self._rate()
        if retry_after:
            headers["Retry-After"] = str(retry_after)
            return Reply(status=429, body={"error": "Rate limit exceeded"}, headers=headers)
        if token is None or not hmac.compare_digest(token.encode(), self._api_key.encode()):
            return Reply(status=401, body={"error": "Invalid authentication token"}, headers=headers)
        try:
            status, body = perform(self._state, request)
        except Refused as refusal:
            return Reply(status=refusal.status, body={"errors": list(refusal.messages)}, headers=headers)
        except Exception as error:  # noqa: BLE001 - the client gets 500, the world's maker asks for the errors
            _log.exception("the simulated Equinix API cannot answer %s %s", request.method, request.path)
            self.errors.append(error)
            return Reply(status=500, body={"error": "Internal server error"}, headers=headers)
        return Reply(status=status, body=body, headers=headers)

    def _rate(self) -> tuple[dict[str, str], int]:
        """Count a call against the rate limit; return the headers that tell, and the seconds to wait if exceeded."""
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


def _scripted(fault: faults.Answer) -> Reply:
    headers = {} if fault.retry_after is None else {"Retry-After": f"{fault.retry_after:g}"}
    return Reply(status=fault.status, body=fault.body, headers=headers)


def _bent(body: Json, fault: faults.Rule | None) -> Json:
    """Return the body of an answer as *fault* bends it."""
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
