"""The command that unpins the SSH host key of a machine."""

from shepherd_core.bmdb.agents import host_keys
from shepherd_core.bmdb.machines import lookup

from shepherdctl.database import bmdb
from shepherdctl.options import MachineArgument, OptionalReason, OwnerOption, current_user
from shepherdctl.output.formats import fingerprint
from shepherdctl.output.printing import Form, Output, document, facts, note


def forget_host_key(
    machine: MachineArgument,
    *,
    reason: OptionalReason = None,
    owner: OwnerOption = None,
    output: Output = Form.TABLE,
) -> None:
    """
    Forget the pinned SSH host key of a machine; the next takeover pins a new one.

    For a machine whose host key changed on purpose (reinstalled, mainboard
    replaced). Check first that it did: the host that answers next at its address
    is trusted and gets the agent. If you know the new key, pin it instead
    ("machine pin-host-key"). Work that failed is tried again when its backoff
    ends. Who did it is stored in the machine's history.

    Examples:
      shepherdctl machine forget-host-key 3f2a
    """
    owner = owner or current_user()
    with bmdb() as connection:
        machine_id = lookup.find_machine(connection, machine)
        host_key = lookup.show_machine(connection, machine_id)["host_key"]
        why = f"{owner}: {fingerprint(host_key) if host_key else ''}" + (f": {reason}" if reason else "")
        forgotten = host_keys.forget_host_key(connection, machine_id, why)
    if output is Form.JSON:
        document({"machine_id": machine_id, "forgotten": forgotten, "host_key": host_key if forgotten else None})
    elif forgotten and host_key:
        facts([("machine", machine_id), ("forgotten", fingerprint(host_key))])
    else:
        note(f"no host key was pinned for machine {machine_id}")
