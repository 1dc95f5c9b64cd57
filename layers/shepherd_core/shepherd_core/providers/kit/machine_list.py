"""A machine list, written by an operator: JSON, read and validated as a whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shepherd_core.domain import labels
from shepherd_core.domain.errors.provider import ListingInvalid, MachineNotFound, ProviderRefused, ProviderUnusable
from shepherd_core.domain.machine import INVALID, LONGEST_TEXT, Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.providers.kit.context import readable
from shepherd_core.providers.kit.fields import address, from_json, host_key, identifier, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from uuid import UUID

    from shepherd_core.domain.clock import Deadline

    Entry = Mapping[str, Any]
    """The parsed fields of an entry, by name, without those that are left out."""


@dataclass(frozen=True, slots=True)
class ListField:
    """A field of the entries."""

    parse: Callable[[object], Any]
    """Returns the parsed value, None if it is not valid."""
    valid: str
    """A description of valid values, which ends error messages."""
    required: bool = True


class MachineList:
    """
    The list that *read* returns: a JSON list of objects with *fields*; ID and Addr of each entry are unique.

    The list does not record which entries are in use, so all are
    ``PossiblyUsed``; the BMDB knows. To create a machine is to take its entry,
    which changes nothing.

    *read* raises SourceError. Every method calls it once: pass one that caches
    the document for the length of an invocation. *disagreements* gets the
    entries, by their names in messages, and returns the contradictions between them.
    """

    def __init__(
        self,
        read: Callable[[], bytes],
        fields: Mapping[str, ListField] | None = None,
        disagreements: Callable[[Mapping[str, Entry]], Iterable[str]] = lambda _: (),
    ) -> None:
        self._read = read
        self._fields = FIELDS if fields is None else fields
        self._disagreements = disagreements

    def entries(self, deadline: Deadline) -> list[Entry]:
        """
        Return all entries, in their order.

        Raises:
            ListingInvalid: the list has errors; each is named with entry, field, value and what it must be.
            ProviderUnavailable: the list cannot be read now.
            ProviderRefused: the list cannot be read.
            TimeLimitExceeded: no time is left.
        """
        deadline.left()
        with readable("the list of machines"):
            document = self._read()
        return self.parse(document)

    def entry(self, provider_id: ProviderId, deadline: Deadline) -> Entry:
        """
        Return the entry whose ID is *provider_id*.

        Raises:
            MachineNotFound: there is none.
            ProviderRefused: the list has errors.
            ProviderUnavailable, ProviderRefused, TimeLimitExceeded: see ``entries``.
        """
        try:
            entries = self.entries(deadline)
        except ListingInvalid as error:
            raise ProviderUnusable(str(error)) from error
        for entry in entries:
            if entry["ID"] == provider_id:
                return entry
        raise MachineNotFound(f"the list of machines has no entry with the ID {provider_id!r}")

    def take(self, capacity: Machine, token: UUID, status: ProviderStatus, deadline: Deadline) -> Machine:
        """
        Return the entry of *capacity*, as used and in *status*: the ``create_machine`` of a Provider.

        Nothing is created, so a second call cannot create anything twice. The *token* is not
        stored: the BMDB ensures that two machines do not take the same entry.
        """
        deadline.check()
        try:
            entry = self.entry(capacity.provider_id, deadline)
        except MachineNotFound as error:
            raise ProviderRefused(f"{error} any more, so it cannot become machine {token}") from error
        return replace(machine(entry, status, capacity.hardware), availability=Availability.KNOWN_USED)

    @property
    def fields(self) -> Mapping[str, ListField]:
        """Return the fields of an entry by name."""
        return self._fields

    def parse(self, document: bytes, name_entry: Callable[[int], str] = "entry {}".format) -> list[Entry]:
        """
        Return the entries of a JSON list, in its order; *name_entry* returns what messages call them, by index.

        Raises:
            ListingInvalid: names every error of every entry.
        """
        try:
            found = from_json(document, _Object)
        except ValueError as error:
            raise ListingInvalid(f"the list of machines is not JSON: {error}") from error
        if not isinstance(found, list):
            raise ListingInvalid(f"the list of machines is {shown(found)}; it must be a JSON list")
        entries: dict[str, dict[str, Any]] = {}
        faults: list[str] = []
        first: dict[tuple[str, object], str] = {}
        for number, entry in enumerate(found):
            this = name_entry(number)
            if not isinstance(entry, _Object):
                *others, last = (name for name, field in self._fields.items() if field.required)
                valid = f"an object with {', '.join(others)} and {last}"
                faults.append(f"{this} is {shown(entry)}; it must be {valid}")
                continue
            entries[this], wrong = self._checked(entry)
            for name in ("ID", "Addr"):
                if name in entries[this]:
                    other = first.setdefault((name, entries[this][name]), this)
                    if other != this:
                        wrong.append(f"{name} {shown(entry[name])} is that of {other} too; it must be unique")
            faults += [f"{this}: {fault}" for fault in wrong]
        faults += self._disagreements(entries)
        if faults:
            raise ListingInvalid("the list of machines is invalid:\n" + "\n".join(f"  - {fault}" for fault in faults))
        return list(entries.values())

    def _checked(self, entry: _Object) -> tuple[dict[str, Any], list[str]]:
        """Return the parsed values of the valid fields, and the errors of the others."""
        faults = [f"{name} is written more than once; it must be written once" for name in entry.repeated]
        faults += [
            f"{name!r} is {shown(value)}; no fields but {', '.join(self._fields)} are known"
            for name, value in entry.items()
            if name not in self._fields
        ]
        values: dict[str, Any] = {}
        for name, field in self._fields.items():
            if name in entry:
                value = field.parse(entry[name])
                if value is None:
                    faults.append(f"{name} is {shown(entry[name])}; it must be {field.valid}")
                else:
                    values[name] = value
            elif field.required:
                faults.append(f"{name} is missing; it must be {field.valid}")
        return values, faults


def machine(entry: Entry, status: ProviderStatus, hardware: str | None = None) -> Machine:
    """Return *entry* as a machine."""
    return Machine(
        provider_id=ProviderId(entry["ID"]),
        availability=Availability.POSSIBLY_USED,
        address=entry["Addr"],
        location=entry.get("Location"),
        status=status,
        host_key=entry.get("HostKey"),
        hardware=hardware,
        labels=entry.get("Labels", {}),
    )


def shown(value: object) -> str:
    """Return *value* for an error message, shortened to 80 characters."""
    return f"{value!r:.80}"


class _Object(dict[str, object]):
    """A JSON object that records repeated fields, a sign of two entries run together."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.repeated = [name for name in self if names.count(name) > 1]


def _labels(value: object) -> dict[str, str] | None:
    """Return the labels in an object or, as a cell of a spreadsheet has them, in the words of a text."""
    pairs: list[tuple[str, Any]] = []
    if isinstance(value, str):
        pairs += map(labels.split, value.split())
    elif isinstance(value, _Object) and not value.repeated:
        pairs += value.items()
    else:
        return None
    right = len(dict(pairs)) == len(pairs) <= labels.MOST and all(labels.is_label(*pair) for pair in pairs)
    return dict(pairs) if right else None


FIELDS: Mapping[str, ListField] = {
    "ID": ListField(identifier, f"a text of 1 to {LONGEST_TEXT} printable characters other than {INVALID!r}"),
    "Addr": ListField(address, "the IP address of one machine, as text and without a zone"),
    "Location": ListField(text, f"a text of at most {LONGEST_TEXT} printable characters", required=False),
    "HostKey": ListField(
        host_key,
        "an SSH host key, as ssh-keyscan and .pub files have it: its kind and its text in base64",
        required=False,
    ),
    "Labels": ListField(
        _labels, f"an object, or a text of words, with at most {labels.MOST} labels: {labels.WANTED}", required=False
    ),
}
"""The fields of every machine list."""
