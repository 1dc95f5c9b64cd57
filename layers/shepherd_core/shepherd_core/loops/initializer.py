"""The Initializer: brings the agent to machines that have none, starts it, and records its key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core import telemetry
from shepherd_core.agent.takeover import take_over
from shepherd_core.bmdb.work.work import AgentStarted, finish_agent_start
from shepherd_core.domain.errors import NoAddress, ShepherdError
from shepherd_core.domain.machine import Process
from shepherd_core.loops.base import Admission

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from shepherd_core.agent.takeover import AgentBinary, Dialer
    from shepherd_core.bmdb.session import Session
    from shepherd_core.bmdb.work.work import Work
    from shepherd_core.domain.backoff import Backoff
    from shepherd_core.domain.clock import Deadline
    from shepherd_core.domain.provider import Provider
    from shepherd_core.loops.base import Attempt


class Initializer:
    """Starts agents. Starting one where one runs already is harmless: the newer agent replaces the older."""

    process = Process.AGENT_START
    guard = None

    def __init__(
        self,
        provider: Provider,
        dialer: Dialer,
        fetch: Callable[[], tuple[AgentBinary, bytes]],
        *,
        path: str,
        endpoint: str,
        answer_seconds: float,
        backoff: Backoff,
    ) -> None:
        """*fetch* returns the agent and the CA certificate (DER, or empty) that it is to trust for *endpoint*."""
        self.backoff = backoff
        self._provider = provider
        self._dialer = dialer
        self._fetch = fetch
        self._path = path
        self._endpoint = endpoint
        self._answer_seconds = answer_seconds

    def admit(self, _: Session) -> Admission:
        """Hold nothing back: an agent too many harms nobody."""
        return Admission()

    def prepare(self, deadline: Deadline) -> None:
        """Fetch the agent: without it no machine can be worked on, which is no machine's fault."""
        deadline.left()
        self._binary, self._ca_certificate = self._fetch()

    def decide(self, _: Session, works: Sequence[Work]) -> Mapping[Work, object]:
        """Do the same with all of them."""
        return dict.fromkeys(works)

    def work_on(self, attempt: Attempt) -> AgentStarted:
        """Return the keys of the agent that now runs on the machine, and of the machine."""
        work, deadline = attempt.work, attempt.deadline
        if work.provider_id is None:
            message = "the machine is not provided by anyone"
            raise NoAddress(message)
        machine = self._provider.get_machine(work.provider_id, deadline)
        if machine.address is None:
            message = f"the provider names no address for {work.provider_id} (status {machine.status})"
            raise NoAddress(message)
        known = work.host_key or machine.host_key  # a reinstall drops the pin, but the provider may still know
        connection = self._dialer.dial(str(machine.address), known, deadline)
        try:
            attempt.host_key = connection.host_key
            takeover = take_over(
                connection,
                self._binary,
                self._path,
                machine_id=str(work.machine_id),
                endpoint=self._endpoint,
                ca_certificate=self._ca_certificate,
                answer_seconds=self._answer_seconds,
                deadline=deadline,
            )
        except ShepherdError as error:
            telemetry.info("takeover failed", machine_id=work.machine_id, notes=getattr(error, "__notes__", []))
            raise
        finally:
            connection.close()
        if takeover.warnings or takeover.stderr:
            telemetry.warning(
                "the agent has something to say",
                machine_id=work.machine_id,
                warnings=takeover.warnings,
                agent_stderr=takeover.stderr,
            )
        return AgentStarted(takeover.public_key, connection.host_key)

    def finish(self, session: Session, done: Mapping[Work, AgentStarted]) -> set[UUID]:
        """Tag the machines: their agents are started, with these keys."""
        return finish_agent_start(session, done)
