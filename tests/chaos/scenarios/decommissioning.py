"""Scenario: an operator adopts, forgets and releases machines, is killed, and repeats the commands."""

from uuid import UUID

from shepherd_core.bmdb.listings import provisioning
from shepherd_core.bmdb.listings.decommissioning import RemovalRequest
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.machine import ProviderId
from shepherd_core.operator.adopt_forget import Adopt, Forget
from shepherd_core.operator.drift_repair import DriftRepair
from shepherd_core.operator.release import Release
from shepherd_core.providers.equinix.objects import token_tag
from shepherd_core.rules.drift import FRESH_SECONDS, DriftKind

from tests.chaos.crash_points import Points
from tests.chaos.stage.environment import SESSION_SECONDS, Environment
from tests.chaos.stage.project import PREFIX, Deleting
from tests.support.bmdb.capacity import provided
from tests.support.bmdb.fleet import Fleet

SECONDS = 600
ORDER = RemovalRequest("an operator", "chaos", FRESH_SECONDS)


class Decommissioning:
    """A machine to release, a vanished one to forget, and one with an intent to adopt."""

    name = "operator"

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._released: UUID
        self._forgotten: UUID
        self._adopted = ProviderId("")

    def arrange(self) -> Environment:
        fleet = self._fleet
        environment = Environment(fleet, SystemClock())
        self._released, self._forgotten = (fleet.provided_machine() for _ in range(2))
        environment.to_release[environment.machine_at_provider(self._released)] = self._released
        environment.api.forget(environment.machine_at_provider(self._forgotten))
        fleet.sql("UPDATE machines SET machine_created_at = now() - interval '1 day'")
        begun = fleet.bare_machine()
        fleet.sql("INSERT INTO machine_creation_intent (machine_id, provider) VALUES (:id, 'equinix')", id=begun)
        made = environment.api.add_active_device(f"{PREFIX}{begun}", [token_tag(begun)], racked=False).id
        self._adopted = ProviderId(made)
        return environment

    def tick(self, environment: Environment, points: Points) -> object:
        clock = points.clock
        connection = environment.connect()
        repair = DriftRepair(Deleting(environment.api, clock), connection, clock, 0, SESSION_SECONDS)
        actions = (
            Adopt((self._adopted,), DriftKind.ADOPTABLE, 0, ORDER.owner),
            Forget((self._forgotten,), ORDER),
            Release((self._released,), ORDER),
        )
        return [
            repair.carry_out(
                action, action.evaluate(repair.compare(Deadline(clock, SECONDS))), Deadline(clock, SECONDS), "chaos"
            )
            for action in actions
        ]

    def missing(self, environment: Environment) -> list[str]:
        left = {
            tombstone.machine_id: tombstone.released
            for tombstone in provisioning.ledger(environment.fleet.connection, "equinix").tombstones
        }
        found = [] if left.get(self._forgotten) is False else [f"{self._forgotten} is not forgotten"]
        found += [] if left.get(self._released) is True else [f"{self._released} is not released"]
        found += [] if list(provided(self._fleet)) == [self._adopted] else [f"{self._adopted} is not adopted"]
        found += (
            [] if [each.id for each in environment.api.snapshot()] == [self._adopted] else ["the devices are not right"]
        )
        return found
