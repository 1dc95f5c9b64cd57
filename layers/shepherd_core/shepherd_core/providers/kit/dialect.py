"""The differences between APIs, as data, and the meaning of their answers other than 2xx."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from shepherd_core.domain.errors.provider import (
    ProviderForbidden,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUnusable,
)
from shepherd_core.providers.kit.fields import from_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shepherd_core.domain.errors.provider import ProviderError
    from shepherd_core.providers.kit.answer import HttpAnswer

_SERVER_ERROR = 500
_PASSING = (408, 425, 429)

_WORDS = (
    *("errors", "error", "error_message", "code", "type", "title", "message", "error_description", "detail", "details"),
    *("argument_name", "reason", "faultstring", "missing", "invalid", "validationErrors"),
)
"""The fields in which APIs explain an error."""
_NAMED = ("missing", "invalid")
"""Those whose values say little without the field's name."""
_DEPTH = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One row of an API's table: answers with this *status* whose message holds *says* are raised as *error*."""

    status: int | None = None
    """None: any."""
    says: str = ""
    """A regular expression; empty: whatever it says."""
    error: type[ProviderError]
    retry_after: float | None = None
    """With ProviderUnavailable: after how many seconds to call again, where the answer does not say."""
    retry_field: str = ""
    """The field of the body with that number of seconds, as ``at`` finds it."""

    def fits(self, status: int, said: str) -> bool:
        """Return whether this row is for such an answer."""
        return self.status in {None, status} and re.search(self.says, said) is not None

    def raised(self, message: str, answer: HttpAnswer) -> ProviderError:
        """Return the error."""
        if not issubclass(self.error, ProviderUnavailable):
            return self.error(message)
        seconds = at(answer.decoded(), self.retry_field) if self.retry_field else answer.retry_after
        valid = isinstance(seconds, int | float) and seconds > 0
        return self.error(message, seconds if valid else self.retry_after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The differences of an API from the others."""

    refusals: Sequence[Refusal] = ()
    """Answers that mean something else than their status says; the first that fits counts."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of each request."""
    body: Literal["json", "data"] = "json"
    """How bodies are sent: as JSON, or as forms (data)."""
    lockout_seconds: float = 0
    """How long a refused login is not sent again, for an API that locks out clients after failed logins."""


COMMON = Dialect()


def refused(
    message: str, answer: HttpAnswer, said: str, table: Iterable[Refusal], missing: type[ProviderError]
) -> ProviderError:
    """Return the error for an answer other than 2xx, by the first row of *table* that fits, else by its status."""
    for row in table:
        if row.fits(answer.status, said):
            return row.raised(message, answer)
    if answer.status in _PASSING or answer.status >= _SERVER_ERROR:
        return ProviderUnavailable(message, answer.retry_after)
    refusals: dict[int, type[ProviderError]] = {401: ProviderUnusable, 403: ProviderForbidden, 404: missing}
    return refusals.get(answer.status, ProviderRefused)(message)


def said(value: object, depth: int = _DEPTH) -> str:
    """Return the API's message in the decoded body of an error; empty for, say, a load balancer's."""
    if depth == 0:
        return ""
    if isinstance(value, str) and value.startswith("{"):  # OpenStack puts JSON into a text
        with suppress(ValueError):
            return said(from_json(value.encode()), depth - 1)
    if isinstance(value, str | int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, list):
        return "; ".join(filter(None, (said(each, depth - 1) for each in value)))
    if isinstance(value, dict):
        found = ((name, said(value.get(name), depth - 1)) for name in _WORDS)
        return ": ".join(f"{name} {text}" if name in _NAMED else text for name, text in found if text)
    return ""


def at(value: Any, place: str) -> Any:
    """Return what is at *place* in decoded JSON, such as ``meta.total``; None if nothing is. Empty: all."""
    for name in filter(None, place.split(".")):
        value = value.get(name) if isinstance(value, dict) else None
    return value
