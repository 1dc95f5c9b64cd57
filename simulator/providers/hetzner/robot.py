"""
A stateful local server of Hetzner's Robot web service, for tests and simulated environments.

It answers the operations on servers, resets, boot configurations and SSH keys,
with the limits of the real service and its lock-out after failed logins. Every
request and every answer is checked against the published description
(``hetzner_description``); a violation is an error of the simulation. Where the
description is silent, it does what makes a careless client fail: an address
that is locked out gets 401 for every request, an active boot configuration
cannot be activated again, and a reset cannot be taken back.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

from simulator.environment.faults import Rule
from simulator.providers.hetzner.middleware import AccessControl, RobotMiddleware, RobotOptions
from simulator.providers.hetzner.state import Armed, RobotKey, RobotServer, RobotState
from simulator.providers.kit.fault_script import FaultScript
from simulator.providers.kit.hardware import Hardware
from simulator.providers.kit.middleware import SimulatedApi

__all__ = ["HetznerRobot", "RobotOptions"]


class HetznerRobot(SimulatedApi):
    """
    The web service on its own port; a context manager.

    All methods are safe to use from any thread while it runs. The records it
    returns are copies.
    """

    def __init__(
        self,
        hardware: Hardware,
        *,
        user: str,
        password: str,
        servers: int | Sequence[RobotServer],
        options: RobotOptions | None = None,
        faults: Iterable[Rule] = (),
        address: str = "127.0.0.1",
    ) -> None:
        """
        Create the account with its *servers*; answer from ``start`` on.

        A number of servers means that many, named ``server-1`` and so on.
        """
        options = options or RobotOptions()
        if isinstance(servers, int):
            servers = [RobotServer(name=f"server-{number}") for number in range(1, servers + 1)]
        self.faults = FaultScript(faults)
        """The faults to inject; rules can be added at any time. The kinds that only Equinix has do nothing here."""
        self._state = RobotState(hardware, servers, options.authorized_key, options.action_seconds)
        self._gate = AccessControl(f"{user}:{password}", options)
        middleware = RobotMiddleware(self._state, self.faults, self._gate)
        super().__init__(middleware, middleware.reply, self._state.timers, address)

    @property
    def failed_logins(self) -> int:
        """Return the number of requests with a wrong credential, locked out or not."""
        return self._gate.failed_logins

    def servers(self) -> list[RobotServer]:
        """Return the servers."""
        with self._state.lock:
            return copy.deepcopy(list(self._state.servers.values()))

    def server(self, number: int) -> RobotServer:
        """Return one server."""
        with self._state.lock:
            return copy.deepcopy(self._state.servers[number])

    def change(self, number: int, **fields: Any) -> None:
        """Set fields of a server, as an operator or the vendor could."""
        with self._state.lock:
            for name, value in fields.items():
                setattr(self._state.servers[number], name, value)

    def arm(self, number: int, kind: str, choice: str = "", keys: tuple[str, ...] = ()) -> None:
        """Activate a boot configuration, as an operator would in the web interface; *keys* are fingerprints."""
        self.change(number, armed=Armed(kind=kind, choice=choice, keys=keys))

    def ssh_keys(self) -> list[RobotKey]:
        """Return the SSH keys of the key store."""
        with self._state.lock:
            return list(self._state.keys.values())

    def add_key(self, name: str, line: str) -> RobotKey:
        """Put a key into the key store, as an operator would in the web interface."""
        with self._state.lock:
            self._state.add_key({"name": name, "data": line})
            return self.ssh_keys()[-1]

    def remove_keys(self) -> None:
        """Empty the key store."""
        with self._state.lock:
            self._state.keys.clear()

    def settled(self) -> bool:
        """Return whether every reset that was accepted has taken effect."""
        return self._state.timers.idle()
