"""Whether an agent is to blame for machines that do not come back: a pure rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shepherd_core.domain.records import FailedStarts

_MACHINES = 3
"""Two machines may have the same fault by chance."""


def bad_agents(starts: Iterable[FailedStarts]) -> list[FailedStarts]:
    """Return those whose agent is at fault: it fails alike on several machines, and runs on none."""
    return [each for each in starts if each.machines >= _MACHINES and not each.succeeded]
