"""The scenario of an operator who dies while machines are adopted, forgotten and released, and types it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core.bmdb.listings import provisioning
from shepherd_core.bmdb.listings.decommissioning import RemovalRequest
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.machine import ProviderId
from shepherd_core.operator.adopt_forget import Adopt, Forget
from shepherd_core.operator.release import Release
from shepherd_core.operator.two_phase import TwoPhase
from shepherd_core.providers.equinix.objects import token_tag
from shepherd_core.rules.drift import FRESH_SECONDS, DriftKind

from tests.chaos.stage.environment import SESSION_SECONDS, World
from tests.support.bmdb.capacity import PREFIX, provided
from tests.support.bmdb.returnable import Deleting

if TYPE_CHECKING:
    from uuid import UUID

    from tests.chaos.crash_points import Points
    from tests.support.bmdb.fleet import Fleet

SECONDS = 600
ORDER = RemovalRequest("an operator", "chaos", FRESH_SECONDS)


class Departures:
    """A machine to be released, one that vanished, and one at the provider whose creation was begun."""

    name = "operator"

    def __init__(self, fleet: Fleet) -> None:
        """Play in *fleet*."""
        self._fleet = fleet
        self._released: UUID
        self._forgotten: UUID
        self._adopted = ProviderId("")

    def arrange(self) -> World:
        """See ``Scenario``."""
        fleet = self._fleet
        world = World(fleet, SystemClock())
        self._released, self._forgotten = (fleet.provided_machine() for _ in range(2))
        world.to_release[world.machine_at_provider(self._released)] = self._released
        world.api.forget(world.machine_at_provider(self._forgotten))
        fleet.sql("UPDATE machines SET machine_created_at = now() - interval '1 day'")
        begun = fleet.bare_machine()
        fleet.sql("INSERT INTO machine_creation_intent (machine_id, provider) VALUES (:id, 'equinix')", id=begun)
        made = world.api.add_active_device(f"{PREFIX}{begun}", [token_tag(begun)], racked=False).id
        self._adopted = ProviderId(made)
        return world

    def tick(self, world: World, points: Points) -> object:
        """See ``Scenario``."""
        clock = points.clock
        connection = world.connect()
        resolution = TwoPhase(Deleting(world.api, clock), connection, clock, 0, SESSION_SECONDS, 0)
        remedies = (
            Adopt((self._adopted,), DriftKind.ADOPTABLE, 0),
            Forget((self._forgotten,), ORDER),
            Release((self._released,), ORDER),
        )
        return [
            resolution.carry_out(
                remedy, resolution.compare(Deadline(clock, SECONDS)), Deadline(clock, SECONDS), "chaos"
            )
            for remedy in remedies
        ]

    def missing(self, world: World) -> list[str]:
        """See ``Scenario``."""
        left = {
            departed.machine_id: departed.released
            for departed in provisioning.ledger(world.fleet.connection, "equinix").tombstones
        }
        found = [] if left.get(self._forgotten) is False else [f"{self._forgotten} is not forgotten"]
        found += [] if left.get(self._released) is True else [f"{self._released} is not released"]
        found += [] if list(provided(self._fleet)) == [self._adopted] else [f"{self._adopted} is not adopted"]
        found += [] if [each.id for each in world.api.devices()] == [self._adopted] else ["the devices are not right"]
        return found
