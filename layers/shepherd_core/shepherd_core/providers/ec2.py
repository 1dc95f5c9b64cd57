"""
Amazon EC2: capacity is what the limit leaves, and a machine is an instance with the tag of the fleet.

Made for bare metal (``*.metal``); any other type works as well. No secret is
needed: the functions' role may act on the instances of the fleet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shepherd_core.errors import (
    CapacityTaken,
    MachineNotFound,
    NotSupported,
    ProviderRefused,
    ProviderUnavailable,
    SecretError,
)
from shepherd_core.machine import Capability
from shepherd_core.provider import Provider
from shepherd_core.providers import ec2_objects as objects
from shepherd_core.providers.ec2_calls import Ec2Calls, in_time
from shepherd_core.providers.ec2_fleet import Ec2Fleet
from shepherd_core.providers.ec2_objects import Instance

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from shepherd_core.clock import Clock, Deadline
    from shepherd_core.machine import Machine, ProviderId
    from shepherd_core.provider_config import Ec2Settings

POLL_SECONDS = 5.0
"""Between two looks at an instance that is stopping."""
STOPPING_SECONDS = 60.0
"""So long an instance may take to stop while we wait; bare metal takes longer, and is left to the next call."""
STARTING_SECONDS = 15.0
"""Kept back for the start."""
PATIENCE_SECONDS = 60.0
"""When to ask again for capacity that EC2 does not have."""

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

    No other instance is ever acted upon. A machine carries its token, the name
    of its capacity and its public SSH host key as tags. That key is made here,
    and its private half handed over in the user data and not kept. Whoever may
    change tags in the account could therefore change the key, but only until it
    is recorded. *ssh_public_key* returns our own key, as in ``authorized_keys``.
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
        """Return all; but EC2 gives bare metal no fresh operating system."""
        cannot = set() if objects.has_replaceable_root(self._settings.ec2_instance_type) else {Capability.REINSTALL}
        return frozenset(set(Capability) - cannot)

    def list_machines(self, deadline: Deadline) -> list[Machine]:
        """
        Return our instances, those that ended lately among them, and the capacity that they leave.

        Raises:
            ListingInvalid: the pages did not fit together, or an entry was not understood.
        """
        return objects.machines(self._settings, self._fleet.all(deadline))

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        """
        Return the instance as a machine.

        Raises:
            MachineNotFound: there is no such instance any more, or it is not ours.
        """
        return self._machine(self._fleet.get(provider_id, deadline))

    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        """
        Launch an instance, or return the one that carries the token already, with the host key that it was given.

        The subnets are tried in order, each with a client token of its own: with the same one, EC2 would launch nothing
        in a second subnet of a zone. Only a refusal that says that there is no room leads to the next. So whoever
        repeats this while EC2 does not show the instance yet asks for the same one again; unless a subnet that had no
        room before has some now.

        Raises:
            CapacityTaken: another instance is on the capacity, or the one with this token ended already.
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
            # Each call comes with another host key. So EC2 finds a mismatch, or answers with what it made of an earlier
            # call: which key that instance was given, its tags tell, and nothing else does.
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
            raise ProviderRefused(f"there are no instances of this type where the subnets are: {said}")
        raise ProviderUnavailable(f"there is no room in the subnets {said}", PATIENCE_SECONDS)

    def reboot(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """
        Ask for a restart of the instance; one that is stopped is started.

        Raises:
            MachineNotFound: there is no such instance any more, or it is not ours.
            ProviderUnavailable: it is stopping, for one; call again.
        """
        instance = self._fleet.get(provider_id, deadline)
        if not self._started(instance, deadline):
            self._calls.change(
                f"reboot {instance.id}", lambda ec2: ec2.reboot_instances(InstanceIds=[instance.id]), deadline
            )

    def power_cycle(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """
        Stop the instance and start it again, on other hardware perhaps; what is on instance store volumes is lost.

        Whoever dies in between leaves a stopped machine, which the next reboot or power cycle starts.

        Raises:
            MachineNotFound: there is no such instance any more, or it is not ours.
            ProviderUnavailable: it is still stopping, for one; call again, and it is started when it has stopped.
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
                raise ProviderUnavailable(
                    f"instance {instance.id} is still stopping; it will be started when asked again"
                )
            self._clock.sleep(POLL_SECONDS)
            instance = self._fleet.get(provider_id, deadline)
        self._start(instance, deadline)

    def reinstall(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """
        Ask for a new root volume from the image of the settings, else as it was at launch. Other volumes stay.

        The new volume has never been booted, so cloud-init reads the user data again: the host key stays the same.

        Raises:
            MachineNotFound: there is no such instance any more, or it is not ours.
            NotSupported: it is bare metal, whose root volume EC2 does not replace; nothing was done.
            ProviderUnavailable: it does not run, for one; it is started if it can be. Call again.
        """
        instance = self._fleet.get(provider_id, deadline)
        if not objects.has_replaceable_root(instance.type):
            raise NotSupported(f"EC2 replaces no root volumes of bare metal, and {instance.id} is a {instance.type}")
        if self._started(instance, deadline):
            raise ProviderUnavailable(f"instance {instance.id} was stopped; it can be reinstalled when it runs")
        image = {} if self._settings.ec2_image is None else {"ImageId": self._settings.ec2_image}
        self._calls.change(
            f"replace the root volume of {instance.id}",
            lambda ec2: ec2.create_replace_root_volume_task(
                InstanceId=instance.id, DeleteReplacedRootVolume=True, **image
            ),
            deadline,
        )

    def release(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """Terminate the instance; one that is gone, or not ours, is left alone."""
        try:
            instance = self._fleet.get(provider_id, deadline)
        except MachineNotFound:
            return
        self._calls.change(
            f"terminate {instance.id}", lambda ec2: ec2.terminate_instances(InstanceIds=[instance.id]), deadline
        )

    def _machine(self, instance: Instance) -> Machine:
        return objects.machine(instance, self._settings.ec2_address)

    def _existing(self, slot: str, token: UUID, deadline: Deadline) -> Machine | None:
        """
        Return the machine that was created with *token*, if EC2 shows it.

        Raises:
            CapacityTaken: it ended already, or another is in its place.
        """
        on_slot = self._fleet.on(slot, deadline)
        for instance in on_slot:
            if instance.token == token and not instance.is_gone:
                return self._machine(instance)
        for instance in on_slot:
            if instance.token == token or instance.state != objects.TERMINATED:
                raise CapacityTaken(f"{slot} is used, or was, by instance {instance}")
        return None

    def _wanted(self, slot: str, token: UUID, deadline: Deadline) -> dict[str, Any]:
        """Return what the new instance shall be, with a host key of its own."""
        from shepherd_core import ssh_key  # noqa: PLC0415 - only to create machines

        try:
            authorized_key = in_time("read our SSH key", self._ssh_public_key, deadline)
        except SecretError as error:
            raise (ProviderUnavailable if error.retryable else ProviderRefused)(f"our SSH key: {error}") from error
        private_key = ssh_key.generate()
        host_key = ssh_key.public_line(private_key)
        user_data = objects.user_data(private_key, host_key, authorized_key)
        return objects.launch(self._settings, slot, token, host_key, user_data)

    def _launch(self, wanted: dict[str, Any], subnet: str, client_token: str, deadline: Deadline) -> Instance | str:
        """Return the instance that was launched in *subnet*, or why it was not, if that is to be expected."""
        answer = self._calls.change(
            f"launch an instance in {subnet}",
            lambda ec2: ec2.run_instances(SubnetId=subnet, ClientToken=client_token, **wanted),
            deadline,
            told={_MISMATCH, *_NO_ROOM},
        )
        if isinstance(answer, str):
            return answer
        try:
            return Instance.of(answer["Instances"][0])
        except (KeyError, IndexError) as error:
            raise ProviderUnavailable(f"the answer to a launch in {subnet} shows no instance") from error

    def _started(self, instance: Instance, deadline: Deadline) -> bool:
        """
        Start *instance* if it is stopped, and return whether it was.

        Raises:
            ProviderUnavailable: it is stopping, and can be neither started nor stopped now.
        """
        if instance.state == objects.STOPPING:
            raise ProviderUnavailable(f"instance {instance.id} is still stopping; ask again when it has stopped")
        if instance.state == objects.STOPPED:
            self._start(instance, deadline)
        return instance.state == objects.STOPPED

    def _start(self, instance: Instance, deadline: Deadline) -> None:
        self._calls.change(f"start {instance.id}", lambda ec2: ec2.start_instances(InstanceIds=[instance.id]), deadline)
