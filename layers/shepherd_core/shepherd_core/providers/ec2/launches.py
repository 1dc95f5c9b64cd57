"""
The launch of instances: once for each token, in the first subnet that has room.

The host key is generated here; its private half is passed in the user data and
not kept, its public half is a tag. A principal that may change tags in the
account could therefore change the key, but only until it is recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shepherd_core.domain.errors.provider import CapacityTaken, ListingInvalid, ProviderRefused, ProviderUnavailable
from shepherd_core.providers.ec2 import objects
from shepherd_core.providers.ec2.calls import in_time
from shepherd_core.providers.ec2.objects import Instance
from shepherd_core.providers.kit.context import readable

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from shepherd_core.domain.clock import Deadline
    from shepherd_core.domain.machine import Machine
    from shepherd_core.providers.ec2.calls import Ec2Calls
    from shepherd_core.providers.ec2.fleet import Ec2Fleet
    from shepherd_core.settings.providers.ec2 import Ec2Settings

NO_CAPACITY_RETRY_SECONDS = 60.0
"""How long to wait before the next request for capacity that EC2 lacks."""

_MISMATCH = "IdempotentParameterMismatch"
_UNSUPPORTED = "Unsupported"  # no instances of this type in this zone
_NO_ROOM = {
    "InsufficientFreeAddressesInSubnet",
    "InsufficientHostCapacity",
    "InsufficientInstanceCapacity",
    _UNSUPPORTED,
}


class Launches:
    """The launches of one fleet, with our SSH key that *ssh_public_key* returns."""

    def __init__(
        self, settings: Ec2Settings, ssh_public_key: Callable[[], str], calls: Ec2Calls, fleet: Ec2Fleet
    ) -> None:
        self._settings = settings
        self._ssh_public_key = ssh_public_key
        self._calls = calls
        self._fleet = fleet

    def launch(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        """
        Launch an instance on *capacity*, or return the one that has the token already, with its host key.

        The subnets are tried in order, each with its own client token: with the same client token, EC2 would launch
        nothing in a second subnet of a zone. The next subnet is tried only after a refusal for lack of room. A
        repeated call therefore requests the same instance again, even if EC2 does not show it yet, unless a subnet
        without room before has room now.

        Raises:
            CapacityTaken: another instance is on the capacity, or the one with this token has ended.
            ProviderRefused: nothing was created.
            ProviderUnavailable: unknown whether it was created, or no subnet has room. Call again with the same
                token, or find the token in a later listing.
        """
        slot = capacity.reservation_id
        if slot is None:
            raise ProviderRefused("capacity without a name cannot be used")
        if (existing := self._existing(slot, token, deadline)) is not None:
            return existing
        wanted = self._wanted(slot, token, deadline)
        full: dict[str, str] = {}
        for number, subnet in enumerate(self._settings.subnets.split(",")):
            launched = self._launch(wanted, subnet, f"{token}-{number}", deadline)
            if isinstance(launched, str) and launched in _NO_ROOM:
                full[subnet] = launched
                continue
            # Each call generates another host key. EC2 answers a repeated call with a mismatch, or with the instance
            # of the earlier call, whose key is known from its tags alone.
            if (
                isinstance(launched, Instance)
                and launched.token == token
                and launched.host_key
                and not launched.is_gone
            ):
                return self._machine(launched)
            if (existing := self._existing(slot, token, deadline)) is not None:
                return existing
            raise ProviderUnavailable(f"an instance for {token} was launched in {subnet}, and EC2 does not show it yet")
        said = ", ".join(f"{subnet} ({code})" for subnet, code in full.items())
        if set(full.values()) == {_UNSUPPORTED}:
            raise ProviderRefused(f"the zones of the subnets have no instances of this type: {said}")
        raise ProviderUnavailable(f"there is no room in the subnets {said}", NO_CAPACITY_RETRY_SECONDS)

    def _machine(self, instance: Instance) -> Machine:
        return objects.machine(instance, self._settings.address)

    def _existing(self, slot: str, token: UUID, deadline: Deadline) -> Machine | None:
        """
        Return the machine that was created with *token*, None if EC2 does not show it.

        Raises:
            CapacityTaken: it has ended, or another instance is on the capacity.
        """
        on_slot = self._fleet.on(slot, deadline)
        for instance in on_slot:
            if instance.token == token and not instance.is_gone:
                return self._machine(instance)
        for instance in on_slot:
            if instance.token == token or instance.state != objects.TERMINATED:
                raise CapacityTaken(f"{slot} is or was used by instance {instance}")
        return None

    def _wanted(self, slot: str, token: UUID, deadline: Deadline) -> dict[str, Any]:
        """Return the parameters of the launch, with a new host key."""
        from shepherd_core.adapters import ssh_keys  # noqa: PLC0415 - only to create machines

        with readable("our SSH key"):
            authorized_key = in_time("read our SSH key", self._ssh_public_key, deadline)
        private_key = ssh_keys.generate()
        host_key = ssh_keys.public_line(private_key)
        user_data = objects.user_data(private_key, host_key, authorized_key)
        return objects.launch(self._settings, slot, token, host_key, user_data)

    def _launch(self, wanted: dict[str, Any], subnet: str, client_token: str, deadline: Deadline) -> Instance | str:
        """Return the instance that was launched in *subnet*, or the code of an expected refusal."""
        answer = self._calls.change(
            f"launch an instance in {subnet}",
            lambda ec2: ec2.run_instances(SubnetId=subnet, ClientToken=client_token, **wanted),
            deadline,
            expected={_MISMATCH, *_NO_ROOM},
        )
        if isinstance(answer, str):
            return answer
        try:
            return Instance.of(answer["Instances"][0])
        except (KeyError, IndexError, ListingInvalid) as error:
            raise ProviderUnavailable(f"the answer to a launch in {subnet} shows no instance") from error
