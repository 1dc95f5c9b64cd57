"""A rack of simulated machines with BMCs: the emulator of sushy-tools switches the machines of a pool."""

import hashlib
import json
import re
import ssl
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.closeable import Assembled
from simulator.environment import certificate
from simulator.environment.faults import Rule
from simulator.providers.kit.fault_script import FaultScript
from simulator.providers.kit.hardware import Hardware
from simulator.providers.kit.http_server import Server
from simulator.providers.redfish.emulator import RedfishEmulator
from simulator.providers.redfish.https import BmcServers
from simulator.providers.redfish.middleware import SimulatedBmc

_PASSWORD = "made-up:password of a BMC"  # noqa: S105 - made up
_USER = "shepherd"


class RedfishRack(Assembled):
    """
    Machines, each with a BMC, from entry to exit; one rack at a time in a process.

    A change of power at a BMC stops or starts the machine of the pool; a boot from PXE or a virtual CD reinstalls it.
    Safe to use from any thread.
    """

    def __init__(
        self,
        pool: Hardware,
        folder: Path,
        *,
        machines: int,
        authorized_key: str = "",
        address: str = "127.0.0.1",
        action_seconds: float = 0,
        fault_rules: Sequence[Rule] = (),
    ) -> None:
        """
        Add that many *machines* to *pool* on entry, and write the machine list and certificates to *folder*.

        They admit root with *authorized_key*. The BMCs are at ports of *address*, an IP address of this computer.
        A change of power takes *action_seconds*. *fault_rules* hold for all BMCs.
        """
        super().__init__()
        self._pool = pool
        self._folder = folder
        self._authorized_key = authorized_key
        self._address = address
        self._action_seconds = action_seconds
        self.names = [f"rack-{number:03}" for number in range(1, machines + 1)]
        """The IDs of the machines in the machine list, and their names in the pool."""
        self.faults = FaultScript(fault_rules)
        """The faults of all BMCs."""
        self.bmcs: dict[str, SimulatedBmc] = {}
        self.listeners: dict[str, Server] = {}
        """The HTTPS server of each BMC."""
        self.entries: list[dict[str, str]] = []
        """The machine list."""
        self.secrets: Mapping[str, str] = {}
        """The secrets that an operator stores, by the name of the SSM parameter."""
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._power: dict[str, str] = {}
        self._starts: dict[str, int] = {}

    @property
    def document(self) -> bytes:
        """Return the machine list as JSON."""
        return json.dumps(self.entries).encode()

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment variables of the functions; machine list and CAs are files."""
        return {
            "SHEPHERD_PROVIDER": "redfish",
            "SHEPHERD_PROVIDER_MACHINES": str(self.list_file),
            "SHEPHERD_PROVIDER_CA_SOURCE": str(self.ca_file),
        }

    @property
    def errors(self) -> Sequence[Exception]:
        """Return the errors of the simulator itself."""
        return self._emulator.errors

    @property
    def calls(self) -> int:
        """Return the number of requests to all BMCs."""
        return sum(len(bmc.calls) for bmc in self.bmcs.values())

    @property
    def image_url(self) -> str:
        """Return the URL of an image for the virtual drive of a BMC."""
        return self._emulator.image_url

    @property
    def fingerprint(self) -> str:
        """Return the SHA-256 fingerprint of the BMCs' certificate, as openssl prints it."""
        pem = re.findall(
            "-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", self._tls_file.read_text(), re.DOTALL
        )
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem[0])).digest().hex(":").upper()

    def power(self, name: str) -> str:
        """Return whether the machine is On or Off."""
        with self._lock:
            return self._power[name]

    def starts(self, name: str) -> int:
        """Return how often the machine was switched on or restarted since it was racked."""
        with self._lock:
            return self._starts.get(name, 0)

    def wait_until_idle(self) -> None:
        """Wait until no change of power is under way."""
        end = time.monotonic() + 20
        while not self._emulator.idle:
            if time.monotonic() > end:
                raise TimeoutError("a change of power is still under way after 20 s")
            time.sleep(0.002)

    def impersonate(self, name: str) -> None:
        """Give the BMC a certificate of an unknown CA, from now on."""
        folder = self._folder / name
        folder.mkdir()
        self.listeners[name].tls, _ = certificate.make(self._address, folder)

    def _make(self) -> None:
        enter = self._stack.enter_context
        tls, self.ca_file = certificate.make(self._address, self._folder)
        self._tls_file = self._folder / "server.pem"
        systems = [{"uuid": str(uuid.uuid4()), "name": name, "power_state": "On", "nics": []} for name in self.names]
        self._power = dict.fromkeys(self.names, "On")
        self._emulator = enter(RedfishEmulator(systems, self._changed, self._action_seconds))
        for system in systems:
            self._rack(str(system["name"]), str(system["uuid"]), tls)
        self._stack.callback(BmcServers(self.listeners.values()).close)
        self._stack.callback(self._closing.set)
        self.secrets = {entry["Credential"]: f"{_USER}:{_PASSWORD}" for entry in self.entries}
        self.list_file = self._folder / "machines.json"
        self.list_file.write_bytes(self.document)

    def _rack(self, name: str, system: str, tls: ssl.SSLContext) -> None:
        bmc = SimulatedBmc(
            system, _USER, _PASSWORD, ask=self._emulator.ask, shared_faults=self.faults, closing=self._closing
        )
        listener = Server(bmc.answer, self._address, tls)
        self.bmcs[name], self.listeners[name] = bmc, listener
        self.entries.append(
            {
                "ID": name,
                "Addr": self._pool.rack(name, self._authorized_key, 0),
                "Location": "a simulated rack",
                "Bmc": listener.url,
                "Credential": f"/shepherd/bmc/{name}",
            }
        )

    def _changed(self, system: Mapping[str, Any]) -> None:
        """Switch the machine of the pool as the emulator has switched its system."""
        name, state = system["name"], system["power_state"]
        with self._lock:
            before, self._power[name] = self._power[name], state
            if state == before:
                return
            self._starts[name] = self._starts.get(name, 0) + (state == "On")
        if state == "Off":
            self._pool.power_off(name)
        elif self.bmcs[name].boots_from(system.get("boot_device")) is None:
            self._pool.power_on(name)
        else:
            self._pool.reinstall(name)
