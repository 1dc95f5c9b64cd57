"""The commands that pin and forget the SSH host key of a machine."""

from typing import Annotated

import typer
from shepherd_core.adapters.ssh_keys import fingerprint
from shepherd_core.bmdb.agents import host_keys
from shepherd_core.bmdb.machines import lookup
from shepherd_core.bmdb.machines.lookup import ShownMachine
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.providers.kit import fields
from shepherd_core.settings.functions.bmdb import OPERATOR

from shepherdctl.confirm import Yes, confirm, require_terminal
from shepherdctl.database import bmdb
from shepherdctl.options import DryRun, MachineArgument, OptionalReason, OwnerOption, current_user
from shepherdctl.output.formats import in_full
from shepherdctl.output.printing import Form, Output, document, facts, note


def pin_host_key(
    machine: MachineArgument,
    key: Annotated[
        list[str],
        typer.Argument(metavar="KEY", help="The key as a line: ssh-ed25519 AAAA… (a comment after it is ignored)."),
    ],
    *,
    replace: Annotated[bool, typer.Option("--replace", help="Pin it even if another key is pinned.")] = False,
    reason: OptionalReason = None,
    owner: OwnerOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Pin the SSH host key of a machine, instead of trusting the first contact.

    From then on, Shepherd starts no agent on a host that shows another key. An
    agent that already runs keeps running, and its reports count. Asks for
    confirmation before it replaces a key. On the machine,
    the key is in /etc/ssh/ssh_host_ed25519_key.pub: read it over a path that
    nobody can tamper with, such as its console. Who pinned it is stored in the
    machine's history. A machine that was refused for its key is tried again when
    its backoff ends, or at once after "machine retry".

    Examples:
      shepherdctl machine pin-host-key 3f2a ssh-ed25519 AAAAC3NzaC1lZDI1NTE5…
      shepherdctl machine pin-host-key 3f2a "$(cat key.pub)" --replace
    """
    owner = owner or current_user()
    host_key = fields.host_key(" ".join(key))
    if host_key is None:
        message = "KEY is not an SSH host key: give a line such as ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI…"
        raise typer.BadParameter(message)
    with bmdb(role=OPERATOR) as connection:
        machine_id = lookup.find_machine(connection, machine)
        shown = lookup.show_machine(connection, machine_id)
        name = in_full(shown.provider_id, machine_id)
        if replace and shown.host_key not in {None, host_key}:
            _confirm(shown, f"{fingerprint(host_key)} is pinned instead", dry_run=dry_run, yes=yes)
        if dry_run:
            before, provided = shown.host_key, shown.provider_id is not None
            pinned = provided and (replace or before in {None, host_key})
        else:
            why = f"{owner}: {fingerprint(host_key)}" + (f": {reason}" if reason else "")
            found = host_keys.pin_host_key(connection, machine_id, host_key, reason=why, replace=replace)
            provided = found is not None
            before, pinned = (found.before, found.pinned) if found else (None, False)
    if not provided:
        message = f"machine {name} is not provided (being created, or gone): nothing was changed"
        raise ShepherdError(message)
    if before is not None and not pinned:
        message = f"machine {name} has the pinned host key {fingerprint(before)}: use --replace to pin another"
        raise ShepherdError(message)
    if output is Form.JSON:
        named = {"machine_id": machine_id, "provider_id": shown.provider_id}
        document({**named, "dry_run": dry_run, "host_key": host_key, "before": before})
        return
    replaced = None if before in {None, host_key} else fingerprint(before)
    facts([("machine", name), ("pinned", fingerprint(host_key)), ("instead of", replaced)])
    note("an agent that already runs keeps running; the key is checked at the next contact")
    if dry_run:
        note("dry run: nothing was changed")


def forget_host_key(
    machine: MachineArgument,
    *,
    reason: OptionalReason = None,
    owner: OwnerOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Forget the pinned SSH host key of a machine; the next takeover pins a new one.

    For a machine whose host key changed on purpose (reinstalled, mainboard
    replaced). Check first that it did: the host that answers next at its address
    is trusted and gets the agent. If you know the new key, pin it instead
    ("machine pin-host-key"). Asks for confirmation. Work that failed is tried
    again when its backoff ends. Who did it is stored in the machine's history.

    Examples:
      shepherdctl machine forget-host-key 3f2a
    """
    owner = owner or current_user()
    with bmdb(role=OPERATOR) as connection:
        machine_id = lookup.find_machine(connection, machine)
        shown = lookup.show_machine(connection, machine_id)
        host_key = shown.host_key
        if host_key:
            _confirm(shown, "the host that answers next is trusted", dry_run=dry_run, yes=yes)
        why = f"{owner}: {fingerprint(host_key) if host_key else ''}" + (f": {reason}" if reason else "")
        forgotten = bool(host_key) if dry_run else host_keys.forget_host_key(connection, machine_id, why)
    if output is Form.JSON:
        named = {"machine_id": machine_id, "provider_id": shown.provider_id, "dry_run": dry_run}
        document({**named, "forgotten": forgotten, "host_key": host_key if forgotten else None})
    elif forgotten and host_key:
        facts([("machine", in_full(shown.provider_id, machine_id)), ("forgotten", fingerprint(host_key))])
    else:
        note(f"no host key was pinned for machine {in_full(shown.provider_id, machine_id)}")
    if dry_run:
        note("dry run: nothing was changed")


def _confirm(machine: ShownMachine, then: str, *, dry_run: bool, yes: bool) -> None:
    """Show the pinned host key of *machine*, which somebody else may have pinned, and wait for the confirmation."""
    name = in_full(machine.provider_id, machine.machine_id)
    note(f"{name}: {fingerprint(str(machine.host_key))} is forgotten, {then}")
    require_terminal(yes=yes or dry_run)
    if not (yes or dry_run):
        confirm(str(machine.provider_id or machine.machine_id))
