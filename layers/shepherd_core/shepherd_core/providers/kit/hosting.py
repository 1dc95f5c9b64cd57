"""Providers that rent servers up to a limit: all that their adapters share. The module of each has its API's words."""

from __future__ import annotations

import re
from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from shepherd_core.domain import labels
from shepherd_core.domain.errors.provider import ListingInvalid, MachineNotFound, ProviderUnavailable
from shepherd_core.domain.machine import Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.domain.provider import Capability, Provider
from shepherd_core.providers.kit import fields
from shepherd_core.providers.kit.api_object import ApiObject, Id, Text, parse
from shepherd_core.providers.kit.auth import Bearer
from shepherd_core.providers.kit.context import readable
from shepherd_core.providers.kit.creation import create_once, free_slots, with_token
from shepherd_core.providers.kit.dialect import COMMON, at
from shepherd_core.providers.kit.http import HttpApi, segment
from shepherd_core.providers.kit.paging import listed
from shepherd_core.providers.kit.registered_key import RegisteredKey, StoredKey
from shepherd_core.settings.base import LONGEST_SLOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from ipaddress import IPv4Address, IPv6Address
    from uuid import UUID

    from shepherd_core.domain.clock import Deadline, Permission
    from shepherd_core.domain.errors.provider import ProviderError
    from shepherd_core.providers.kit.auth import Authentication
    from shepherd_core.providers.kit.context import ProviderContext
    from shepherd_core.providers.kit.dialect import Dialect
    from shepherd_core.providers.kit.paging import Paging

    Action = tuple[str, object]
    """The path of a POST below that of the server, and its body."""

_MARK = re.compile(rf"(.+)-([1-9][0-9]{{0,{LONGEST_SLOT - 1}}})-([0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}})")


def mark_of(capacity_id: str | None, token: UUID) -> str:
    """Return what the server with this token on a capacity, FLEET/SLOT, is marked with: a host name, too."""
    return f"{str(capacity_id).replace('/', '-')}-{token}"


def read_mark(fleet: str, text: str) -> tuple[str, UUID] | None:
    """Return the capacity and the token in a mark of *fleet*; None: it is another text."""
    found = _MARK.fullmatch(text)
    token = fields.token(found[3]) if found and found[1] == fleet else None
    return (f"{fleet}/{found[2]}", token) if found and token else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts of a server in an answer, besides id and status."""

    marks: Iterable[str | None]
    """Texts, one of which is its mark if it is ours."""
    addresses: Iterable[IPv4Address | IPv6Address | None]
    location: str | None
    project: str | None = None
    """The id of its project, where a project is chosen and the answer tells it."""
    stages: tuple[str, ...] = ()
    """Words that say more than its status, where the provider's table of statuses has them."""
    tags: Iterable[tuple[str, object]] = ()
    """Keys and values that it has there."""


class HostedServer(ApiObject):
    """One server in an answer."""

    id: Id
    status: str

    @abstractmethod
    def facts(self) -> Facts:
        """Return its facts."""


class HostedKey(ApiObject):
    """One SSH key in an answer."""

    id: Id
    name: Text | None = None
    public_key: str
    created_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStore:
    """Where our SSH key is listed and added."""

    path: str
    key: type[HostedKey]
    paging: Paging
    query: Mapping[str, str | int] = field(default_factory=dict)


class HostingProvider(Provider):
    """The servers that a fleet's marks are on, and as many more as the limit allows."""

    capabilities = frozenset({Capability.CREATE, Capability.REBOOT, Capability.REINSTALL, Capability.RELEASE})

    statuses: ClassVar[Mapping[str, ProviderStatus]]
    """The meaning of each status; missing: it was given back."""
    server: ClassVar[type[HostedServer]]
    place: ClassVar[str] = ""
    """Where an answer holds one server, as ``at`` finds it."""
    paging: ClassVar[Paging]
    dialect: ClassVar[Dialect] = COMMON
    restart: ClassVar[Action]
    start: ClassVar[Action]
    """Switches a server on that is off, if the API tells that one is."""
    _settings: Any

    def __init__(
        self,
        settings: Any,
        context: ProviderContext,
        fleet: str,
        *,
        servers: str = "/servers",
        orders: str = "",
        query: Mapping[str, str | int] | None = None,
        keys: KeyStore | None = None,
    ) -> None:
        """
        *servers* is the path of servers, *orders* that where they are listed and ordered, if it is another one.

        *query* lists ours. Without *keys*, requests hold the key itself.
        """
        self._settings, self._fleet = settings, fleet
        self._servers, self._orders, self._query = servers, orders or servers, query
        login = self._login(context.secret(settings.credential_parameter), context)
        self._api = HttpApi(settings.api_url, login, context.clock, dialect=self.dialect)
        self._line, self._stored = context.public_key, None
        if keys is not None:
            listing, add = partial(self._listed, keys), partial(self._add, keys)
            self._stored = RegisteredKey(settings.key_name, context.public_key, listing, add)

    # A provider says in its own words:

    @abstractmethod
    def _order(self, mark: str, key: str) -> dict[str, Any]:
        """Return the body of a creation: the server is marked and admits *key*, an id in the store or a line."""

    @abstractmethod
    def _reinstallation(self, mark: str, key: str) -> Action:
        """Return the action that reinstalls a server, with mark and key."""

    def _login(self, read: Callable[[], str], context: ProviderContext) -> Authentication:  # noqa: ARG002 - for others
        return Bearer(read)

    def _mark(self, capacity_id: str | None, token: UUID) -> str:
        return mark_of(capacity_id, token)

    def _claim(self, text: str) -> tuple[str, UUID] | None:
        return read_mark(self._fleet, text)

    def _check_offer(self, deadline: Deadline) -> None:
        """Raise ProviderRefused if nothing may be ordered."""

    def _give_back(self, path: str, deadline: Deadline) -> None:
        self._api.delete(path, deadline, missing=MachineNotFound)

    def _new_key(self, name: str, line: str) -> dict[str, Any]:
        return {"name": name, "public_key": line}

    # All else is the same everywhere:

    def list_machines(self, deadline: Deadline) -> list[Machine]:
        """Return our servers and the free slots."""
        machines = self._machines(deadline)
        used = [each.reservation_id for each in machines]
        return [*machines, *free_slots(self._fleet, self._settings.limit, used)]

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        """Return one of our servers."""
        answer = self._api.get(self._path(provider_id), deadline, missing=MachineNotFound)
        machine = self._machine(at(answer, self.place), f"server {provider_id}")
        if machine is None or machine.provider_id != provider_id:
            raise MachineNotFound(f"server {provider_id} is not one of the fleet {self._fleet}")
        return machine

    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        """Order a server, whose mark holds *token* and the slot of *capacity*."""

        def create() -> Machine:
            self._check_offer(deadline)
            order = self._order(self._mark(capacity.capacity_id, token), self._key(deadline))
            with self._watched():
                answer = self._api.post(self._orders, order, deadline)
            machine = self._machine(at(answer, self.place), "the new server")
            if machine is None or machine.token != token:  # not a refusal, which would forget a server that is paid for
                raise ProviderUnavailable("the server that was made is not the one that was asked for")
            return replace(machine, location=machine.location or self._settings.location)

        return create_once(lambda: with_token(self._machines(deadline), capacity, token), create)

    def reboot(self, provider_id: ProviderId, permission: Permission) -> None:
        """Restart the server; switch it on if it is off."""
        off = self.get_machine(provider_id, permission.deadline).status is ProviderStatus.STOPPED
        self._act(provider_id, self.start if off else self.restart, permission)

    def reinstall(self, provider_id: ProviderId, permission: Permission) -> None:
        """Reinstall the server, under its mark."""
        machine = self.get_machine(provider_id, permission.deadline)
        assert machine.token is not None  # it is ours
        mark, key = self._mark(machine.capacity_id, machine.token), self._key(permission.deadline)
        with self._watched():
            self._act(provider_id, self._reinstallation(mark, key), permission)

    def release(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """Give the server back."""
        with suppress(MachineNotFound):  # it was given back before
            self.get_machine(provider_id, deadline)
            self._give_back(self._path(provider_id), deadline)

    def _path(self, provider_id: ProviderId) -> str:
        return f"{self._servers}/{segment(provider_id)}"

    def _act(self, provider_id: ProviderId, action: Action, permission: Permission) -> None:
        path, body = action
        self._api.interrupt("POST", f"{self._path(provider_id)}/{path}", body, permission, MachineNotFound)

    def _machines(self, deadline: Deadline) -> list[Machine]:
        entries = listed(self._api, self._orders, deadline, self.paging, self._query)
        found = (self._machine(each, f"server {at(each, self.paging.id)!r:.80}", ListingInvalid) for each in entries)
        return [machine for machine in found if machine is not None]

    def _machine(self, raw: object, name: str, error: type[ProviderError] = ProviderUnavailable) -> Machine | None:
        """Return a server in an answer as a machine; None: it is not ours, or not any more."""
        server = parse(self.server, raw, name, error)
        facts = server.facts()
        claim = next(filter(None, map(self._claim, filter(None, facts.marks))), None)
        word = next((each for each in facts.stages if each in self.statuses), server.status)
        status = self.statuses.get(word, ProviderStatus.UNKNOWN)
        elsewhere = facts.project is not None and facts.project != self._settings.project
        if claim is None or elsewhere or status is ProviderStatus.MISSING:
            return None
        failed = status is ProviderStatus.PROVISIONING_FAILED_PERMANENT
        addresses = sorted((each for each in facts.addresses if each), key=lambda each: each.version)  # IPv4 first
        return Machine(
            provider_id=ProviderId(server.id),
            availability=Availability.KNOWN_USED,
            address=addresses[0] if addresses else None,
            location=facts.location,
            reservation_id=claim[0],
            status=status,
            failed=failed,
            failure=word if failed else None,
            token=claim[1],
            labels=labels.of_tags(tag for tag in facts.tags if not self._claim(tag[0])),
        )

    def _key(self, deadline: Deadline) -> str:
        with readable("our public SSH key"):
            return self._stored.ensure(deadline) if self._stored else self._line()

    def _watched(self) -> AbstractContextManager[None]:
        return self._stored.watched() if self._stored else nullcontext()

    def _listed(self, store: KeyStore, deadline: Deadline) -> list[StoredKey]:
        entries = listed(self._api, store.path, deadline, store.paging, store.query)
        found = (parse(store.key, each, "an SSH key") for each in entries)
        return [StoredKey(key.id, key.name, key.public_key, key.created_at or "") for key in found]

    def _add(self, store: KeyStore, name: str, line: str, deadline: Deadline) -> None:
        self._api.post(store.path, self._new_key(name, line), deadline)
