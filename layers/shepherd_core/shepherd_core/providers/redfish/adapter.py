"""
Redfish: your own machines, from a machine list, restarted through their BMCs.

By default each request has the credential. A session would have to be closed,
which a function that is killed cannot do, and BMCs have few sessions.
"""

from __future__ import annotations

import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from shepherd_core import telemetry
from shepherd_core.domain.errors import TimeLimitExceeded
from shepherd_core.domain.errors.provider import ProviderError, ProviderUnusable
from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.domain.provider import Capability, Provider
from shepherd_core.providers.kit.context import readable
from shepherd_core.providers.kit.machine_list import machine
from shepherd_core.providers.redfish.bmc import BmcOptions, connected
from shepherd_core.providers.redfish.login import BmcCredentials
from shepherd_core.providers.redfish.machine_list import hardware, redfish_list
from shepherd_core.providers.redfish.system import ComputerSystem, path_of_the_only, status
from shepherd_core.providers.redfish.transport import BmcAccess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from shepherd_core.domain.clock import Clock, Deadline, Permission
    from shepherd_core.domain.machine import Machine, ProviderId
    from shepherd_core.providers.kit.context import ProviderContext
    from shepherd_core.providers.kit.machine_list import Entry
    from shepherd_core.settings.providers.redfish import RedfishSettings

REQUEST_SECONDS = 30.0
"""For one request to a BMC, for all BMCs in a listing, and for a machine to power off: a busy BMC takes twenty."""
_BMCS_AT_ONCE = 16
"""The number of BMCs that a listing asks at the same time: a rack is listed in a few seconds."""
_LOGGED = 10
"""The number of machines with an unknown power state that a log line names."""


class RedfishProvider(Provider):
    """
    A provider whose machines are the entries of a JSON list, which names the BMC of each.

    ``[{"ID": "rack1-3", "Addr": "192.0.2.13", "Bmc": "https://192.0.2.113", "Credential": "/shepherd/bmc/rack1-3"},
    …]``: *ID* and *Addr* as for the static provider, *Bmc* is the URL of the BMC, *Credential* the name of the secret
    ``user:password``. *System*, the path of the ComputerSystem, is required if a BMC has several; *Fingerprint* pins
    the certificate of the BMC, which is otherwise verified against CAs.

    *read_list* and *read_ca* return documents and raise SourceError; *read_list* caches as ``MachineList`` says.
    *read_secret* and *invalidate_secret* are those of the secret store.
    """

    name = "redfish"

    def __init__(
        self,
        settings: RedfishSettings,
        read_list: Callable[[], bytes],
        clock: Clock,
        *,
        read_secret: Callable[[str], str],
        invalidate_secret: Callable[[str], None],
        read_ca: Callable[[], bytes] | None = None,
        seconds: float = REQUEST_SECONDS,
    ) -> None:
        self._list = redfish_list(read_list)
        self._boot_source = settings.reinstall
        self._graceful = settings.graceful
        self._options = BmcOptions(
            logins=BmcCredentials(read_secret, invalidate_secret, clock),
            clock=clock,
            seconds=seconds,
            sessions=settings.auth == "session",
        )
        self._read_ca = read_ca
        self._cas: ssl.SSLContext | None = None
        self._cas_lock = threading.Lock()

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Return all capabilities; reinstall only with a boot source in the settings."""
        always = {Capability.CREATE, Capability.REBOOT, Capability.POWER_CYCLE}
        return frozenset(always if self._boot_source is None else {*always, Capability.REINSTALL})

    def list_machines(self, deadline: Deadline) -> list[Machine]:
        """
        Return all entries, each with its power state.

        If a BMC does not answer in time, the state of its machine is unknown; the listing is complete all the same.
        All BMCs together have the time for one request, and at most half of the time that is left.

        Raises:
            ListingInvalid: the list has errors; each is named with entry, field, value and what it must be.
        """
        entries = self._list.entries(deadline)
        # One thread for each BMC, so that it gets one request at a time, and a wrong password only once.
        bmcs: dict[str, list[tuple[Entry, BmcAccess]]] = {}
        for entry in entries:
            bmcs.setdefault(entry["Bmc"], []).append((entry, self._bmc_access(entry)))
        failures: list[str] = []
        limit = deadline.within(min(self._options.seconds, deadline.remaining() / 2))
        with ThreadPoolExecutor(_BMCS_AT_ONCE, thread_name_prefix="redfish") as pool:
            found = list(pool.map(partial(self._known, failures=failures, limit=limit), bmcs.values()))
        if failures:
            telemetry.warning("power states are unknown", machines=len(failures), reasons=sorted(failures)[:_LOGGED])
        known = {provider_id: status for statuses in found for provider_id, status in statuses.items()}
        return [machine(entry, known[entry["ID"]], hardware(entry)) for entry in entries]

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        """Return one entry with its power state; here it is an error if the BMC does not answer."""
        entry = self._list.entry(provider_id, deadline)
        return machine(entry, self._status(entry, self._bmc_access(entry), deadline), hardware(entry))

    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        """Return the entry of *capacity*, as used; see ``MachineList.take``."""
        return self._list.take(capacity, token, capacity.status, deadline)

    def reboot(self, provider_id: ProviderId, permission: Permission) -> None:
        """
        Restart the machine, which then boots from its disk; switch it on if it is off.

        Raises:
            MachineNotFound: the list has no such machine.
            NotSupported: its BMC cannot do it; nothing was done.
        """
        with self._system(provider_id, permission) as system:
            system.reboot(graceful=self._graceful)

    def power_cycle(self, provider_id: ProviderId, permission: Permission) -> None:
        """
        Switch the machine off and on; switch it on if it is off.

        If the process is killed in between, the machine is off; the next call, or the next ``reboot``, switches it on.

        Raises:
            MachineNotFound: the list has no such machine.
            NotSupported: its BMC cannot do it; nothing was done.
        """
        with self._system(provider_id, permission) as system:
            system.power_cycle()

    def reinstall(self, provider_id: ProviderId, permission: Permission) -> None:
        """
        Boot the machine once from the boot source of the settings, which must install a system.

        Raises:
            MachineNotFound: the list has no such machine.
            NotSupported: the settings name no boot source, or the BMC cannot use this one; nothing was done.
        """
        if self._boot_source is None:
            super().reinstall(provider_id, permission)
        with self._system(provider_id, permission) as system:
            system.reinstall()

    @contextmanager
    def _system(self, provider_id: ProviderId, permission: Permission) -> Iterator[ComputerSystem]:
        entry = self._list.entry(provider_id, permission.deadline)
        with connected(self._options, self._bmc_access(entry), permission.deadline) as bmc:
            path = entry.get("System") or path_of_the_only(bmc)
            yield ComputerSystem(bmc, path, self._options, self._boot_source, permission)

    def _status(self, entry: Entry, bmc_access: BmcAccess, deadline: Deadline) -> ProviderStatus:
        with connected(self._options, bmc_access, deadline) as bmc:
            return status(bmc, entry.get("System") or path_of_the_only(bmc))

    def _known(
        self, systems: list[tuple[Entry, BmcAccess]], failures: list[str], limit: Deadline
    ) -> dict[str, ProviderStatus]:
        """Return the states of the systems of one BMC; the reasons of unknown states are added to *failures*."""
        known = {}
        for entry, bmc_access in systems:
            try:
                known[entry["ID"]] = self._status(entry, bmc_access, limit)
            except (ProviderError, TimeLimitExceeded) as error:
                known[entry["ID"]] = ProviderStatus.UNKNOWN
                failures.append(f"{entry['ID']}: {error}")
        return known

    def _bmc_access(self, entry: Entry) -> BmcAccess:
        trust = entry.get("Fingerprint") or self._trusted()
        return BmcAccess(url=entry["Bmc"], secret=entry["Credential"], trust=trust)

    def _trusted(self) -> ssl.SSLContext:
        """Return the CAs of the settings, or the system's."""
        with self._cas_lock:
            if self._cas is None:
                try:
                    # An empty document becomes an invalid text: for an empty text, ssl would use the CAs of the system.
                    with readable("the CAs of the BMCs"):
                        pem = None if self._read_ca is None else self._read_ca().decode("ascii") or "nothing"
                    context = ssl.create_default_context(cadata=pem)
                    # The default of Python 3.13 refuses CAs without certain extensions, which private CAs often lack.
                    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
                    self._cas = context
                except (ValueError, ssl.SSLError) as error:
                    raise ProviderUnusable(f"the CAs of the BMCs are not PEM certificates: {error}") from error
            return self._cas


def build(settings: RedfishSettings, context: ProviderContext) -> RedfishProvider:
    """Return the provider of these settings."""
    source = settings.ca_source
    return RedfishProvider(
        settings,
        context.cached(settings.machines),
        context.clock,
        read_secret=context.read_secret,
        invalidate_secret=context.invalidate_secret,
        read_ca=None if source is None else partial(context.read, source),
    )
