"""The middleware of the simulated Robot web service: logins, limits, and the check against the description."""

import base64
import hmac
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simulator.providers.hetzner.description import Operation, Violation, check, find, form, status_of
from simulator.providers.hetzner.state import RobotRefused, RobotState
from simulator.providers.kit.fault_script import FaultScript
from simulator.providers.kit.http_server import HttpRequest, Reply
from simulator.providers.kit.middleware import Middleware

_log = logging.getLogger(__name__)
_HOUR = 3_600
_FAILED_LOGINS = 3

_PERFORM: dict[tuple[str, str], Callable[[RobotState, str, Mapping[str, str]], Any]] = {
    ("GET", "/server"): lambda state, _number, _form: state.list_servers(),
    ("GET", "/server/{number}"): lambda state, number, _form: state.get_server(number),
    ("GET", "/reset/{number}"): lambda state, number, _form: state.get_resets(number),
    ("POST", "/reset/{number}"): lambda state, number, form: state.reset(number, form),
    ("GET", "/boot/{number}"): lambda state, number, _form: state.get_boots(number),
    ("POST", "/boot/{number}/rescue"): lambda state, number, form: state.arm(number, "rescue", form),
    ("POST", "/boot/{number}/linux"): lambda state, number, form: state.arm(number, "linux", form),
    ("DELETE", "/boot/{number}/rescue"): lambda state, number, _form: state.disarm(number, "rescue"),
    ("DELETE", "/boot/{number}/linux"): lambda state, number, _form: state.disarm(number, "linux"),
    ("GET", "/key"): lambda state, _number, _form: state.list_keys(),
    ("POST", "/key"): lambda state, _number, form: state.add_key(form),
}


@dataclass(frozen=True, kw_only=True)
class RobotOptions:
    """Durations and limits of the simulated service."""

    action_seconds: float = 0.0
    """From a reset until it takes effect."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Requests an hour by quota ("POST /reset/{number}"), where they differ from the description."""
    lockout_seconds: float = 600
    clock: Callable[[], float] = time.monotonic
    """The seconds by which hours and the lock-out are measured."""
    authorized_key: str = ""
    """An SSH key that each server accepts."""


class AccessControl:
    """Checks credentials and rate limits. Safe to use from any thread."""

    def __init__(self, credential: str, options: RobotOptions) -> None:
        self.failed_logins = 0
        """The number of requests with a wrong credential."""
        self._authorization = b"Basic " + base64.b64encode(credential.encode())
        self._limits = options.limits
        self._lockout_seconds = options.lockout_seconds
        self._clock = options.clock
        self._lock = threading.Lock()
        self._failed: Counter[str] = Counter()
        self._locked_until: dict[str, float] = {}
        self._hours: dict[str, tuple[float, int]] = {}

    def log_in(self, request: HttpRequest) -> None:
        """
        Check the credential of a request.

        Raises:
            Refused: it is wrong, or the client's address is locked out.
        """
        right = hmac.compare_digest(str(request.headers.get("Authorization", "")).encode(), self._authorization)
        with self._lock:
            now, client = self._clock(), request.client
            locked = now < self._locked_until.get(client, 0)
            self.failed_logins += not right
            if not right and not locked:
                self._failed[client] += 1
                if self._failed[client] == _FAILED_LOGINS:
                    self._failed[client] = 0
                    self._locked_until[client] = now + self._lockout_seconds
        if locked or not right:
            raise RobotRefused("UNAUTHORIZED")

    def count(self, operation: Operation) -> None:
        """
        Count a request.

        Raises:
            Refused: it exceeds the limit for this hour.
        """
        limit = self._limits.get(operation.quota, operation.per_hour)
        with self._lock:
            began, count = self._hours.get(operation.quota, (self._clock(), 0))
            if self._clock() >= began + _HOUR:
                began, count = self._clock(), 0
            self._hours[operation.quota] = (began, count + 1)
        if count >= limit:
            raise RobotRefused("RATE_LIMIT_EXCEEDED", max_request=limit, interval=_HOUR)


class RobotMiddleware(Middleware):
    """Turns requests into replies. Safe to use from any thread."""

    def __init__(self, state: RobotState, script: FaultScript, gate: AccessControl) -> None:
        super().__init__(script)
        self._state = state
        self._gate = gate

    def reply(self, request: HttpRequest) -> Reply | None:
        """Return the reply to a request, None to close the connection without one."""
        found = find(request.method, request.path)
        template = request.path if found is None else found[0].path
        return self.pass_on(request.method, request.path, template, lambda _: self._real(request, found))

    def _real(self, request: HttpRequest, found: tuple[Operation, dict[str, str]] | None) -> Reply:
        if found is None:
            self.errors.append(Violation(f"{request.method} {request.path} is not in the description"))
            return Reply(status=404)
        operation, arguments = found
        try:
            status, body = operation.status, self._perform(request, operation, arguments)
        except RobotRefused as refused:
            status = status_of(refused.code)
            body = {"error": {"status": status, "code": refused.code, "message": refused.code.lower(), **refused.more}}
        except Exception as error:  # noqa: BLE001 - the client gets 500; ``errors`` keeps it
            _log.exception("the simulated Robot web service cannot answer %s %s", request.method, request.path)
            self.errors.append(error)
            return Reply(status=500)
        try:
            check(operation, status, body)
        except Violation as violation:
            self.errors.append(violation)
        return Reply(status=status, body=body)

    def _perform(self, request: HttpRequest, operation: Operation, arguments: Mapping[str, str]) -> Any:
        self._gate.log_in(request)
        self._gate.count(operation)
        given = form(operation, request, arguments)
        missing = [name for name, needed in operation.fields.items() if needed and name not in given]
        if missing:
            raise RobotRefused("INVALID_INPUT", missing=missing)
        with self._state.lock:
            return _PERFORM[operation.method, operation.path](self._state, arguments.get("number", ""), given)
