"""Which installation commands the agent runs."""

import os

import pytest

from agent.shepherd_agent.installation.installer import unsafe

AGENT, STRANGER = 1000, 65534


@pytest.mark.parametrize(
    ("owner", "mode", "may_be_sticky", "fault"),
    [
        (0, 0o100755, False, None),
        (AGENT, 0o100700, False, None),
        (STRANGER, 0o100700, False, "belongs to user 65534, not to root"),
        (STRANGER, 0o41777, True, "belongs to user 65534, not to root"),
        (0, 0o100775, False, "is writable by others (mode 0775)"),
        (AGENT, 0o100702, False, "is writable by others (mode 0702)"),
        (0, 0o41777, False, "is writable by others (mode 1777)"),
        (0, 0o41777, True, None),
        (0, 0o40777, True, "is writable by others (mode 0777)"),
    ],
)
def test_only_root_and_agent_may_change_what_runs(
    owner: int, mode: int, may_be_sticky: bool, fault: str | None
) -> None:
    """It runs as root: anyone who can write it, or a directory above it, would be root."""
    found = os.stat_result((mode, 1, 1, 1, owner, 0, 0, 0, 0, 0))
    assert unsafe(found, AGENT, may_be_sticky=may_be_sticky) == fault
