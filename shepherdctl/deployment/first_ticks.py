"""The BMDB of a deployment, seen from here: whether it takes a password, and when each loop has run."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.wire import server
from shepherd_core.bmdb.work.ticks import Tick, last_ticks
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.bmdb import StatementFailed
from shepherd_core.domain.provider import Capability
from shepherd_core.settings.deployment import loop_minutes
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.settings.providers import find
from shepherd_core.wiring.adapters import CLOCK, read

from shepherdctl.database import bmdb
from shepherdctl.output.printing import note

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shepherdctl.deployment.answers import Answers

_PAUSE_SECONDS = 3.0
_LONGEST_MINUTES = 5
"""Loops that run less often are not waited for."""
_ROOM_SECONDS = 180.0
"""For a cold start, and a tick that takes its time."""


def settings(answers: Answers) -> BmdbSettings:
    """Return the settings by which an operator logs in to the BMDB of the deployment."""
    values: dict[str, Any] = {**answers.document.values(BmdbSettings), **login(answers)}
    return BmdbSettings(**values)


def login(answers: Answers) -> dict[str, str]:
    """Return what the deployment says of the BMDB, by the name of the setting."""
    how, told = answers.parameters["BmdbLogin"], {"bmdb_host": answers.parameters["BmdbHost"]}
    if how != "one-password":
        told["bmdb_roles"] = answers.stack
    if how in {"passwords", "one-password"}:
        return {**told, "bmdb_password_parameter": answers.parameter("bmdb-password")}
    return {**told, "bmdb_auth": "iam"}


def refusal(answers: Answers, password: str) -> str | None:
    """Return why the BMDB refuses its owner's *password*; None: it takes it, or cannot be asked from here."""
    own = settings(answers)
    source = own.bmdb_ca_source
    authorities = None if source is None else partial(read, source)
    try:
        with closing(Connection(own, lambda: password, CLOCK, authorities, attempts=1)) as connection:
            server.now(connection)
    except StatementFailed as error:
        return f"the database refuses its owner: {error}"
    except ShepherdError as error:  # in a VPC, there may be no way to it
        note(f"the password was not tried, because the database cannot be asked from here: {error}")
    return None


def awaited(answers: Answers) -> dict[str, int]:
    """Return the loops that run at least every five minutes, and the minutes between two runs."""
    spec, minutes = find(answers.provider), loop_minutes(answers.parameters["LoopMinutes"])
    idle = set() if Capability.REBOOT in {*spec.always, *spec.sometimes} else {"recoverer"}
    return {loop: each for loop, each in minutes.items() if 0 < each <= _LONGEST_MINUTES and loop not in idle}


def wait(answers: Answers, *, changed: bool) -> Mapping[str, Tick | None]:
    """
    Return the first tick of each loop that ends from now on; None: it has not run in three times its interval.

    If nothing *changed*, the last one counts, too: a run that was interrupted did not see it.

    Raises:
        BmdbError, SecretError, SourceError: the BMDB cannot be read from here.
    """
    loops = awaited(answers)
    found: dict[str, Tick | None] = dict.fromkeys(loops)
    deadline = Deadline(CLOCK, _ROOM_SECONDS + 60 * 2 * max(loops.values(), default=0))
    with bmdb(settings(answers)) as connection:
        begin = server.now(connection) - timedelta(minutes=0 if changed else 2 * max(loops.values()))
        while None in found.values() and deadline.remaining() > 0:
            for tick in last_ticks(connection):
                if tick.provider == answers.provider and tick.ended_at > begin and found.get(tick.loop, tick) is None:
                    found[tick.loop] = tick
                    note(f"{tick.loop} ran: {tick.outcome}{f', {tick.cause}' if tick.cause else ''}")
            if None in found.values():
                CLOCK.sleep(_PAUSE_SECONDS)
    return found
