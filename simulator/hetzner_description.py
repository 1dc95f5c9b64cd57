"""
What the published description of Hetzner's Robot web service says, as far as servers, resets, boots and keys go.

Taken from https://robot.hetzner.com/doc/webservice/en.html: operations, their
fields, their limits, the shape of their answers and the errors that each may
give. What others have observed and the description does not say is marked so.
The simulated service holds every request and every answer to this table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qs

from pydantic import ValidationError

from simulator import hetzner_answers as answers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simulator.http_server import HttpRequest

FORM = "application/x-www-form-urlencoded"
RESETS = ("sw", "hw", "man", "power", "power_long")
BOOTS = ("rescue", "linux", "vnc", "windows", "plesk", "cpanel")


A = TypeVar("A", bound=answers.Strict)


class Violation(Exception):
    """A request or an answer that the description does not know."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One thing that can be asked for."""

    method: str
    path: str
    per_hour: int
    answer: type[answers.Strict]
    """What a successful answer holds, in an object whose one field is named after it."""
    many: bool = False
    """Whether it is a list of those."""
    status: int = 200
    fields: Mapping[str, bool] = field(default_factory=dict)
    """The form's fields, and whether they must be given."""
    errors: frozenset[str] = frozenset()

    @property
    def wrapper(self) -> str:
        """Return the name of the field that holds the answer."""
        return next(part for part in reversed(self.path.split("/")) if "{" not in part)

    @property
    def quota(self) -> str:
        """Return whose limit is used up; observed: to list servers and to query one use up the same."""
        return (
            "GET /server" if self.method == "GET" and self.path.startswith("/server") else f"{self.method} {self.path}"
        )

    def arguments(self, path: str) -> dict[str, str] | None:
        """Return what *path* gives for the names in braces; None if it is not this operation's."""
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", self.path)
        match = re.fullmatch(pattern, path)
        return None if match is None else match.groupdict()


_ARMED = {"authorized_key": False, "arch": False}
_SERVER = frozenset({"SERVER_NOT_FOUND"})
_BOOT = _SERVER | {"BOOT_NOT_AVAILABLE"}
_ACTIVATION = _BOOT | {"INVALID_INPUT", "BOOT_ACTIVATION_FAILED", "BOOT_ALREADY_ENABLED"}  # the last one: observed

OPERATIONS = (
    Operation(method="GET", path="/server", per_hour=200, answer=answers.ListedServer, many=True, errors=_SERVER),
    Operation(method="GET", path="/server/{number}", per_hour=200, answer=answers.Server, errors=_SERVER),
    Operation(
        method="GET",
        path="/reset/{number}",
        per_hour=500,
        answer=answers.Resets,
        errors=_SERVER | {"RESET_NOT_AVAILABLE"},
    ),
    Operation(
        method="POST",
        path="/reset/{number}",
        per_hour=50,
        answer=answers.ResetDone,
        fields={"type": True},
        errors=_SERVER | {"INVALID_INPUT", "RESET_NOT_AVAILABLE", "RESET_MANUAL_ACTIVE", "RESET_FAILED"},
    ),
    Operation(method="GET", path="/boot/{number}", per_hour=500, answer=answers.Boots, errors=_BOOT),
    Operation(
        method="POST",
        path="/boot/{number}/rescue",
        per_hour=500,
        answer=answers.Rescue,
        fields={"os": True, "keyboard": False, **_ARMED},
        errors=_ACTIVATION,
    ),
    Operation(
        method="POST",
        path="/boot/{number}/linux",
        per_hour=500,
        answer=answers.Linux,
        fields={"dist": True, "lang": True, **_ARMED},
        errors=_ACTIVATION,
    ),
    Operation(
        method="DELETE",
        path="/boot/{number}/rescue",
        per_hour=500,
        answer=answers.Rescue,
        errors=_BOOT | {"BOOT_DEACTIVATION_FAILED"},
    ),
    Operation(
        method="DELETE",
        path="/boot/{number}/linux",
        per_hour=500,
        answer=answers.Linux,
        errors=_BOOT | {"BOOT_DEACTIVATION_FAILED"},
    ),
    Operation(method="GET", path="/key", per_hour=500, answer=answers.Key, many=True, errors=frozenset({"NOT_FOUND"})),
    Operation(
        method="POST",
        path="/key",
        per_hour=200,
        status=201,
        answer=answers.Key,
        fields={"name": True, "data": True},
        errors=frozenset({"INVALID_INPUT", "KEY_ALREADY_EXISTS", "KEY_CREATE_FAILED"}),
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
    """Return the operation that is asked for, and its arguments."""
    for operation in OPERATIONS:
        arguments = operation.arguments(path)
        if arguments is not None and operation.method == method:
            return operation, arguments
    return None


def form(operation: Operation, request: HttpRequest, arguments: Mapping[str, str]) -> dict[str, str]:
    """
    Return the fields that *request* gives.

    Raises:
        Violation: it gives them in another way, or others, or names a server by something else than its number.
    """
    asked = f"{request.method} {request.path}"
    if request.query:
        raise Violation(f"{asked}: no query is known, but came {dict(request.query)}")
    if not arguments.get("number", "1").isdecimal():
        raise Violation(f"{asked}: servers are named by number; by address is deprecated")
    kind = request.headers.get("Content-Type")
    if request.content and kind != FORM:
        raise Violation(f"{asked}: the body is {kind}; {FORM} is wanted")
    given = parse_qs(request.content.decode("ascii"), keep_blank_values=True, strict_parsing=bool(request.content))
    unknown = set(given) - set(operation.fields)
    repeated = [name for name, values in given.items() if len(values) > 1]
    if unknown or repeated:
        raise Violation(f"{asked}: the fields {sorted(unknown)} are not known, {repeated} came twice")
    return {name: values[0] for name, values in given.items()}


def check(operation: Operation, status: int, body: object) -> None:
    """
    Return if the description knows an answer with this *status* and *body* to *operation*.

    Raises:
        Violation: it does not.
    """
    said = f"{operation.method} {operation.path} answered {status}"
    try:
        if status == operation.status:
            for each in _entries(operation, body):
                _unwrapped(operation.wrapper, operation.answer, each)
            return
        error = _unwrapped("error", answers.Error, body)
    except (ValidationError, TypeError) as fault:
        raise Violation(f"{said} {body!r:.200}: {fault}") from fault
    if error.code not in operation.errors | _ANYWHERE or _STATUS[error.code] != status or error.status != status:
        raise Violation(f"{said} with the error {error.code}, which it never gives")


def status_of(code: str) -> int:
    """Return the HTTP status of an error."""
    return _STATUS[code]


def _entries(operation: Operation, body: object) -> list[object]:
    if operation.many != isinstance(body, list):
        raise TypeError("a list was wanted" if operation.many else "an object was wanted")
    return body if isinstance(body, list) else [body]


def _unwrapped(name: str, kind: type[A], body: object) -> A:
    if not isinstance(body, dict) or set(body) != {name}:
        raise TypeError(f"an object with the field {name!r} was wanted")
    return kind.model_validate(body[name])
