"""Everything that the BMDB knows about one machine, as lines of a name and a value."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from shepherd_core.adapters.ssh_keys import fingerprint
from shepherd_core.bmdb.machines.lookup import ShownMachine
from shepherd_core.domain import labels
from shepherd_core.domain.machine import HostKeyOrigin

from shepherdctl.descriptions import hardware, installations
from shepherdctl.descriptions.cures import cures, told
from shepherdctl.descriptions.state import Observer
from shepherdctl.output.formats import loop_name, relative, span

_ORIGINS = {
    HostKeyOrigin.FIRST_CONTACT: "trusted at first contact",
    HostKeyOrigin.PROVIDER: "named by the provider",
    HostKeyOrigin.OPERATOR: "pinned by an operator",
}


def rows(
    machine: ShownMachine, observer: Observer, installation: Mapping[str, Any] | None, report: Mapping[str, Any] | None
) -> list[tuple[str, object]]:
    """Return the facts about *machine*, its *installation* and its hardware *report* as lines of a name and a value."""

    def when(moment: datetime | None) -> str | None:
        return None if moment is None else relative(moment, observer.now)

    lines: list[tuple[str, object]] = [
        ("machine", machine.machine_id),
        ("state", observer.describe(machine)),
        ("created", when(machine.machine_created_at)),
        ("creation begun", when(machine.intended_at)),
        ("provider", machine.provider),
        ("provider id", machine.provider_id),
        ("reservation", machine.provider_reservation_id),
        ("address", machine.provider_ip_address),
        ("location", machine.provider_location),
        ("labels", ", ".join(labels.written(machine.labels)) or None),
        ("provider status", ": ".join(filter(None, (machine.provider_status, machine.provider_failure))) or None),
        ("agent started", when(machine.agent_started_at)),
        ("agent public key", machine.agent_public_key),
        ("heartbeat", when(machine.agent_heartbeat_at)),
        ("host key", _host_key(machine, when)),
        ("rebooted", when(machine.rebooted_at)),
        ("recovered", f"{machine.recoveries} times in the last day" if machine.recoveries else None),
        ("boot wait ends", when(machine.boot_wait_until)),
        ("grace ends", when(machine.grace_until) if machine.agent_started_at is None else None),
        ("quarantined", when(machine.quarantined_at)),
        ("cause", machine.quarantine_cause),
        ("watched by", None if machine.needs is None else loop_name(machine.needs)),
        ("release", _release(machine, when)),
        ("decommissioned", _decommissioned(machine, when)),
        *installations.rows(installation, observer.now),
    ]
    for work in machine.work:
        left = (work.deadline - observer.now).total_seconds()
        session = f"expires in {span(left)} unless its lease is renewed" if left > 0 else "has expired"
        who = f"{work.component_name} ({work.runtime_info})"
        lines.append(("work", f"{loop_name(work.process)}, by {who}, whose session {session}"))
    for backoff in machine.backoffs:
        ends = relative(backoff.until, observer.now)
        lines.append(("backoff", f"{loop_name(backoff.process)}, ends {ends}: {told(backoff.kind, backoff.cause)}"))
    lines += [("cure", line) for line in cures([machine.quarantine_kind, *machine.failure_kinds])]
    lines += [("pause", f"{pause.pause_id} by {pause.owner}: {pause.reason}") for pause in observer.pauses_of(machine)]
    return lines + ([] if report is None else hardware.rows(report, observer.now))


def _host_key(machine: ShownMachine, when: Callable[[datetime | None], str | None]) -> str | None:
    if machine.host_key is None or machine.host_key_origin is None:
        return None
    origin = _ORIGINS[machine.host_key_origin]
    return f"{fingerprint(machine.host_key)}, {origin} {when(machine.host_key_pinned_at)}"


def _release(machine: ShownMachine, when: Callable[[datetime | None], str | None]) -> str | None:
    if machine.release_asked_at is None:
        return None
    accepted = "not known to be accepted" if machine.release_accepted_at is None else "accepted by the provider"
    requested = f"requested {when(machine.release_asked_at)} by {machine.release_asked_by}"
    return f"{requested}, {accepted}: {machine.release_reason}"


def _decommissioned(machine: ShownMachine, when: Callable[[datetime | None], str | None]) -> str | None:
    if machine.decommissioned_at is None:
        return None
    was = f"was {machine.decommissioned_provider_id} at {machine.decommissioned_provider}"
    how = f"{machine.state} {when(machine.decommissioned_at)} by {machine.decommissioned_by}"
    return f"{was}, {how}: {machine.decommissioned_reason}"
