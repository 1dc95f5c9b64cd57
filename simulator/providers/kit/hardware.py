"""The hardware behind a simulated provider: machines that can be racked and switched."""

import ipaddress
import threading
from typing import Protocol

_FIRST_ADDRESS = ipaddress.IPv4Address("198.18.0.1")  # reserved for benchmarks: no host answers there


class Hardware(Protocol):
    """
    Machines, identified by the name under which they were racked: the provider id.

    The calls for one machine come one at a time, in the order in which the API
    accepted them. They should return soon: no other machine changes meanwhile.
    Their exceptions are kept in the ``errors`` of the API; a device that
    cannot be racked fails.
    """

    def rack(self, name: str, authorized_key: str, provision_seconds: float, reserved: str | None = None) -> str:
        """
        Add a machine and return its IP address, the *reserved* one or a new one.

        Its root user accepts *authorized_key*: lines as in ``authorized_keys``,
        none, one or several (hardware that can take only one takes the first).
        The machine begins to boot after *provision_seconds*.
        """

    def reserve(self) -> str:
        """Return the IP address of a machine that is not racked yet."""

    def reboot(self, name: str) -> None:
        """Restart the machine."""

    def power_off(self, name: str) -> None:
        """Switch the machine off."""

    def power_on(self, name: str) -> None:
        """Switch the machine on."""

    def reinstall(self, name: str) -> None:
        """Reinstall the operating system of the machine."""

    def remove(self, name: str) -> None:
        """Remove the machine."""


class NoHardware:
    """No machines: returns made-up addresses, at which no host answers, and records the calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[tuple[str, str]] = []
        self._addresses = 0
        self.authorized_keys: dict[str, str] = {}
        """The authorized keys of each racked machine, by name."""

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Return the calls so far: method and name."""
        with self._lock:
            return list(self._calls)

    def rack(self, name: str, authorized_key: str, provision_seconds: float, reserved: str | None = None) -> str:  # noqa: ARG002 - the protocol's
        """Record it, and return an unused address."""
        self._record("rack", name)
        with self._lock:
            self.authorized_keys[name] = authorized_key
        return reserved or self.reserve()

    def reserve(self) -> str:
        """Return an unused address."""
        with self._lock:
            self._addresses += 1
            return str(_FIRST_ADDRESS + self._addresses - 1)

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
