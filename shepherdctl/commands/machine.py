"""The commands that look at machines."""

import base64
import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, get_args
from uuid import UUID

import typer
from rich.text import Text
from shepherd_core.bmdb.agents import installation
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import queries
from shepherd_core.domain.machine import WorkEvent
from shepherd_core.settings.functions import ProviderChoice, load

from shepherdctl import hardware, installations
from shepherdctl.database import bmdb
from shepherdctl.output import Column, Form, Output, counted, document, facts, ids, note, one_of, table
from shepherdctl.state import Observer, Settings
from shepherdctl.times import relative, span

PROVIDERS: tuple[str, ...] = get_args(ProviderChoice.model_fields["provider"].annotation)

ProviderOption = Annotated[
    str | None,
    typer.Option(
        "--provider", parser=one_of(*PROVIDERS), metavar=f"<{'|'.join(PROVIDERS)}>", help="Only this provider's."
    ),
]
MachineArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The beginning of a machine id, or a whole provider id.")
]

_EVENT_STYLES = {
    WorkEvent.FINISHED: "green",
    WorkEvent.FAILED: "red",
    WorkEvent.EXPIRED: "red",
    WorkEvent.QUARANTINED: "red",
}


def list_machines(
    provider: ProviderOption = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, metavar="COUNT", help="Machines to show at most.")] = 100,
    output: Output = Form.TABLE,
) -> None:
    """
    List the machines of the BMDB and their state, by machine id.

    An unhealthy machine has sent no heartbeat for longer than the heartbeat
    timeout (SHEPHERD_HEARTBEAT_TIMEOUT_SECONDS), or none at all within the
    startup timeout (SHEPHERD_STARTUP_TIMEOUT_SECONDS).
    On a terminal, ids are as short as they can be without two being alike.

    Examples:
      shepherdctl machine list --provider static
      shepherdctl machine list --limit 100000 -o json | jq -r '.[].state'
    """
    (settings,) = load(Settings)
    with bmdb(settings) as connection:
        machines = queries.list_machines(connection, provider=provider, limit=limit + 1)
        observer = Observer(queries.now(connection), settings, queries.pauses(connection))
    for machine in machines:
        machine["needs"] = machine.pop("process")
    shown = machines[:limit]
    if output is Form.JSON:
        document([_with_state(machine, observer) for machine in shown])
    else:
        names = ids(machine["machine_id"] for machine in shown)
        columns = (
            Column("MACHINE"),
            Column("PROVIDER", spare=2),
            Column("PROVIDER ID"),
            Column("ADDRESS", spare=1),
            Column("LOCATION", spare=3),
            Column("STATE", prose=True),
        )
        rows = [
            (
                name,
                machine["provider"],
                machine["provider_id"],
                machine["provider_ip_address"],
                machine["provider_location"],
                observer.words(machine),
            )
            for name, machine in zip(names, shown, strict=True)
        ]
        table(columns, rows)
        if not shown:
            note("there are no machines")
    if len(machines) > limit:
        note(f"only {counted(limit, 'machine')} shown, there are more: see --limit")


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
        document(_with_state(found, observer))
    else:
        facts(_told(found, observer))


def forget_host_key(machine: MachineArgument, output: Output = Form.TABLE) -> None:
    """
    Forget the SSH host key of a machine, so that the next contact pins a new one.

    For a machine whose host key changed on purpose (reinstalled, mainboard
    replaced). Find out first that this is so: whoever answers next at its
    address will be given the agent. Work that failed is tried again when its
    backoff has passed.

    Examples:
      shepherdctl machine forget-host-key 3f2a
    """
    with bmdb() as connection:
        machine_id = queries.find_machine(connection, machine)
        host_key = queries.show_machine(connection, machine_id)["host_key"]
        forgotten = queries.forget_host_key(connection, machine_id)
    if output is Form.JSON:
        document({"machine_id": machine_id, "forgotten": forgotten, "host_key": host_key if forgotten else None})
    elif forgotten and host_key:
        facts([("machine", machine_id), ("forgot", fingerprint(host_key))])
    else:
        note(f"no host key was pinned for machine {machine_id}")


def history(
    machine: MachineArgument,
    limit: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="COUNT", help="Events to show at most: the newest.")
    ] = 100,
    output: Output = Form.TABLE,
) -> None:
    """
    Show the audit trail of a machine: all work on it, newest last.

    It outlives the machine; one that is gone is named by its whole id.

    Examples:
      shepherdctl history 3f2a --limit 20
      shepherdctl history rack1-3 -o json | jq -r '.[].failed_cause'
    """
    with bmdb() as connection:
        events = _events(connection, machine, limit + 1)
        now = queries.now(connection)
    shown = events[:limit][::-1]
    if output is Form.JSON:
        document(shown)
    else:
        columns = (
            Column("WHEN"),
            Column("TIME (UTC)", spare=1),
            Column("PROCESS"),
            Column("EVENT"),
            Column("STEP"),
            Column("SESSION", spare=2),
            Column("CAUSE", prose=True),
        )
        rows = [
            (
                relative(event["timestamp"], now),
                f"{event['timestamp']:%Y-%m-%d %H:%M:%S}",
                event["process"],
                Text(event["event"], style=_EVENT_STYLES.get(event["event"], "")),
                event["step"],
                session,
                event["failed_cause"],
            )
            for session, event in zip(ids(event["session_id"] for event in shown), shown, strict=True)
        ]
        table(columns, rows)
        if not shown:
            note("nothing has been done with this machine yet")
    if len(events) > limit:
        note(f"only the last {counted(limit, 'event')} shown, there are more: see --limit")


def observed(connection: Connection, name: str, settings: Settings) -> tuple[dict[str, Any], Observer]:
    """
    Return what is known about the machine that people call *name*, and what its state is judged by.

    Raises:
        MachineUnknown: no machine is called so, or more than one.
    """
    found = queries.show_machine(connection, queries.find_machine(connection, name))
    observer = Observer(queries.now(connection), settings, queries.pauses(connection))
    found["being_worked_on"] = bool(found["work"])
    found["backing_off"] = found["backoff_until"] is not None and found["backoff_until"] > observer.now
    return found, observer


def fingerprint(host_key: str) -> str:
    """Return the kind of an SSH host key and its fingerprint, as ``ssh-keygen -l`` prints it."""
    kind, encoded = host_key.split()[:2]
    digest = hashlib.sha256(base64.b64decode(encoded)).digest()
    return f"{kind} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _with_state(machine: Mapping[str, Any], observer: Observer) -> dict[str, Any]:
    pauses = observer.pauses_of(machine)
    told = {name: value for name, value in machine.items() if name != "pause_ids"}
    return {**told, "state": observer.state(machine), "paused": bool(pauses), "pauses": pauses}


def _events(connection: Connection, name: str, limit: int) -> list[dict[str, Any]]:
    """Return the newest events first, also of a machine that is gone if *name* is its whole id."""
    with suppress(ValueError):
        if events := queries.history(connection, UUID(name), limit):
            return events
    return queries.history(connection, queries.find_machine(connection, name), limit)


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
    how, by, reason = (machine[f"decommissioned_{each}"] for each in ("how", "by", "reason"))
    return f"{was}, {how.lower()} {when('decommissioned_at')} by {by}: {reason}"


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
