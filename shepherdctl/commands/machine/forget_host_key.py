"""The command that unpins the SSH host key of a machine."""

from shepherd_core.bmdb.machines import queries

from shepherdctl.database import bmdb
from shepherdctl.formats import fingerprint
from shepherdctl.options import MachineArgument
from shepherdctl.output import Form, Output, document, facts, note


def forget_host_key(machine: MachineArgument, output: Output = Form.TABLE) -> None:
    """
    Forget the pinned SSH host key of a machine; the next SSH contact pins a new one.

    For a machine whose host key changed on purpose (reinstalled, mainboard
    replaced). Check first that it did: the host that answers next at its address
    is trusted and gets the agent. Work that failed is tried again when its
    backoff ends.

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
        facts([("machine", machine_id), ("forgotten", fingerprint(host_key))])
    else:
        note(f"no host key was pinned for machine {machine_id}")
