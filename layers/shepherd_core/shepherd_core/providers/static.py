"""The static provider: machines that somebody wrote into a list, for whoever has SSH and no API."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any

from shepherd_core.errors import (
    ListingInvalid,
    MachineNotFound,
    ProviderRefused,
    ProviderUnavailable,
    SourceError,
)
from shepherd_core.machine import INVALID, Availability, Capability, Machine, ProviderId, ProviderStatus
from shepherd_core.provider import Provider

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from shepherd_core.clock import Deadline

_LONGEST = 128


class StaticProvider(Provider):
    """
    A provider whose machines are the entries of a JSON list.

    ``[{"ID": "rack1-3", "Addr": "192.0.2.13", "Location": "Amsterdam"}, …]``:
    *ID* is the provider id, *Addr* the IP address where SSH answers, and
    *Location* may be left out. Nobody records which entries are in use, so all
    are ``PossiblyUsed``: the BMDB knows. To create a machine is to take its
    entry, which changes nothing; an entry stands for a machine that is up.

    *read* returns the list and raises SourceError. Every method calls it once:
    give it one that remembers the answer for the length of an invocation.
    """

    name = "static"
    capabilities = frozenset({Capability.CREATE})

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read

    def list_machines(self, deadline: Deadline) -> list[Machine]:
        """
        Return all entries, as the Provider does.

        Raises:
            ListingInvalid: the list has faults; each is named with entry, field, value and what was wanted.
        """
        deadline.left()
        try:
            document = self._read()
        except SourceError as error:
            kind = ProviderUnavailable if error.retryable else ProviderRefused
            raise kind(f"the list of machines: {error}") from error
        return parse(document)

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        """Return one entry, as the Provider does."""
        try:
            machines = self.list_machines(deadline)
        except ListingInvalid as error:
            raise ProviderRefused(str(error)) from error
        for machine in machines:
            if machine.provider_id == provider_id:
                return machine
        raise MachineNotFound(f"the list of machines has no entry with the ID {provider_id!r}")

    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        """
        Return the entry that *capacity* is, as used, as the Provider does.

        There is nothing to create, and so nothing that a second call could create twice. The
        *token* is not kept: that two machines do not take the same entry is the BMDB's to see to.
        """
        deadline.check()
        try:
            machine = self.get_machine(capacity.provider_id, deadline)
        except MachineNotFound as error:
            raise ProviderRefused(f"{error} any more, so it cannot become machine {token}") from error
        return replace(machine, availability=Availability.KNOWN_USED)


def parse(document: bytes) -> list[Machine]:
    """
    Return the machines of a JSON list, in its order.

    Raises:
        ListingInvalid: names every fault of every entry.
    """
    try:
        entries = json.loads(document, object_pairs_hook=_Object)
    except (ValueError, RecursionError) as error:
        raise ListingInvalid(f"the list of machines is not JSON: {error}") from error
    if not isinstance(entries, list):
        raise ListingInvalid(f"the list of machines is {_shown(entries)}; a JSON list was wanted")
    machines: list[Machine] = []
    faults: list[str] = []
    first: dict[tuple[str, object], int] = {}
    for index, entry in enumerate(entries):
        if not isinstance(entry, _Object):
            faults.append(f"entry {index} is {_shown(entry)}; an object with ID and Addr was wanted")
            continue
        values, found = _checked(entry)
        for name in ("ID", "Addr"):
            if name in values and (other := first.setdefault((name, values[name]), index)) != index:
                found.append(f"{name} {_shown(entry[name])} is that of entry {other} too; one of its own was wanted")
        faults += [f"entry {index}: {fault}" for fault in found]
        if not found:
            machines.append(
                Machine(
                    provider_id=ProviderId(values["ID"]),
                    availability=Availability.POSSIBLY_USED,
                    address=values["Addr"],
                    location=values.get("Location"),
                    status=ProviderStatus.RUNNING,
                )
            )
    if faults:
        raise ListingInvalid("the list of machines is invalid:\n" + "\n".join(f"  - {fault}" for fault in faults))
    return machines


class _Object(dict[str, object]):
    """A JSON object that knows which of its fields were written twice: the sign of two entries run together."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.repeated = [name for name in self if names.count(name) > 1]


def _checked(entry: _Object) -> tuple[dict[str, Any], list[str]]:
    """Return those fields that are right, as what they mean, and what is wrong with the others."""
    faults = [f"{name} is written more than once; once was wanted" for name in entry.repeated]
    faults += [
        f"{name!r} is {_shown(value)}; no fields but {', '.join(_FIELDS)} are known"
        for name, value in entry.items()
        if name not in _FIELDS
    ]
    values: dict[str, Any] = {}
    for name, (meaning, wanted) in _FIELDS.items():
        if name in entry:
            value = meaning(entry[name])
            if value is None:
                faults.append(f"{name} is {_shown(entry[name])}; {wanted} was wanted")
            else:
                values[name] = value
        elif name != "Location":
            faults.append(f"{name} is missing; {wanted} was wanted")
    return values, faults


def _provider_id(value: object) -> str | None:
    return None if value in ("", INVALID) else _text(value)


def _text(value: object) -> str | None:
    """Return *value* if the BMDB can hold it: PostgreSQL has no NUL, and UTF-8 no lone surrogates."""
    return value if isinstance(value, str) and len(value) <= _LONGEST and value.isprintable() else None


def _address(value: object) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if address is None or address.is_unspecified or address.is_multicast or getattr(address, "scope_id", None):
        return None
    return address


def _shown(value: object) -> str:
    return f"{value!r:.80}"


_FIELDS: dict[str, tuple[Callable[[object], Any], str]] = {
    "ID": (_provider_id, f"a text of 1 to {_LONGEST} printable characters other than {INVALID!r}"),
    "Addr": (_address, "the IP address of one machine, as text and without a zone,"),
    "Location": (_text, f"a text of at most {_LONGEST} printable characters"),
}
