"""Checks of the events that invoke the functions: whoever may invoke a function can send it any JSON."""

from __future__ import annotations

import json
from reprlib import Repr
from typing import TYPE_CHECKING, TypeVar

from shepherd_core.domain.errors import EventInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

MAX_EVENT_BYTES = 65_536
"""Schedules send about a hundred bytes, CloudFormation a few thousand."""

_KINDS = {str: "text", int: "a whole number", bool: "true or false", dict: "an object"}
_repr = Repr()
_repr.maxstring = _repr.maxother = 60


def shown(value: object) -> str:
    """Return *value* as an error message shows it: shortened, if it is long."""
    return _repr.repr(value)


def event_object(event: object) -> Mapping[str, object]:
    """
    Return *event* if it is an object of at most ``MAX_EVENT_BYTES``.

    Raises:
        EventInvalid: it is not.
    """
    if not isinstance(event, dict):
        message = f"the event is {shown(event)}; it must be an object, see events/"
        raise EventInvalid(message)
    size = len(json.dumps(event))
    if size > MAX_EVENT_BYTES:
        message = f"the event has {size} bytes; it must not have more than {MAX_EVENT_BYTES}"
        raise EventInvalid(message)
    return event


def field(event: object, path: str, kind: type[T]) -> T:
    """
    Return the field of *event* at *path*, whose names are separated by dots.

    Raises:
        EventInvalid: it is missing, or not of *kind*: str, int, bool or dict.
    """
    value, taken = event, "the event"
    for name in path.split("."):
        if not isinstance(value, dict):
            message = f"{taken} is {shown(value)}; it must be an object"
            raise EventInvalid(message)
        taken = name if taken == "the event" else f"{taken}.{name}"
        if name not in value:
            message = f"{taken} is missing; it must be {_KINDS[kind]}"
            raise EventInvalid(message)
        value = value[name]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        message = f"{path} is {shown(value)}; it must be {_KINDS[kind]}"
        raise EventInvalid(message)
    return value


def texts(event: object, path: str) -> dict[str, str]:
    """
    Return the object at *path*, all values of which are text.

    Raises:
        EventInvalid: it is missing or not an object, or one of its values is not text.
    """
    found: dict[str, str] = {}
    for name, value in field(event, path, dict).items():
        if not isinstance(value, str):
            message = f"{path}.{shown(name)} is {shown(value)}; it must be text"
            raise EventInvalid(message)
        found[name] = value
    return found
