from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address
from typing import Any
from uuid import UUID

from shepherd_core.bmdb.connection import Connection
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.machine import Availability, Machine, ProviderId, ProviderStatus

from tests.support.bmdb.fleet import Fleet
from tests.support.providers.fake_provider import FakeProvider

UP = ["r", "192.0.2.1", "ams", "Running"]
"""The facts on record of a machine that is running and was compared: reservation, address, location, status."""

_FACTS = "provider_reservation_id, provider_ip_address, provider_location, provider_status"


class Listed(FakeProvider):
    """A provider with only a listing, which the test changes, and a count of how often it was asked for it."""

    def __init__(self) -> None:
        self.machines: dict[str, Machine] = {}
        self.asked = 0
        self.meanwhile: Callable[[], object] = lambda: None
        """Is called once, when the listing that will be returned is made."""

    def list_machines(self, deadline: Deadline) -> list[Machine]:
        self.asked += 1
        found = list(self.machines.values())
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return found

    def put(self, provider_id: str, **facts: Any) -> None:
        self.machines[provider_id] = replace(
            Machine(
                provider_id=ProviderId(provider_id),
                availability=Availability.KNOWN_USED,
                address=ip_address(UP[1]),
                reservation_id=UP[0],
                location=UP[2],
                status=ProviderStatus.RUNNING,
            ),
            **facts,
        )


class Watched(Connection):
    """A connection that records the statements that were run, and lets a test interrupt before or after one."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet.settings, None, fleet._clock)
        fleet._connections.append(self)
        self.ran: list[str] = []
        self.before: Callable[[str], object] = lambda name: None
        self.after: Callable[[str], object] = lambda name: None

    def run(self, name: str, /, **parameters: Any) -> list[list[Any]]:
        self.ran.append(name)
        self.before(name)
        rows = super().run(name, **parameters)
        self.after(name)
        return rows


def plant(fleet: Fleet, listed: Listed, count: int) -> list[UUID]:
    """Let the provider list so many machines that are an hour old."""
    machines = fleet.machines(count)
    fleet.sql("UPDATE machines SET machine_created_at = now() - interval '1 hour'")
    for machine_id in machines:
        listed.put(name_of(fleet, machine_id))
    return machines


def name_of(fleet: Fleet, machine_id: UUID) -> str:
    return str(fleet.sql("SELECT provider_id FROM machine_provided WHERE machine_id = :id", id=machine_id)[0][0])


def facts(fleet: Fleet, machine_id: UUID) -> list[str | None]:
    return fleet.sql(f"SELECT {_FACTS} FROM machine_provided WHERE machine_id = :id", id=machine_id)[0]


def record(fleet: Fleet, machine_id: UUID, **facts: str | None) -> None:
    found = {**dict(zip(("reservation_id", "ip_address", "location", "status"), UP, strict=True)), **facts}
    fleet.update("machine_provided", machine_id, **{f"provider_{name}": value for name, value in found.items()})
