"""Answers that are well-formed JSON, but not what the API promises: the faults ``set`` and ``scramble``."""

import json
import random
import re
from collections.abc import Iterator
from typing import Any

from simulator.environment.faults import Rule, Scramble, SetValue

Place = tuple[str | int, ...]
WRONG: tuple[Any, ...] = (None, "", "unheard of", "\0", -1, 10**30, True, [], [None], {}, {"unheard": "of"})
"""Values, most of which have the wrong type in any place."""


def changed(body: Any, fault: Rule | None) -> Any:
    """Return the body of an answer with the change of *fault*, if it is one of these faults and finds a place."""
    if not isinstance(fault, SetValue | Scramble):
        return body
    try:
        body = json.loads(json.dumps(body) if not isinstance(body, bytes) else body)
    except ValueError:
        return body
    if isinstance(fault, SetValue):
        for place in list(_places(body)):
            if _fits(place, fault.at):
                _set(body, place, fault.value)
    elif places := list(_places(body)):
        chance = random.Random(fault.seed)
        _set(body, chance.choice(places), chance.choice(WRONG))
    return body


def _places(value: Any, before: Place = ()) -> Iterator[Place]:
    """Yield the place of every value below *value*."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in pairs:
        yield (*before, name)
        yield from _places(inner, (*before, name))


def _fits(place: Place, at: str) -> bool:
    wild = {"*": r"\.[^.]*", "**": ".*"}
    pattern = "".join(wild.get(part) or rf"\.{re.escape(part)}" for part in at.split("."))
    return re.fullmatch(pattern, "".join(f".{name}" for name in place)) is not None


def _set(body: Any, place: Place, value: Any) -> None:
    for name in place[:-1]:
        body = body[name]
    body[place[-1]] = value
