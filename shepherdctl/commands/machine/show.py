"""The command that shows all about one machine."""

from collections.abc import Callable, Mapping
from typing import Any

from shepherd_core.bmdb.agents import installation
from shepherd_core.bmdb.machines import queries
from shepherd_core.settings.functions import load

from shepherdctl.commands.machine import hardware, installations
from shepherdctl.database import bmdb
from shepherdctl.formats import fingerprint, relative, span
from shepherdctl.options import MachineArgument
from shepherdctl.output import Form, Output, document, facts
from shepherdctl.state import Observer, Settings, observed, with_state


def show(machine: MachineArgument, output: Output = Form.TABLE) -> None:
    """
    Show all that the BMDB knows about one machine.

    State, provider, agent, the last installation that was asked for and how
    it went, hardware as the agent reported it, work, backoffs and pauses.

    Examples:
      shepherdctl machine show 3f2a
      shepherdctl machine show rack1-3 -o json | jq .hardware.disks
    """
    (settings,) = load(Settings)
    with bmdb(settings) as connection:
        found, observer = observed(connection, machine, settings)
        reported = queries.hardware_report(connection, found["machine_id"])
        requested = installation.load(connection, found["machine_id"])
    found["installation"] = installations.described(requested)
    evidence = found.pop("quarantine_evidence")
    found["quarantine_evidence"] = None if evidence is None else evidence.splitlines()
    found["hardware"] = None if reported is None else hardware.described(*reported)
    if output is Form.JSON:
        document(with_state(found, observer))
    else:
        facts(_told(found, observer))


def _asked(machine: Mapping[str, Any], when: Callable[[str], str | None]) -> str | None:
    if machine["release_asked_at"] is None:
        return None
    accepted = "not known to be accepted" if machine["release_accepted_at"] is None else "accepted by the provider"
    asked = f"asked for {when('release_asked_at')} by {machine['release_asked_by']}"
    return f"{asked}, {accepted}: {machine['release_reason']}"


def _departed(machine: Mapping[str, Any], when: Callable[[str], str | None]) -> str | None:
    if machine["decommissioned_at"] is None:
        return None
    was = f"was {machine['decommissioned_provider_id']} at {machine['decommissioned_provider']}"
    return f"{was}, {machine['decommissioned_how'].lower()} {when('decommissioned_at')} by {machine['decommissioned_by']}: " + str(
        machine["decommissioned_reason"]
    )


def _told(machine: Mapping[str, Any], observer: Observer) -> list[tuple[str, object]]:
    """Return what is worth telling of a machine, line by line."""

    def when(name: str) -> str | None:
        return None if machine[name] is None else relative(machine[name], observer.now)

    rows: list[tuple[str, object]] = [
        ("machine", machine["machine_id"]),
        ("state", observer.words(machine)),
        ("created", when("machine_created_at")),
        ("creation begun", when("intended_at")),
        ("provider", machine["provider"]),
        ("provider id", machine["provider_id"]),
        ("reservation", machine["provider_reservation_id"]),
        ("address", machine["provider_ip_address"]),
        ("location", machine["provider_location"]),
        ("provider status", machine["provider_status"]),
        ("agent started", when("agent_started_at")),
        ("agent public key", machine["agent_public_key"]),
        ("heartbeat", when("agent_heartbeat_at")),
        ("host key", None if machine["host_key"] is None else fingerprint(machine["host_key"])),
        ("rebooted", when("rebooted_at")),
        ("settled", when("boot_wait_until")),
        ("expected back", when("grace_until") if machine["agent_started_at"] is None else None),
        ("in quarantine", when("quarantined_at")),
        ("because", machine["quarantine_cause"]),
        *(("evidence", line) for line in machine["quarantine_evidence"] or ()),
        ("next process", machine["needs"]),
        ("to be released", _asked(machine, when)),
        ("left", _departed(machine, when)),
        *installations.told(machine["installation"], observer.now),
    ]
    for work in machine["work"]:
        left = (work["deadline"] - observer.now).total_seconds()
        session = f"dies in {span(left)} unless it gives a sign of life" if left > 0 else "is dead"
        rows.append(
            ("work", f"{work['process']} by {work['component_name']} ({work['runtime_info']}), whose session {session}")
        )
    rows += [
        ("backoff", f"{backoff['process']}, ends {relative(backoff['until'], observer.now)}: {backoff['cause']}")
        for backoff in machine["backoffs"]
    ]
    rows += [
        ("pause", f"{pause['pause_id']} by {pause['owner']}: {pause['reason']}")
        for pause in observer.pauses_of(machine)
    ]
    return rows + ([] if machine["hardware"] is None else hardware.told(machine["hardware"], observer.now))
