"""Forms that browsers send: only those of the console's own pages are accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from shepherd_core.domain.errors import ShepherdError

from shepherdctl.console.machines import FilterInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from shepherdctl.console.guard import Access

INTERVALS = {"1": "1 s", "10": "10 s", "30": "30 s", "120": "2 min"}
"""The times between two listings that can be chosen, by seconds."""
_LONGEST = 10_000


class FormRefused(ShepherdError):
    """A form that is not of this console's pages, or too long."""


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


def interval(form: Mapping[str, str]) -> float:
    """
    Return the seconds between two listings.

    Raises:
        FilterInvalid: they are none that can be chosen.
    """
    if form.get("interval") not in INTERVALS:
        message = f"interval must be one of {', '.join(INTERVALS)}"
        raise FilterInvalid(message)
    return float(form["interval"])
