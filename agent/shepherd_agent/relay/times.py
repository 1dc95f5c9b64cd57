"""How long a relay collects heartbeats, and how long an agent waits for it. The agent decides, by its own interval."""

from __future__ import annotations

LONGEST_COLLECT_SECONDS = 20
_COLLECT_SHARE = 1 / 12
"""
Share of the interval. A relay that hangs costs a machine this much of its timeout, and ``ANSWER_SECONDS``, beside the
three lost requests that it must survive (docs/reliability.md, How often machines report).
"""
ANSWER_SECONDS = 8.0
"""How long an agent waits beyond that for the relay and the endpoint to answer."""


def collect_seconds(interval: float) -> int:
    """Return for how many seconds a relay may collect, with heartbeats every *interval* seconds."""
    return min(LONGEST_COLLECT_SECONDS, int(interval * _COLLECT_SHARE))
