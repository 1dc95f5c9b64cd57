"""The operations of the simulated Equinix API on SSH keys, and the choice of keys for a new device."""

from collections.abc import Iterable
from typing import Any

from simulator.providers.equinix import bodies
from simulator.providers.equinix.base import EquinixBase
from simulator.providers.equinix.objects import key_json
from simulator.providers.equinix.records import KeyRecord
from simulator.providers.equinix.state import EquinixState
from simulator.providers.kit.http_server import Reply
from simulator.providers.kit.machines import Refused
from simulator.providers.kit.rest import Call, route


class KeyOperations(EquinixBase):
    """The operations on the SSH keys of the project."""

    @route("GET", "/projects/{id}/ssh-keys")
    def list_keys(self, _: Call, project_id: str) -> Any:
        """List the keys; not paged."""
        self.machines.check_project(project_id)
        return {"ssh_keys": [key_json(key) for key in self.machines.keys.values()]}

    @route("POST", "/projects/{id}/ssh-keys")
    def create_key(self, request: Call, project_id: str) -> Any:
        """Add a key."""
        self.machines.check_project(project_id)
        wanted = bodies.read(bodies.KeyWanted, request.body)
        bodies.check_key(wanted.key)
        if any(key.key.split()[1] == wanted.key.split()[1] for key in self.machines.keys.values()):
            raise Refused(422, "key: has already been taken")
        key = KeyRecord(id=self.machines.new_id(), label=wanted.label, key=wanted.key.strip())
        self.machines.keys[key.id] = key
        return Reply(status=201, body=key_json(key))

    @route("DELETE", "/ssh-keys/{id}")
    def delete_key(self, _: Call, key_id: str) -> Any:
        """Remove a key."""
        del self.machines.keys[self.machines.key(key_id).id]


def authorized_lines(keys: Iterable[KeyRecord]) -> str:
    """Return *keys* as lines of ``authorized_keys``."""
    return "\n".join(key.key for key in keys)


def keys_for_device(state: EquinixState, wanted: bodies.DeviceWanted) -> list[KeyRecord]:
    """
    Return the keys that a new device gets: those that the request names, or every key if it names none.

    Raises:
        Refused: a named key does not exist.
    """
    for name in wanted.project_ssh_keys:
        if name not in state.keys:
            raise Refused(422, f"project_ssh_keys: {name!r} is not a key of the project")
    return [key for key in state.keys.values() if not wanted.project_ssh_keys or key.id in wanted.project_ssh_keys]
