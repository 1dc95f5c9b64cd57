"""The table of operations of the simulated Equinix API."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simulator.providers.equinix import devices, keys, reservations
from simulator.providers.equinix.records import EquinixRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulator.providers.equinix.answers import ApiRequest, Json
    from simulator.providers.equinix.state import EquinixState

_OPERATIONS: tuple[tuple[str, str, Callable[..., tuple[int, Json | None]]], ...] = (
    ("GET", "/projects/{id}/devices", devices.list_devices),
    ("POST", "/projects/{id}/devices", devices.create_device),
    ("GET", "/devices/{id}", devices.get_device),
    ("PUT", "/devices/{id}", devices.update_device),
    ("PATCH", "/devices/{id}", devices.update_device),
    ("DELETE", "/devices/{id}", devices.delete_device),
    ("POST", "/devices/{id}/actions", devices.act),
    ("GET", "/projects/{id}/hardware-reservations", reservations.list_reservations),
    ("GET", "/hardware-reservations/{id}", reservations.get_reservation),
    ("POST", "/hardware-reservations/{id}/move", reservations.move_reservation),
    ("POST", "/hardware-reservations/{id}/activate", reservations.activate_reservation),
    ("GET", "/ssh-keys", keys.list_user_keys),
    ("GET", "/projects/{id}/ssh-keys", keys.list_project_keys),
    ("POST", "/ssh-keys", keys.create_user_key),
    ("POST", "/projects/{id}/ssh-keys", keys.create_project_key),
    ("PUT", "/ssh-keys/{id}", keys.update_key),
    ("PATCH", "/ssh-keys/{id}", keys.update_key),
    ("DELETE", "/ssh-keys/{id}", keys.delete_key),
)


def template(method: str, path: str) -> str:
    """Return the path of the operation with ``{id}`` for ids; *path* itself if there is no such operation."""
    return next((known for operation, known, _ in _OPERATIONS if operation == method and _ids(known, path)), path)


def perform(state: EquinixState, request: ApiRequest) -> tuple[int, Json | None]:
    """
    Carry out *request* atomically, and return status and body.

    Raises:
        Refused: the API answers an error, and nothing has changed.
    """
    for method, known, operation in _OPERATIONS:
        ids = _ids(known, request.path)
        if ids is not None and method == request.method:
            with state.lock:
                return operation(state, request, *ids.groups())
    raise EquinixRefused(404, "Not found")


def _ids(known: str, path: str) -> re.Match[str] | None:
    return re.fullmatch(known.replace("{id}", "([^/]+)"), path)
