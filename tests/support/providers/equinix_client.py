"""The simulated Equinix API with its hardware, and a client that neither retries nor waits long."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import requests

from simulator.environment.faults import Rule
from simulator.providers.equinix.api import EquinixApi
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.kit.machines import Options
from tests.support.waiting import eventually

PROJECT = "5d4f3c2b-0000-4000-8000-000000000001"
DEVICES = f"/projects/{PROJECT}/devices"
KEYS = f"/projects/{PROJECT}/ssh-keys"
RESERVATIONS = f"/projects/{PROJECT}/hardware-reservations"


class EquinixClient:
    """An API with its hardware, and a client of it."""

    def __init__(self, stack: ExitStack, *faults: Rule, **settings: Any) -> None:
        self.hardware = settings.pop("hardware", None) or NoHardware()
        reservations, options = settings.pop("reservations", 1), Options(**settings)
        api = EquinixApi(
            self.hardware, project_id=PROJECT, api_key="key", reservations=reservations, options=options, faults=faults
        )
        self.api = stack.enter_context(api)
        self._session = stack.enter_context(requests.Session())
        self._session.headers["X-Auth-Token"] = "key"

    def call(self, method: str, path: str, **more: Any) -> requests.Response:
        """Send a request."""
        return self._session.request(method, self.api.url + path, **{"timeout": 10, **more})

    def get(self, path: str, **query: Any) -> Any:
        """Return the body of a good answer."""
        response = self.call("GET", path, params=query)
        assert response.status_code == 200, response.text
        return response.json()

    def create(self, reservation: int = 0, timeout: float = 10, **more: Any) -> requests.Response:
        """Ask for a device on the reservation with this index."""
        body = {
            "plan": "c3.small.x86",
            "operating_system": "ubuntu_24_04",
            "metro": "da",
            "hostname": f"shepherd-{reservation}",
            "hardware_reservation_id": self.api.reservations()[reservation].id,
        }
        return self.call("POST", DEVICES, json=body | more, timeout=timeout)

    def active(self, **more: Any) -> str:
        """Return the id of a new device that is active."""
        response = self.create(**more)
        assert response.status_code == 201, response.text
        device_id: str = response.json()["id"]
        self.until(device_id, "active")
        return device_id

    def until(self, device_id: str, state: str) -> Any:
        """Return the device as soon as it is in *state*."""
        return eventually(lambda: (device := self.get(f"/devices/{device_id}"))["state"] == state and device)

    def act(self, device_id: str, **body: Any) -> int:
        """Ask for an action; return the status."""
        return self.call("POST", f"/devices/{device_id}/actions", json=body).status_code

    def delete(self, device_id: str) -> int:
        """Ask for a deletion; return the status."""
        return self.call("DELETE", f"/devices/{device_id}").status_code


Make = Callable[..., EquinixClient]
"""Makes a client with an API of these faults and settings."""
