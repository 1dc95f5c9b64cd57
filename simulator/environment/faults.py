"""
The faults that a simulated environment injects, and the format of a faults file.

A faults file is a JSON object with three sections, each optional, two of them lists::

    {
      "api": [
        {"method": "POST", "path": "/projects/{id}/devices", "nth": 2, "do": "drop", "when": "after"},
        {"method": "GET", "times": 3, "do": "answer", "status": 429, "retry_after": 1}
      ],
      "machines": [
        {"at_seconds": 20, "machine": 3, "fault": "stop_agents"}
      ]
    }

**api**: rules for calls to the provider's API. Each rule selects calls:

- ``method``: GET, POST, PUT, PATCH, DELETE, or ``*`` for any (default).
- ``path``: below the base URL. ``{anything}`` or ``*`` matches one segment, ``**`` any rest (default).
- ``nth``: the first of the matching calls that the rule hits, counted from 1 (default 1).
- ``times``: the number of calls that it hits from there on (default 1); 0: all that follow.

``do`` says what happens to them. ``when`` is ``before`` (default) or ``after`` the effect of the call:

- ``answer``: ``status`` (200 to 599) in place of the real answer, with ``body`` (text is sent as it is,
  anything else as JSON, none if left out) and header ``Retry-After: retry_after`` (seconds); ``when``.
- ``delay``: the call waits ``seconds``; ``when``. Can be combined with one other rule.
- ``drop``: the connection is closed without an answer; ``when``.
- ``cut``: the connection is closed in the middle of the real answer.
- ``empty_page``: a page of a listing is empty, although its ``meta`` is that of a full one.
- ``repeat_page``: a page of a listing has the entries of the page before it (page 1: its own).
- ``shrink``: the first ``count`` (default 1) entries of a listing are missing, so that later pages move up.
- ``set``: puts ``value`` into the real answer at ``at``, a path of names and indexes such as ``servers.*.id`` (``*``:
  any; ``**``: any number of any).
- ``scramble``: replaces one value in the real answer, chosen by ``seed``, by another one, mostly of another type.
- ``create_late``: the answer is ``status`` (default 504), and the call takes effect ``seconds`` later.

Every rule counts all calls that match it, also those that another rule hits.
If several rules hit one call, all delays and the first other rule apply.

**machines**: faults of machines. ``at_seconds`` of fleet time after the start of the environment, ``fault``
(stop_agents, hang, fill_disk or change_host_key) happens to the ``machine`` with this index (from 0, in the order of
creation).

**agent**: ``broken``: the Initializer starts an agent that ends with an error.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails
from shepherd_core.domain.errors import ConfigError

_STRICT = ConfigDict(extra="forbid", strict=True)

When = Literal["before", "after"]
_DO = 2  # the position of "do" in the location of an error: section, index, do, field

Seconds = Annotated[float, Field(ge=0, le=86_400)]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Rule:
    """The calls that a rule hits; see the module's docstring for the fields of this class and its subclasses."""

    method: Literal["*", "GET", "POST", "PUT", "PATCH", "DELETE"] = "*"
    path: Annotated[str, Field(pattern=r"^(/|\*\*$)")] = "**"
    nth: Annotated[int, Field(ge=1)] = 1
    times: Annotated[int, Field(ge=0)] = 1

    def matches(self, method: str, path: str) -> bool:
        """Return whether the rule counts a call of *path*, which is below the base URL."""
        pattern = re.sub(r"\\\*\\\*|\\\*|\\\{[^/]*?\\\}", _wildcard, re.escape(self.path))
        return self.method in ("*", method) and re.fullmatch(pattern, path) is not None

    def hits(self, count: int) -> bool:
        """Return whether the rule hits the matching call number *count*."""
        return count >= self.nth and (self.times == 0 or count < self.nth + self.times)


def _wildcard(match: re.Match[str]) -> str:
    return ".*" if match[0] == r"\*\*" else "[^/]+"


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class FakeAnswer(Rule):
    """Another answer in place of the real one."""

    do: Literal["answer"] = "answer"
    status: Annotated[int, Field(ge=200, le=599)]
    body: Any = None
    retry_after: Seconds | None = None
    when: When = "before"


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Delay(Rule):
    """A delay before or after the effect."""

    do: Literal["delay"] = "delay"
    seconds: Seconds
    when: When = "before"


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Drop(Rule):
    """No answer at all."""

    do: Literal["drop"] = "drop"
    when: When = "before"


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Cut(Rule):
    """Half an answer."""

    do: Literal["cut"] = "cut"


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class EmptyPage(Rule):
    """A page without entries."""

    do: Literal["empty_page"] = "empty_page"


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class RepeatPage(Rule):
    """A page with the entries of the one before it."""

    do: Literal["repeat_page"] = "repeat_page"


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Shrink(Rule):
    """A listing that has lost its first entries."""

    do: Literal["shrink"] = "shrink"
    count: Annotated[int, Field(ge=1)] = 1


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class CreateLate(Rule):
    """An error as the answer, followed by the effect."""

    do: Literal["create_late"] = "create_late"
    seconds: Seconds
    status: Annotated[int, Field(ge=400, le=599)] = 504


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class SetValue(Rule):
    """An answer with another value at the places that match a path."""

    do: Literal["set"] = "set"
    at: Annotated[str, Field(min_length=1)]
    value: Any


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Scramble(Rule):
    """An answer with one value that does not fit."""

    do: Literal["scramble"] = "scramble"
    seed: int = 0


ApiFault = Annotated[
    FakeAnswer | Delay | Drop | Cut | EmptyPage | RepeatPage | Shrink | CreateLate | SetValue | Scramble,
    Field(discriminator="do"),
]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class MachineFault:
    """A fault of one machine."""

    at_seconds: Seconds
    machine: Annotated[int, Field(ge=0)]
    fault: Literal["stop_agents", "hang", "fill_disk", "change_host_key"]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Faults:
    """A whole faults file."""

    api: tuple[ApiFault, ...] = ()
    machines: tuple[MachineFault, ...] = ()
    agent: Literal["broken"] | None = None


def parse(text: str | bytes, name: str = "faults") -> Faults:
    """
    Parse the JSON *text* of a faults file; error messages call it *name*.

    Raises:
        ConfigError: it is not JSON or not in the format; lists every error with section, index and field.
    """
    try:
        return TypeAdapter(Faults).validate_json(text)
    except ValidationError as error:
        raise ConfigError([_fault(name, item) for item in error.errors(include_url=False)]) from error


def _fault(name: str, item: ErrorDetails) -> str:
    """Return the location of an error (rules by index, fields by name), the value there, and what is wrong with it."""
    place = name
    for depth, part in enumerate(item["loc"]):
        if isinstance(part, int):
            place += f"[{part}]"
        elif depth != _DO or item["loc"][0] != "api":
            place += f" {part}" if depth == 0 else f".{part}"
    got = "" if item["type"] == "missing" else f" is {item['input']!r}"
    return f"{place}{got}: {item['msg']}"


def load(path: Path) -> Faults:
    """
    Parse the faults file at *path*.

    Raises:
        ConfigError: the file cannot be read, or see ``parse``.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError([f"{path} cannot be read: {error.strerror}"]) from error
    return parse(text, str(path))
