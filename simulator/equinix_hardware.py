"""What stands behind the devices of the simulated Equinix API: machines that can be racked and switched."""

from __future__ import annotations

import ipaddress
import threading
from typing import Protocol

_FIRST_ADDRESS = ipaddress.IPv4Address("198.18.0.1")  # reserved for tests of equipment: nobody answers there


class Hardware(Protocol):
    """
    Machines, called by the name that they were racked with: the device id.

    The calls for one machine come one after the other, in the order in which
    the API took them. They should return soon, since nothing else changes
    meanwhile. What they raise is kept in ``EquinixApi.errors``, and a device
    that cannot be racked is failed.
    """

    def rack(self, name: str, authorized_key: str, provision_seconds: float) -> str:
        """
        Put up a machine and return its IP address.

        *authorized_key* is what its root user accepts: lines as in
        ``authorized_keys``, none, one or several (hardware that can take only
        one takes the first). The machine begins to boot after *provision_seconds*.
        """

    def reboot(self, name: str) -> None:
        """Restart the machine."""

    def power_off(self, name: str) -> None:
        """Switch the machine off."""

    def power_on(self, name: str) -> None:
        """Switch the machine on."""

    def reinstall(self, name: str) -> None:
        """Give the machine a fresh operating system."""

    def remove(self, name: str) -> None:
        """Take the machine away."""


class NoHardware:
    """No machines at all: invents addresses where nobody answers, and records what was asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[tuple[str, str]] = []
        self.authorized_keys: dict[str, str] = {}
        """The authorized keys of every machine that was racked, by name."""

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Return what was asked for so far: method and name."""
        with self._lock:
            return list(self._calls)

    def rack(self, name: str, authorized_key: str, provision_seconds: float) -> str:  # noqa: ARG002 - the protocol's
        """Return an address that no other machine has."""
        self._record("rack", name)
        with self._lock:
            self.authorized_keys[name] = authorized_key
            return str(_FIRST_ADDRESS + len(self.authorized_keys) - 1)

    def reboot(self, name: str) -> None:
        """Record it."""
        self._record("reboot", name)

    def power_off(self, name: str) -> None:
        """Record it."""
        self._record("power_off", name)

    def power_on(self, name: str) -> None:
        """Record it."""
        self._record("power_on", name)

    def reinstall(self, name: str) -> None:
        """Record it."""
        self._record("reinstall", name)

    def remove(self, name: str) -> None:
        """Record it."""
        self._record("remove", name)

    def _record(self, method: str, name: str) -> None:
        with self._lock:
            self._calls.append((method, name))
