"""The operations of the simulated Equinix API on SSH keys, and the choice of keys for a new device."""

from collections.abc import Iterable
from typing import Any

from simulator.providers.equinix import bodies
from simulator.providers.equinix.base import EquinixBase
from simulator.providers.equinix.objects import key_json
from simulator.providers.equinix.records import KeyRecord, now
from simulator.providers.equinix.state import EquinixState
from simulator.providers.kit.http_server import Reply
from simulator.providers.kit.machines import Refused
from simulator.providers.kit.rest import Call, route


class KeyOperations(EquinixBase):
    """The operations on SSH keys."""

    @route("GET", "/ssh-keys")
    def list_user_keys(self, _: Call) -> Any:
        """List the user's keys; not paged."""
        return _keys_of(self.machines, _user(self.machines))

    @route("GET", "/projects/{id}/ssh-keys")
    def list_project_keys(self, _: Call, project_id: str) -> Any:
        """List a project's keys; not paged."""
        return _keys_of(self.machines, self.machines.project(project_id))

    @route("POST", "/ssh-keys")
    def create_user_key(self, request: Call) -> Any:
        """Add a key to the user."""
        return _create(self.machines, request, _user(self.machines))

    @route("POST", "/projects/{id}/ssh-keys")
    def create_project_key(self, request: Call, project_id: str) -> Any:
        """Add a key to a project."""
        return _create(self.machines, request, self.machines.project(project_id))

    @route("PUT", "/ssh-keys/{id}")
    @route("PATCH", "/ssh-keys/{id}")
    def update_key(self, request: Call, key_id: str) -> Any:
        """Change a key; devices keep the keys that they were created with."""
        key = self.machines.key(key_id)
        change = bodies.read(bodies.KeyChange, request.body)
        if change.key is not None:
            bodies.check_key(change.key)
            key.key = change.key.strip()
        key.label = change.label or key.label
        key.tags = key.tags if change.tags is None else change.tags
        key.updated_at = now()
        return key_json(key)

    @route("DELETE", "/ssh-keys/{id}")
    def delete_key(self, _: Call, key_id: str) -> Any:
        """Remove a key."""
        del self.machines.keys[self.machines.key(key_id).id]


def authorized_lines(keys: Iterable[KeyRecord]) -> str:
    """Return *keys* as lines of ``authorized_keys``."""
    return "\n".join(key.key for key in keys)


def keys_for_device(state: EquinixState, project_id: str, wanted: bodies.DeviceWanted) -> list[KeyRecord]:
    """
    Return the keys that a new device gets.

    If the request names none, that is every key, or none with ``no_ssh_keys``.

    Raises:
        Refused: a named key or user does not exist, or an inline key is not an SSH public key.
    """
    if not (wanted.project_ssh_keys or wanted.user_ssh_keys or wanted.ssh_keys):
        owners = (_user(state), state.project(project_id))
        return [] if wanted.no_ssh_keys else [key for key in state.keys.values() if key.entity in owners]
    for name in wanted.project_ssh_keys:
        if name not in state.keys or state.keys[name].entity != state.project(project_id):
            raise Refused(422, f"project_ssh_keys: {name!r} is not a key of the project")
    for name in wanted.user_ssh_keys:
        if name != state.user_id:
            raise Refused(422, f"user_ssh_keys: {name!r} is not a member of the project")
    for inline in wanted.ssh_keys:
        bodies.check_key(inline.key)
    chosen = [key for key in state.keys.values() if key.id in wanted.project_ssh_keys]
    if wanted.user_ssh_keys:
        chosen += [key for key in state.keys.values() if key.entity == _user(state)]
    return chosen + [
        _stored(state, state.project(project_id), inline.label, inline.key.strip()) for inline in wanted.ssh_keys
    ]


def _create(state: EquinixState, request: Call, entity: str) -> Reply:
    wanted = bodies.read(bodies.KeyWanted, request.body)
    bodies.check_key(wanted.key)
    if _known(state, entity, wanted.key) is not None:
        raise Refused(422, "key: has already been taken")
    key = _stored(state, entity, wanted.label, wanted.key.strip())
    key.tags = wanted.tags
    return Reply(status=201, body=key_json(key))


def _stored(state: EquinixState, entity: str, label: str, text: str) -> KeyRecord:
    """Return the key with this text, created if it is new."""
    if (key := _known(state, entity, text)) is None:
        key = KeyRecord(id=state.new_id(), label=label, key=text, entity=entity)
        state.keys[key.id] = key
    return key


def _known(state: EquinixState, entity: str, text: str) -> KeyRecord | None:
    blob = text.split()[1]
    return next((key for key in state.keys.values() if key.entity == entity and key.key.split()[1] == blob), None)


def _keys_of(state: EquinixState, entity: str) -> Any:
    return {"ssh_keys": [key_json(key) for key in state.keys.values() if key.entity == entity]}


def _user(state: EquinixState) -> str:
    return f"/users/{state.user_id}"
