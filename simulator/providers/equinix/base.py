"""What all operations of the simulated Equinix API have in common, and the faults that only this API has."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from simulator.environment import faults
from simulator.providers.equinix.answers import BASE, Json, meta, one
from simulator.providers.equinix.state import EquinixState
from simulator.providers.kit.credentials import in_header
from simulator.providers.kit.http_server import HttpRequest, Reply
from simulator.providers.kit.machines import Refused
from simulator.providers.kit.rest import Call, RestApi

T = TypeVar("T")

_PARAMETERS = {"exclude", "include", "page", "per_page", "sort_by", "tag"}

_MESSAGES = {
    401: "Invalid authentication token",
    429: "Rate limit exceeded",
    500: "Internal server error",
}
"""Messages of errors that come before the operation, in a form of their own."""


class EquinixBase(RestApi):
    """The API without its operations."""

    base = BASE
    page_size = 10
    machines: EquinixState

    def logged_in(self, http: HttpRequest) -> bool:
        """Look for the key in a header of its own."""
        return in_header("X-Auth-Token")(http, self.secret)

    def error(self, refused: Refused) -> Json:
        """Return the body of an error."""
        message = _MESSAGES.get(refused.status)
        return {"errors": list(refused.messages)} if message is None else {"error": message}

    def listing(self, call: Call, collection: str, items: Sequence[T], body: Callable[[EquinixState, T], Json]) -> Json:
        """
        Return the page of *items* that *call* asks for, each shown by *body*.

        Raises:
            Refused: as ``page``; or the query has a parameter that the simulator ignores.
        """
        if ignored := call.query.keys() - _PARAMETERS:
            raise Refused(422, f"this simulator does not know {', '.join(sorted(ignored))}")
        shown, page = self.page(call, items)
        return {collection: [one(body(self.machines, item), call) for item in shown], "meta": meta(call.path, page)}

    def answer(self, call: Call, operation: Any, segments: Sequence[str]) -> Reply:
        """Carry out the call and return the answer, with what it says of the rate limit, changed by the fault."""
        reply = super().answer(call, operation, segments)
        began, count = self.window
        headers = {
            "X-RateLimit-Limit": str(self.options.calls_per_minute),
            "X-RateLimit-Remaining": str(max(0, self.options.calls_per_minute - count)),
            "X-RateLimit-Reset": str(int(time.time() + began + 60 - time.monotonic()) + 1),
        }
        body = _changed(reply.body, call.fault) if isinstance(reply.body, dict) else reply.body
        return replace(reply, headers={**headers, **reply.headers}, body=body)


def _changed(body: Json, fault: faults.Rule | None) -> Json:
    """Return the body of an answer, changed by *fault*."""
    match fault:
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
