"""
A stateful local server of Hetzner's Robot web service, for tests and simulated worlds.

It answers what concerns servers, resets, boot configurations and SSH keys,
with the limits of the real one and its lock-out after failed logins. Every
request and every answer is held to the published description
(``hetzner_description``); what it does not know is an error of the simulation.
What it leaves open is decided so that a careless client fails: an address that
is locked out gets 401 whatever it sends, what is armed is never armed twice,
and what was reset cannot be taken back.
"""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any

from simulator.faults import FaultScript
from simulator.front import Served
from simulator.hetzner_front import Gate, RobotFront
from simulator.hetzner_state import Armed, RobotServer, RobotState
from simulator.http_server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from simulator.equinix_hardware import Hardware
    from simulator.faults import Rule
    from simulator.hetzner_state import RobotKey


class HetznerRobot(Served):
    """
    The web service on a port of its own; a context manager.

    All methods are safe to use from any thread while it runs. What it shows of
    its records are copies.
    """

    def __init__(
        self,
        hardware: Hardware,
        *,
        user: str,
        password: str,
        servers: int | Sequence[RobotServer],
        authorized_key: str = "",
        action_seconds: float = 0.0,
        limits: Mapping[str, int] | None = None,
        lockout_seconds: float = 600,
        clock: Callable[[], float] = time.monotonic,
        faults: Iterable[Rule] = (),
        address: str = "127.0.0.1",
    ) -> None:
        """
        Make the world and take a port of *address*; nothing is answered before ``start``.

        *servers* are the account's, or so many with names from ``server-1`` on; each accepts *authorized_key*. Resets
        take effect after *action_seconds*. *limits* are requests an hour by quota ("POST /reset/{number}") that differ
        from the description's. *clock* tells the seconds by which hours and the lock-out are measured.
        """
        if isinstance(servers, int):
            servers = [RobotServer(name=f"server-{number}") for number in range(1, servers + 1)]
        self.faults = FaultScript(faults)
        """What goes wrong; rules can be added at any time. Of the rules for one API alone, none means anything here."""
        self._state = RobotState(hardware, servers, authorized_key, action_seconds)
        self._gate = Gate(f"{user}:{password}", limits or {}, lockout_seconds, clock)
        self._front = RobotFront(self._state, self.faults, self._gate)
        self._server = Server(self._front.reply, address)
        self._address = address
        super().__init__(self._server, self._front, self._state.agenda)

    @property
    def url(self) -> str:
        """Return the base URL."""
        return f"http://{self._address}:{self._server.server_port}"

    @property
    def failed_logins(self) -> int:
        """Return how often a wrong credential came, locked out or not."""
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
        """Set fields of a server, by fate or by hand."""
        with self._state.lock:
            for name, value in fields.items():
                setattr(self._state.servers[number], name, value)

    def arm(self, number: int, kind: str, choice: str = "", keys: tuple[str, ...] = ()) -> None:
        """Activate a boot configuration, as somebody would in the web interface; *keys* are fingerprints."""
        self.change(number, armed=Armed(kind=kind, choice=choice, keys=keys))

    def ssh_keys(self) -> list[RobotKey]:
        """Return the SSH keys of the key store."""
        with self._state.lock:
            return list(self._state.keys.values())

    def add_key(self, name: str, line: str) -> RobotKey:
        """Put a key into the key store, as somebody would in the web interface."""
        with self._state.lock:
            self._state.add_key({"name": name, "data": line})
            return self.ssh_keys()[-1]

    def remove_keys(self) -> None:
        """Empty the key store."""
        with self._state.lock:
            self._state.keys.clear()

    def settled(self) -> bool:
        """Return whether every reset that was accepted has taken effect."""
        with self._state.lock:
            return not self._state.under_way
