"""The operations of the simulated Equinix API on SSH keys, and the choice of keys for a new device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.providers.equinix import bodies
from simulator.providers.equinix.objects import key_json
from simulator.providers.equinix.records import EquinixRefused, KeyRecord, now

if TYPE_CHECKING:
    from simulator.providers.equinix.answers import ApiRequest, Json
    from simulator.providers.equinix.state import EquinixState


def list_user_keys(state: EquinixState, _request: ApiRequest) -> tuple[int, Json]:
    """GET /ssh-keys: not paged."""
    return 200, _keys_of(state, _user(state))


def list_project_keys(state: EquinixState, _request: ApiRequest, project_id: str) -> tuple[int, Json]:
    """GET /projects/{id}/ssh-keys: not paged."""
    return 200, _keys_of(state, state.project(project_id))


def create_user_key(state: EquinixState, request: ApiRequest) -> tuple[int, Json]:
    """POST /ssh-keys."""
    return _create(state, request, _user(state))


def create_project_key(state: EquinixState, request: ApiRequest, project_id: str) -> tuple[int, Json]:
    """POST /projects/{id}/ssh-keys."""
    return _create(state, request, state.project(project_id))


def update_key(state: EquinixState, request: ApiRequest, key_id: str) -> tuple[int, Json]:
    """PUT or PATCH /ssh-keys/{id}; devices keep the keys that they were created with."""
    key = state.key(key_id)
    change = bodies.read(bodies.KeyChange, request.body)
    if change.key is not None:
        bodies.check_key(change.key)
        key.key = change.key.strip()
    key.label = change.label or key.label
    key.tags = key.tags if change.tags is None else change.tags
    key.updated_at = now()
    return 200, key_json(key)


def delete_key(state: EquinixState, _request: ApiRequest, key_id: str) -> tuple[int, None]:
    """DELETE /ssh-keys/{id}."""
    del state.keys[state.key(key_id).id]
    return 204, None


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
            raise EquinixRefused(422, f"project_ssh_keys: {name!r} is not a key of the project")
    for name in wanted.user_ssh_keys:
        if name != state.user_id:
            raise EquinixRefused(422, f"user_ssh_keys: {name!r} is not a member of the project")
    for inline in wanted.ssh_keys:
        bodies.check_key(inline.key)
    chosen = [key for key in state.keys.values() if key.id in wanted.project_ssh_keys]
    if wanted.user_ssh_keys:
        chosen += [key for key in state.keys.values() if key.entity == _user(state)]
    return chosen + [
        _stored(state, state.project(project_id), inline.label, inline.key.strip()) for inline in wanted.ssh_keys
    ]


def _create(state: EquinixState, request: ApiRequest, entity: str) -> tuple[int, Json]:
    wanted = bodies.read(bodies.KeyWanted, request.body)
    bodies.check_key(wanted.key)
    if _known(state, entity, wanted.key) is not None:
        raise EquinixRefused(422, "key: has already been taken")
    key = _stored(state, entity, wanted.label, wanted.key.strip())
    key.tags = wanted.tags
    return 201, key_json(key)


def _stored(state: EquinixState, entity: str, label: str, text: str) -> KeyRecord:
    """Return the key with this text, created if it is new."""
    if (key := _known(state, entity, text)) is None:
        key = KeyRecord(id=state.new_id(), label=label, key=text, entity=entity)
        state.keys[key.id] = key
    return key


def _known(state: EquinixState, entity: str, text: str) -> KeyRecord | None:
    blob = text.split()[1]
    return next((key for key in state.keys.values() if key.entity == entity and key.key.split()[1] == blob), None)


def _keys_of(state: EquinixState, entity: str) -> Json:
    return {"ssh_keys": [key_json(key) for key in state.keys.values() if key.entity == entity]}


def _user(state: EquinixState) -> str:
    return f"/users/{state.user_id}"
