"""The Recoverer: brings back machines whose agent has fallen silent, by a reboot and a new agent start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core.bmdb.work import finish_recovery
from shepherd_core.errors import MachineNotFound
from shepherd_core.machine import Process

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from shepherd_core.backoff import Backoff
    from shepherd_core.bmdb.session import Session
    from shepherd_core.bmdb.work import Silence, Work
    from shepherd_core.clock import Deadline
    from shepherd_core.control_loop import Attempt
    from shepherd_core.provider import Provider


class Recoverer:
    """Reboots silent machines. Does not wait for them: the Initializer comes back when they should be up."""

    process = Process.RECOVERY

    def __init__(self, provider: Provider, *, silence: Silence, settle_seconds: float, backoff: Backoff) -> None:
        """*settle_seconds*: how long a machine takes to come up."""
        self.silence = silence
        self.backoff = backoff
        self._provider = provider
        self._settle_seconds = settle_seconds

    def prepare(self, deadline: Deadline) -> None:
        """Nothing is needed."""

    def work_on(self, attempt: Attempt) -> None:
        """Ask the provider for a reboot. A second one, after a crash in between, costs a silent machine nothing."""
        if attempt.work.provider_id is None:
            message = "the machine is not provided by anyone"
            raise MachineNotFound(message)
        attempt.deadline.check()
        self._provider.reboot(attempt.work.provider_id, attempt.deadline)

    def finish(self, session: Session, done: Mapping[Work, None]) -> set[UUID]:
        """Drop the tags of the agent that is gone, so that the machine needs an agent start."""
        return finish_recovery(session, list(done), self._settle_seconds)
