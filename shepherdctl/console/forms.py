"""Forms that browsers send: only those of the console's own pages are accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qsl
from uuid import UUID

import typer
from shepherd_core.domain.errors import ShepherdError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request

    from shepherdctl.console.guard import Access

T = TypeVar("T")

_LONGEST = 10_000
_LONGEST_FIELD = 500


class FormRefused(ShepherdError):
    """A form that is not from a page of this console, or too long."""


class FormInvalid(ShepherdError):
    """A field of a form that is missing or wrong."""


async def read(request: Request, access: Access) -> dict[str, str]:
    """
    Return the fields of the form that *request* sends.

    Raises:
        FormRefused: it lacks the token of our forms (CSRF), or is longer than 10,000 bytes.
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST:
            message = f"the form is longer than {_LONGEST} bytes"
            raise FormRefused(message)
    form = dict(parse_qsl(body.decode("latin-1"), keep_blank_values=True))
    if not access.is_form_token(form.get("form_token", "")):
        message = "it does not come from a page of this console, or the console was started again"
        raise FormRefused(message)
    return form


def optional(form: Mapping[str, str], name: str, parse: Callable[[str], T]) -> T | None:
    """
    Return the field *name* as *parse* reads it; None: it is blank.

    Raises:
        FormInvalid: it is too long, cannot be printed, or *parse* refuses it.
    """
    text = form.get(name, "").strip()
    if not text:
        return None
    if len(text) > _LONGEST_FIELD or not text.isprintable():
        message = f"{name} must be one line of at most {_LONGEST_FIELD} characters"
        raise FormInvalid(message)
    try:
        return parse(text)
    except (typer.BadParameter, ValueError) as error:
        message = f"{name}: {error}"
        raise FormInvalid(message) from error


def required(form: Mapping[str, str], name: str, parse: Callable[[str], T]) -> T:
    """
    Return the field *name* as *parse* reads it.

    Raises:
        FormInvalid: as ``optional``, or it is blank.
    """
    value = optional(form, name, parse)
    if value is None:
        message = f"{name} is missing"
        raise FormInvalid(message)
    return value


def uuid(text: str) -> UUID:
    """
    Return an id.

    Raises:
        ValueError: *text* is not an id.
    """
    try:
        return UUID(text)
    except ValueError as error:
        message = f"{text!r} is not an id"
        raise ValueError(message) from error
