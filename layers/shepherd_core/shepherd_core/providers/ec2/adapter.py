"""
Amazon EC2: capacity is what the limit leaves, and a machine is an instance with the tag of the fleet.

Meant for bare metal (``*.metal``); other types work as well. Needs no secret:
the role of the functions may act on the instances of the fleet.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shepherd_core.domain.errors.provider import (
    CapacityTaken,
    ListingInvalid,
    MachineNotFound,
    NotSupported,
    ProviderRefused,
    ProviderUnavailable,
)
from shepherd_core.domain.provider import Capability, Provider
from shepherd_core.providers.ec2 import objects
from shepherd_core.providers.ec2.calls import Ec2Calls, in_time
from shepherd_core.providers.ec2.fleet import Ec2Fleet
from shepherd_core.providers.ec2.objects import Instance
from shepherd_core.providers.kit.context import readable

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from shepherd_core.domain.clock import Clock, Deadline
    from shepherd_core.domain.machine import Machine, ProviderId
    from shepherd_core.providers.kit.context import ProviderContext
    from shepherd_core.settings.providers.ec2 import Ec2Settings

POLL_SECONDS = 5.0
"""The pause between two reads of the state of an instance that is stopping."""
STOPPING_SECONDS = 60.0
"""How long to wait for an instance to stop; bare metal takes longer and is started by the next call."""
STARTING_SECONDS = 15.0
"""The time reserved for the start."""
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


class Ec2Provider(Provider):
    """
    The instances with our fleet tag, and as many more as the limit allows.

    Other instances are never touched. The token of a machine, the name of its
    capacity and its public SSH host key are tags of the instance. The host key
    is generated here; its private half is passed in the user data and not kept.
    A principal that may change tags in the account could therefore change the
    key, but only until it is recorded. *ssh_public_key* returns our own key, as
    in ``authorized_keys``.
    """

    name = "ec2"
    boot_seconds = 60.0

    def __init__(self, settings: Ec2Settings, ssh_public_key: Callable[[], str], clock: Clock) -> None:
        self._settings = settings
        self._ssh_public_key = ssh_public_key
        self._clock = clock
        self._calls = Ec2Calls()
        self._fleet = Ec2Fleet(settings.ec2_fleet, self._calls)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Return what EC2 can do; it does not reinstall bare metal, because it does not replace its root volumes."""
        always = {Capability.CREATE, Capability.REBOOT, Capability.POWER_CYCLE, Capability.RELEASE}
        replaceable = objects.has_replaceable_root(self._settings.ec2_instance_type)
        return frozenset({*always, Capability.REINSTALL} if replaceable else always)

    def list_machines(self, deadline: Deadline) -> list[Machine]:
        """
        Return our instances, including those that EC2 still shows after their end, and the free capacity.

        Raises:
            ListingInvalid: the pages are inconsistent, or an entry was not understood.
        """
        return objects.machines(self._settings, self._fleet.all(deadline))

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        """
        Return the instance as a machine.

        Raises:
            MachineNotFound: the instance is gone, or not ours.
        """
        return self._machine(self._fleet.get(provider_id, deadline))

    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        """
        Launch an instance, or return the one that has the token already, with its host key.

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
        for number, subnet in enumerate(self._settings.ec2_subnets.split(",")):
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

    def reboot(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """
        Restart the instance; start it if it is stopped. Does not wait for the boot.

        Raises:
            MachineNotFound: the instance is gone, or not ours.
            ProviderUnavailable: for example, it is stopping; call again.
        """
        instance = self._fleet.get(provider_id, deadline)
        if not self._started(instance, deadline):
            self._calls.change(
                f"reboot {instance.id}", lambda ec2: ec2.reboot_instances(InstanceIds=[instance.id]), deadline
            )

    def power_cycle(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """
        Stop the instance and start it again, possibly on other hardware; instance store volumes are lost.

        If the process is killed in between, the machine is stopped; the next reboot or power cycle starts it.

        Raises:
            MachineNotFound: the instance is gone, or not ours.
            ProviderUnavailable: for example, it is still stopping; call again, to start it when it has stopped.
        """
        instance = self._fleet.get(provider_id, deadline)
        if self._started(instance, deadline):
            return
        self._calls.change(
            f"stop {instance.id}", lambda ec2: ec2.stop_instances(InstanceIds=[instance.id], Force=True), deadline
        )
        waiting = deadline.within(STOPPING_SECONDS)
        while instance.state != objects.STOPPED:
            if waiting.remaining() < POLL_SECONDS or deadline.remaining() < POLL_SECONDS + STARTING_SECONDS:
                raise ProviderUnavailable(f"instance {instance.id} is still stopping; the next call starts it")
            self._clock.sleep(POLL_SECONDS)
            instance = self._fleet.get(provider_id, deadline)
        self._start(instance, deadline)

    def reinstall(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """
        Request a new root volume from the image of the settings, or else of the launch. Other volumes stay.

        The new volume has never been booted, so cloud-init reads the user data again: the host key stays the same.

        Raises:
            MachineNotFound: the instance is gone, or not ours.
            NotSupported: it is bare metal, whose root volume EC2 does not replace; nothing was done.
            ProviderUnavailable: for example, it does not run; it is started if possible. Call again.
        """
        instance = self._fleet.get(provider_id, deadline)
        if not objects.has_replaceable_root(instance.type):
            raise NotSupported(f"EC2 does not replace root volumes of bare metal: {instance.id} is a {instance.type}")
        if self._started(instance, deadline):
            raise ProviderUnavailable(f"instance {instance.id} was stopped and is starting; reinstall it when it runs")
        image = {} if self._settings.ec2_image is None else {"ImageId": self._settings.ec2_image}
        self._calls.change(
            f"replace the root volume of {instance.id}",
            lambda ec2: ec2.create_replace_root_volume_task(
                InstanceId=instance.id, DeleteReplacedRootVolume=True, **image
            ),
            deadline,
        )

    def release(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """Terminate the instance; do nothing if it is gone or not ours."""
        with suppress(MachineNotFound):
            instance = self._fleet.get(provider_id, deadline)
            self._calls.change(
                f"terminate {instance.id}", lambda ec2: ec2.terminate_instances(InstanceIds=[instance.id]), deadline
            )

    def _machine(self, instance: Instance) -> Machine:
        return objects.machine(instance, self._settings.ec2_address)

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

    def _started(self, instance: Instance, deadline: Deadline) -> bool:
        """
        Start *instance* if it is stopped; return whether it was stopped.

        Raises:
            ProviderUnavailable: it is stopping, and can be neither started nor stopped now.
        """
        if instance.state == objects.STOPPING:
            raise ProviderUnavailable(f"instance {instance.id} is still stopping; try again when it has stopped")
        if instance.state == objects.STOPPED:
            self._start(instance, deadline)
        return instance.state == objects.STOPPED

    def _start(self, instance: Instance, deadline: Deadline) -> None:
        self._calls.change(f"start {instance.id}", lambda ec2: ec2.start_instances(InstanceIds=[instance.id]), deadline)


def build(settings: Ec2Settings, context: ProviderContext) -> Ec2Provider:
    """Return the provider of these settings."""
    return Ec2Provider(settings, context.public_key, context.clock)
