"""The times that machines of this fleet take to boot, and agents to start and to report, from facts and history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shepherd_core.domain.errors.machine import NoAddress, SshConnectionLost, SshRefused, SshTimedOut
from shepherd_core.domain.remediation import NOT_BOOTING

if TYPE_CHECKING:
    from shepherd_core.bmdb.connection import Connection

HISTORY_LIMIT = 20_000
"""The most rows of the history, and the most agents, that are read."""

_NOT_UP = [error.__name__ for error in (NoAddress, SshConnectionLost, SshRefused, SshTimedOut)]
"""The failures of an agent start on a machine that has yet to boot."""


def timings(connection: Connection, limit: int = HISTORY_LIMIT) -> list[dict[str, Any]]:
    """
    Return one record for each provider, location, ``what`` and ``after`` that has samples, sorted.

    ``what``: ``boot`` until the agent start that succeeded began, and ``return`` until an
    agent was started, both ``after`` a creation or the named recovery step (``boot``
    only if the step boots the machine);
    ``takeover``, from the claim of a machine to its started agent; ``first heartbeat``
    of an agent after its start. ``p50`` and ``p99`` are seconds. ``failed_starts`` of the
    ``samples`` of ``boot`` had an agent start before that did not reach the machine.

    ``boot_wait_seconds`` is the longest boot wait after these steps that is on record;
    ``startup_timeout_seconds`` and ``grace_seconds`` are the policy of the provider.
    These may be None. Reads at most *limit* rows of the history, the latest.
    """
    return connection.records("timings", limit=limit, not_up=_NOT_UP, not_booting=list(NOT_BOOTING))
