"""
The operators' actions on machines, each with its dry run; the commands and the console share them.

*owner* and *reason* are stored: with the pause, in the machine's history, or in the machine's tombstone.
"""

import socket
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any
from uuid import UUID

from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.listings.decommissioning import RemovalRequest
from shepherd_core.bmdb.machines import lookup, pauses
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.wire import server
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.provider import NotSupported
from shepherd_core.domain.machine import Process
from shepherd_core.domain.provider import Capability
from shepherd_core.operator.adopt_forget import ActionOutcome, ActionResult, OperatorAction
from shepherd_core.operator.drift_repair import DriftRepair
from shepherd_core.operator.release import CancelRelease, Release
from shepherd_core.rules.drift import Comparison, DriftKind

from shepherdctl.output.readable_log import ReadableLog

SECONDS = 600.0
"""The time limit of a comparison, and of the actions after it."""

ADOPTABLE = (DriftKind.ADOPTABLE, DriftKind.FOREIGN, DriftKind.DUPLICATED, DriftKind.DISPUTED)
"""The classes of drift in which a machine can be adopted."""


class NothingToDo(ShepherdError):
    """There is nothing to change."""


def pause(
    connection: Connection,
    machine_ids: Sequence[UUID],
    *,
    process: Process | None,
    provider: str | None,
    owner: str,
    reason: str,
    seconds: float | None,
    dry_run: bool = False,
) -> list[dict[str, Any]]:
    """
    Pause these machines, all or none; without machines, what *process* and *provider* name, or everything.

    Return the pauses.
    """
    scope = {"process": process, "provider": provider}

    def unit() -> list[dict[str, Any]]:
        return [
            {
                "pause_id": None
                if dry_run
                else pauses.pause(
                    connection,
                    owner=owner,
                    reason=reason,
                    machine_id=machine_id,
                    process=process,
                    provider=provider,
                    seconds=seconds,
                ),
                "machine_id": machine_id,
                **scope,
                "owner": owner,
                "reason": reason,
                "seconds": seconds,
            }
            for machine_id in machine_ids or (None,)
        ]

    return connection.transact(unit)


def retry(
    connection: Connection, machine_id: UUID, *, process: Process | None, owner: str, reason: str, dry_run: bool
) -> list[dict[str, Any]]:
    """End the machine's backoffs, of one process or of all; return them: ``process``, ``until``, ``cause``."""
    if not dry_run:
        return remediation.retry(connection, machine_id, reason=f"{owner}: {reason}", process=process)
    now = server.now(connection)
    return [
        {name: backoff[name] for name in ("process", "until", "cause")}
        for backoff in lookup.show_machine(connection, machine_id)["backoffs"]
        if (backoff["until"] > now or backoff["deaths"]) and process in (None, backoff["process"])
    ]


def unquarantine(connection: Connection, machine_id: UUID, *, owner: str, reason: str, dry_run: bool) -> dict[str, Any]:
    """
    End the quarantine of a machine; return ``quarantined_at`` and ``cause``.

    Raises:
        NothingToDo: the machine is not in quarantine.
    """
    if dry_run:
        shown = lookup.show_machine(connection, machine_id)
        ended = {"quarantined_at": shown["quarantined_at"], "cause": shown["quarantine_cause"]}
    else:
        ended = remediation.unquarantine(connection, machine_id, reason=f"{owner}: {reason}")
    if not ended.get("quarantined_at"):
        message = f"machine {machine_id} is not in quarantine: nothing was changed"
        raise NothingToDo(message)
    return ended


def release(repair: DriftRepair, machine_ids: Sequence[UUID], order: RemovalRequest, *, cancel: bool) -> OperatorAction:
    """
    Return the action that releases machines, or cancels their release.

    Raises:
        NotSupported: the provider cannot release machines.
    """
    if cancel:
        return CancelRelease(tuple(machine_ids), order)
    if Capability.RELEASE not in repair.provider.capabilities:
        message = f"the provider {repair.provider.name} cannot release machines: use the provider's own tools"
        raise NotSupported(message)
    return Release(tuple(machine_ids), order)


def compare(repair: DriftRepair) -> Comparison:
    """Return a comparison of the provider and the BMDB, which changes nothing."""
    return repair.compare(Deadline(repair.clock, SECONDS))


def confirmation(outcomes: Sequence[ActionOutcome]) -> str | None:
    """Return the text that an operator must type before machines are changed; None: no confirmation is needed."""
    ready = [outcome for outcome in outcomes if outcome.result is ActionResult.READY]
    if len(ready) > 1:
        return f"{len(ready)} machines"
    return str(ready[0].provider_id) if ready else None


def carry_out(repair: DriftRepair, action: OperatorAction, confirmed: Sequence[ActionOutcome]) -> list[ActionOutcome]:
    """Apply *action* where it was ready when the operator *confirmed* and still is. See ``DriftRepair.carry_out``."""
    deadline = Deadline(repair.clock, SECONDS)
    with redirect_stdout(ReadableLog()):
        return repair.carry_out(action, confirmed, deadline, f"shepherdctl on {socket.gethostname()}")
