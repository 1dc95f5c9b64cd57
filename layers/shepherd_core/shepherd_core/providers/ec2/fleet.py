"""The instances of one fleet, as EC2 shows them; read only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shepherd_core.domain.errors.provider import ListingInvalid, MachineNotFound, ProviderUnavailable
from shepherd_core.providers.ec2.objects import FLEET_TAG, SLOT_TAG, Instance

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shepherd_core.domain.clock import Deadline
    from shepherd_core.domain.errors.provider import ProviderError
    from shepherd_core.providers.ec2.calls import Ec2Calls

PAGE = 1_000
"""The number of instances in a page, EC2's maximum."""


class Ec2Fleet:
    """The instances with the fleet tag *name*. EC2 may show new ones late, and shows ended ones for a while."""

    def __init__(self, name: str, calls: Ec2Calls) -> None:
        self._name = name
        self._calls = calls

    def all(self, deadline: Deadline) -> list[Instance]:
        """
        Return every instance of the fleet, in any state.

        Raises:
            ListingInvalid: the pages are inconsistent, or an entry was not understood.
        """
        return list(self._entries({}, deadline, ListingInvalid))

    def on(self, slot: str, deadline: Deadline) -> list[Instance]:
        """Return the instances that were created on this capacity, in any state."""
        return list(self._entries({SLOT_TAG: slot}, deadline, ProviderUnavailable))

    def get(self, instance_id: str, deadline: Deadline) -> Instance:
        """
        Return one instance that has not ended.

        Raises:
            MachineNotFound: there is no such instance, it has ended, or it is not of this fleet.
        """
        answer = self._calls.read(
            f"describe {instance_id!r}", lambda ec2: ec2.describe_instances(InstanceIds=[instance_id]), deadline
        )
        for instance in _instances(answer, ProviderUnavailable):
            if instance.id == instance_id:
                if not self._has(instance):
                    raise MachineNotFound(
                        f"instance {instance.id} has no tag {FLEET_TAG} with the value {self._name!r}"
                    )
                if instance.is_gone:
                    raise MachineNotFound(f"instance {instance} has ended")
                return instance
        raise MachineNotFound(f"EC2 shows no instance {instance_id!r}")

    def _has(self, instance: Instance) -> bool:
        return instance.tags.get(FLEET_TAG) == self._name

    def _entries(self, tags: dict[str, str], deadline: Deadline, error_type: type[ProviderError]) -> Iterator[Instance]:
        wanted = {FLEET_TAG: self._name, **tags}
        request: dict[str, Any] = {
            "Filters": [{"Name": f"tag:{key}", "Values": [value]} for key, value in wanted.items()],
            "MaxResults": PAGE,
        }
        seen: set[str] = set()
        more = True
        while more:
            answer = self._page(request, deadline)
            for instance in _instances(answer, error_type):
                if instance.id in seen or not self._has(instance):
                    raise error_type(
                        f"EC2 listed {instance.id} twice, or without the tag {FLEET_TAG} with the value {self._name!r}"
                    )
                seen.add(instance.id)
                yield instance
            more = bool(answer.get("NextToken"))
            if more and answer["NextToken"] == request.get("NextToken"):
                raise error_type("EC2 names a page of its list as the one after itself")
            request["NextToken"] = answer.get("NextToken")

    def _page(self, request: dict[str, Any], deadline: Deadline) -> Any:
        what = f"list the instances of the fleet {self._name}"
        return self._calls.read(what, lambda ec2: ec2.describe_instances(**request), deadline)


def _instances(answer: dict[str, Any], error_type: type[ProviderError]) -> Iterator[Instance]:
    try:
        for reservation in answer.get("Reservations", ()):
            yield from map(Instance.of, reservation.get("Instances", ()))
    except ListingInvalid as error:
        raise error_type(str(error)) from error
