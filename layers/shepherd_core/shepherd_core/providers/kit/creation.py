"""The creation of machines: once for each token, and capacity where the provider has no names for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core.domain.errors.provider import CapacityTaken, ProviderRefused
from shepherd_core.domain.machine import INVALID, Availability, Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from uuid import UUID


def create_once(
    find: Callable[[], Machine | None], create: Callable[[], Machine], *, refuses_second: bool = False
) -> Machine:
    """
    Return the machine with our token: the one that *find* returns, else the one that *create* makes.

    *find* returns None if there is no such machine, and raises CapacityTaken if another one is on the capacity.
    *refuses_second*: the provider itself refuses a second machine on the capacity, or with a name that exists. Then
    *find* is asked only after a refusal.

    Raises:
        CapacityTaken, ProviderRefused: nothing was created.
        ProviderUnavailable: unknown whether it was created. The next call looks first.
    """
    if not refuses_second and (existing := find()) is not None:
        return existing
    try:
        return create()
    except ProviderRefused:
        # Perhaps because an earlier call of ours succeeded.
        if (existing := find()) is None:
            raise
        return existing


def with_token(machines: Iterable[Machine], capacity: Machine, token: UUID) -> Machine | None:
    """
    Return the machine with *token*, None if there is none: for ``create_once``.

    Raises:
        CapacityTaken: another one of *machines* is on the capacity.
    """
    for machine in machines:
        if machine.token == token:
            return machine
        if machine.capacity_id == capacity.capacity_id:
            raise CapacityTaken(f"{capacity.capacity_id} is used by machine {machine.provider_id}")
    return None


def free_slots(
    fleet: str, limit: int, used: Collection[str | None], failed: Collection[str | None] = ()
) -> list[Machine]:
    """
    Return the capacity that the machines of a fleet leave of its *limit*, for a provider without names for capacity.

    Its names are FLEET/1 to FLEET/LIMIT; the machine on it stores the name. *used* has the name of each machine, None
    for one without. Capacity in *failed* is marked as failed.
    """
    names = [f"{fleet}/{number}" for number in range(1, limit + 1)]
    free = [name for name in names if name not in used]
    return [
        Machine(
            provider_id=INVALID,
            availability=Availability.KNOWN_UNUSED,
            reservation_id=name,
            failed=name in failed,
        )
        for name in free[: max(0, limit - len(used))]
    ]
