"""
The published description of Hetzner's Robot web service, for servers, resets, boot configurations and keys.

From https://robot.hetzner.com/doc/webservice/en.html: operations, their
fields, their limits, the shape of their answers and their errors. Facts that
are not in the description but were observed are marked "observed". The
simulated service checks every request and every answer against this table.
"""

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TypeVar
from urllib.parse import parse_qs

from pydantic import ValidationError

from simulator.providers.hetzner import answers
from simulator.providers.kit.http_server import HttpRequest

FORM = "application/x-www-form-urlencoded"
RESETS = ("sw", "hw", "man", "power", "power_long")
BOOTS = ("rescue", "linux", "vnc", "windows", "plesk", "cpanel")


A = TypeVar("A", bound=answers.Strict)


class Violation(Exception):
    """A request or an answer that is not in the description."""


@dataclass(frozen=True)
class Operation:
    """One operation."""

    method: str
    path: str
    answer: type[answers.Strict]
    """The object in a successful answer, which is an object with one field, ``wrapper``."""
    errors: frozenset[str]
    _: KW_ONLY
    per_hour: int = 500
    many: bool = False
    """Whether the answer is a list of such objects."""
    status: int = 200
    fields: Mapping[str, bool] = field(default_factory=dict)
    """The fields of the form, and whether each is required."""

    @property
    def wrapper(self) -> str:
        """Return the name of the field that holds the answer."""
        return next(part for part in reversed(self.path.split("/")) if "{" not in part)

    @property
    def quota(self) -> str:
        """Return the name of its limit; observed: listing servers and querying one share a limit."""
        return (
            "GET /server" if self.method == "GET" and self.path.startswith("/server") else f"{self.method} {self.path}"
        )

    def arguments(self, path: str) -> dict[str, str] | None:
        """Return the values of the names in braces; None if *path* is not of this operation."""
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", self.path)
        match = re.fullmatch(pattern, path)
        return None if match is None else match.groupdict()


_ARMED = {"authorized_key": False, "arch": False}
_SERVER = frozenset({"SERVER_NOT_FOUND"})
_BOOT = _SERVER | {"BOOT_NOT_AVAILABLE"}
_ACTIVATION = _BOOT | {"INVALID_INPUT", "BOOT_ACTIVATION_FAILED", "BOOT_ALREADY_ENABLED"}  # the last one: observed
_DEACTIVATION = _BOOT | {"BOOT_DEACTIVATION_FAILED"}

OPERATIONS = (
    Operation("GET", "/server", answers.ListedServer, _SERVER, per_hour=200, many=True),
    Operation("GET", "/server/{number}", answers.ServerDetails, _SERVER, per_hour=200),
    Operation("GET", "/reset/{number}", answers.Resets, _SERVER | {"RESET_NOT_AVAILABLE"}),
    Operation(
        "POST",
        "/reset/{number}",
        answers.ResetDone,
        _SERVER | {"INVALID_INPUT", "RESET_NOT_AVAILABLE", "RESET_MANUAL_ACTIVE", "RESET_FAILED"},
        per_hour=50,
        fields={"type": True},
    ),
    Operation("GET", "/boot/{number}", answers.Boots, _BOOT),
    Operation(
        "POST",
        "/boot/{number}/rescue",
        answers.Rescue,
        _ACTIVATION,
        fields={"os": True, "keyboard": False, **_ARMED},
    ),
    Operation(
        "POST", "/boot/{number}/linux", answers.Linux, _ACTIVATION, fields={"dist": True, "lang": True, **_ARMED}
    ),
    Operation("DELETE", "/boot/{number}/rescue", answers.Rescue, _DEACTIVATION),
    Operation("DELETE", "/boot/{number}/linux", answers.Linux, _DEACTIVATION),
    Operation("GET", "/key", answers.Key, frozenset({"NOT_FOUND"}), many=True),
    Operation(
        "POST",
        "/key",
        answers.Key,
        frozenset({"INVALID_INPUT", "KEY_ALREADY_EXISTS", "KEY_CREATE_FAILED"}),
        per_hour=200,
        status=201,
        fields={"name": True, "data": True},
    ),
)

_STATUS = {
    "INVALID_INPUT": 400,
    "UNAUTHORIZED": 401,
    "RATE_LIMIT_EXCEEDED": 403,
    "SERVER_NOT_FOUND": 404,
    "RESET_NOT_AVAILABLE": 404,
    "BOOT_NOT_AVAILABLE": 404,
    "NOT_FOUND": 404,
    "RESET_MANUAL_ACTIVE": 409,
    "KEY_ALREADY_EXISTS": 409,
    "BOOT_ALREADY_ENABLED": 409,
    "RESET_FAILED": 500,
    "BOOT_ACTIVATION_FAILED": 500,
    "BOOT_DEACTIVATION_FAILED": 500,
    "KEY_CREATE_FAILED": 500,
}
_ANYWHERE = frozenset({"UNAUTHORIZED", "RATE_LIMIT_EXCEEDED"})


def find(method: str, path: str) -> tuple[Operation, dict[str, str]] | None:
    """Return the operation of a request and its arguments; None if there is none."""
    for operation in OPERATIONS:
        arguments = operation.arguments(path)
        if arguments is not None and operation.method == method:
            return operation, arguments
    return None


def form(operation: Operation, request: HttpRequest, arguments: Mapping[str, str]) -> dict[str, str]:
    """
    Return the fields of the form in *request*.

    Raises:
        Violation: unknown or repeated fields, another content type, a query, or a server not named by its number.
    """
    called = f"{request.method} {request.path}"
    if request.query:
        raise Violation(f"{called}: the query {dict(request.query)} is not in the description")
    if not arguments.get("number", "1").isdecimal():
        raise Violation(f"{called}: name the server by number; by address is deprecated")
    kind = request.headers.get("Content-Type")
    if request.content and kind != FORM:
        raise Violation(f"{called}: the body is {kind}, not {FORM}")
    given = parse_qs(request.content.decode("ascii"), keep_blank_values=True, strict_parsing=bool(request.content))
    unknown = set(given) - set(operation.fields)
    repeated = [name for name, values in given.items() if len(values) > 1]
    if unknown or repeated:
        raise Violation(f"{called}: the fields {sorted(unknown)} are unknown, {repeated} are repeated")
    return {name: values[0] for name, values in given.items()}


def check(operation: Operation, status: int, body: object) -> None:
    """
    Check an answer to *operation* against the description.

    Raises:
        Violation: the description has no such answer.
    """
    answer = f"{operation.method} {operation.path} answered {status}"
    try:
        if status == operation.status:
            for each in _entries(operation, body):
                _unwrapped(operation.wrapper, operation.answer, each)
            return
        error = _unwrapped("error", answers.Error, body)
    except (ValidationError, TypeError) as fault:
        raise Violation(f"{answer} {body!r:.200}: {fault}") from fault
    if error.code not in operation.errors | _ANYWHERE or _STATUS[error.code] != status or error.status != status:
        raise Violation(f"{answer} with the error {error.code}, which is not one of its errors")


def status_of(code: str) -> int:
    """Return the HTTP status of an error."""
    return _STATUS[code]


def _entries(operation: Operation, body: object) -> list[object]:
    if operation.many != isinstance(body, list):
        raise TypeError("not a list" if operation.many else "not an object")
    return body if isinstance(body, list) else [body]


def _unwrapped(name: str, kind: type[A], body: object) -> A:
    if not isinstance(body, dict) or set(body) != {name}:
        raise TypeError(f"not an object with the field {name!r} alone")
    return kind.model_validate(body[name])
