"""The Initializer: uploads the agent to machines that have none, starts it, and records its key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shepherd_core import telemetry
from shepherd_core.agent.takeover import AgentProgram, take_over
from shepherd_core.bmdb.work.work import AgentStarted, finish_agent_start
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.machine import HostKeyUnknown, NoAddress, TakeoverFailed
from shepherd_core.domain.machine import HostKeyOrigin
from shepherd_core.domain.pb.agent_pb2 import TakeoverInit
from shepherd_core.loops.base import Loop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from shepherd_core.agent.takeover import AgentBinary, Dialer
    from shepherd_core.bmdb.session import Session
    from shepherd_core.bmdb.work.work import Work
    from shepherd_core.domain.backoff import Backoff
    from shepherd_core.domain.clock import Deadline
    from shepherd_core.domain.provider import Provider
    from shepherd_core.loops.base import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """The options with which agents are started."""

    path: str
    """Of the agent on the machines."""
    endpoint: str
    """Where the agents report to."""
    answer_seconds: float
    """How long an agent may take to answer."""
    backoff: Backoff
    """How long to leave a machine alone after a failure."""
    installation_keys: Callable[[], Sequence[bytes]] = tuple
    """Returns the public keys that the agents accept for installations."""
    require_known_host_key: bool = False
    """Contact no machine whose host key is not known before."""


class Initializer(Loop[AgentStarted]):
    """Starts agents. Where one runs already, the newer one replaces it, but not during an installation."""

    name = "initializer"

    def __init__(
        self,
        provider: Provider,
        dialer: Dialer,
        fetch: Callable[[], tuple[AgentBinary, bytes]],
        options: StartOptions,
    ) -> None:
        """*fetch* returns the agent and the CA certificate (DER, or empty) that it is to trust for its endpoint."""
        self.backoff = options.backoff
        self._provider = provider
        self._dialer = dialer
        self._fetch = fetch
        self._options = options

    def prepare(self, deadline: Deadline) -> None:
        """Fetch the agent: without it no machine can be worked on, and none is at fault."""
        deadline.left()
        binary, self._ca_certificate = self._fetch()
        options = self._options
        self._installation_keys = options.installation_keys()
        self._program = AgentProgram(binary=binary, path=options.path, answer_seconds=options.answer_seconds)

    def work_on(self, task: Task) -> AgentStarted:
        """Return the keys of the agent that now runs on the machine, and of the machine."""
        work, deadline = task.work, task.deadline
        if work.provider_id is None:
            message = "the machine is not provided: it has no provider id"
            raise NoAddress(message)
        machine = self._provider.get_machine(work.provider_id, deadline)
        if machine.address is None:
            message = f"the provider names no address for {work.provider_id} (status {machine.status})"
            raise NoAddress(message)
        known = (
            work.host_key or machine.host_key
        )  # a reinstall deletes the pinned key, but the provider may know the new one
        if known is None and self._options.require_known_host_key:
            message = (
                "the machine's host key is not known, and require_known_host_key is set: name it to the provider or in "
                f"the list, or run shepherdctl machine pin-host-key {work.machine_id} KEY"
            )
            raise HostKeyUnknown(message)
        connection = self._dialer.dial(str(machine.address), known, deadline)
        try:
            init = TakeoverInit(
                machine_id=str(work.machine_id),
                bmaas_endpoint=self._options.endpoint,
                ca_certificate=self._ca_certificate,
                installation_key=self._installation_keys,
                time=SystemClock().time_of_day(),
            )
            takeover = take_over(connection, self._program, init, deadline)
        except ShepherdError as error:
            if isinstance(error, TakeoverFailed):
                error.agent_sha256 = self._program.binary.sha256
            telemetry.info("takeover failed", machine_id=work.machine_id, notes=getattr(error, "__notes__", []))
            raise
        finally:
            connection.close()
        if takeover.warnings or takeover.stderr:
            telemetry.warning(
                "agent warnings",
                machine_id=work.machine_id,
                warnings=takeover.warnings,
                agent_stderr=takeover.stderr,
            )
        origin = HostKeyOrigin.FIRST_CONTACT if machine.host_key is None else HostKeyOrigin.PROVIDER
        return AgentStarted(takeover.public_key, connection.host_key, origin, self._program.binary.sha256)

    def finish(self, session: Session, done: Mapping[Work, AgentStarted]) -> set[UUID]:
        """Record the facts: the agents are started, with these keys."""
        return finish_agent_start(session, done)
