"""
Amazon EC2: capacity is what the limit leaves, and a machine is an instance with the tag of the fleet.

Meant for bare metal (``*.metal``); other types work as well. Needs no secret:
the role of the functions may act on the instances of the fleet.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from shepherd_core.domain.errors.provider import MachineNotFound, NotSupported, ProviderUnavailable
from shepherd_core.domain.provider import Capability, Provider
from shepherd_core.providers.ec2 import objects
from shepherd_core.providers.ec2.calls import Ec2Calls
from shepherd_core.providers.ec2.fleet import Ec2Fleet
from shepherd_core.providers.ec2.launches import Launches

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from shepherd_core.domain.clock import Clock, Deadline, Permission
    from shepherd_core.domain.machine import Machine, ProviderId
    from shepherd_core.providers.ec2.objects import Instance
    from shepherd_core.providers.kit.context import ProviderContext
    from shepherd_core.settings.providers.ec2 import Ec2Settings

POLL_SECONDS = 5.0
"""The pause between two reads of the state of an instance that is stopping."""
STOPPING_SECONDS = 60.0
"""How long to wait for an instance to stop; bare metal takes longer and is started by the next call."""
STARTING_SECONDS = 15.0
"""The time reserved for the start."""


class Ec2Provider(Provider):
    """
    The instances with our fleet tag, and as many more as the limit allows.

    Other instances are never touched. The token of a machine, the name of its
    capacity and its public SSH host key are tags of the instance.
    *ssh_public_key* returns our own key, as in ``authorized_keys``.
    """

    name = "ec2"
    boot_seconds = 60.0

    def __init__(self, settings: Ec2Settings, ssh_public_key: Callable[[], str], clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._calls = Ec2Calls()
        self._fleet = Ec2Fleet(settings.fleet, self._calls)
        self._launches = Launches(settings, ssh_public_key, self._calls, self._fleet)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Return what EC2 can do; it does not reinstall bare metal, because it does not replace its root volumes."""
        always = {Capability.CREATE, Capability.REBOOT, Capability.POWER_CYCLE, Capability.RELEASE}
        replaceable = objects.has_replaceable_root(self._settings.machine_type)
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
        return objects.machine(self._fleet.get(provider_id, deadline), self._settings.address)

    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        """Launch an instance, or return the one that has the token already; see ``Launches.launch``."""
        return self._launches.launch(capacity, token, deadline)

    def reboot(self, provider_id: ProviderId, permission: Permission) -> None:
        """
        Restart the instance; start it if it is stopped. Does not wait for the boot.

        Raises:
            MachineNotFound: the instance is gone, or not ours.
            ProviderUnavailable: for example, it is stopping; call again.
        """
        instance = self._fleet.get(provider_id, permission.deadline)
        if not self._started(instance, permission):
            self._calls.interrupt(
                f"reboot {instance.id}", lambda ec2: ec2.reboot_instances(InstanceIds=[instance.id]), permission
            )

    def power_cycle(self, provider_id: ProviderId, permission: Permission) -> None:
        """
        Stop the instance and start it again, possibly on other hardware; instance store volumes are lost.

        If the process is killed in between, the machine is stopped; the next reboot or power cycle starts it.

        Raises:
            MachineNotFound: the instance is gone, or not ours.
            ProviderUnavailable: for example, it is still stopping; call again, to start it when it has stopped.
        """
        deadline = permission.deadline
        instance = self._fleet.get(provider_id, deadline)
        if self._started(instance, permission):
            return
        self._calls.interrupt(
            f"stop {instance.id}", lambda ec2: ec2.stop_instances(InstanceIds=[instance.id], Force=True), permission
        )
        waiting = deadline.within(STOPPING_SECONDS)
        while instance.state != objects.STOPPED:
            if waiting.remaining() < POLL_SECONDS or deadline.remaining() < POLL_SECONDS + STARTING_SECONDS:
                raise ProviderUnavailable(f"instance {instance.id} is still stopping; the next call starts it")
            self._clock.sleep(POLL_SECONDS)
            instance = self._fleet.get(provider_id, deadline)
        self._start(instance, permission)

    def reinstall(self, provider_id: ProviderId, permission: Permission) -> None:
        """
        Request a new root volume from the image of the settings, or else of the launch. Other volumes stay.

        The new volume has never been booted, so cloud-init reads the user data again: the host key stays the same.

        Raises:
            MachineNotFound: the instance is gone, or not ours.
            NotSupported: it is bare metal, whose root volume EC2 does not replace; nothing was done.
            ProviderUnavailable: for example, it does not run; it is started if possible. Call again.
        """
        instance = self._fleet.get(provider_id, permission.deadline)
        if not objects.has_replaceable_root(instance.type):
            raise NotSupported(f"EC2 does not replace root volumes of bare metal: {instance.id} is a {instance.type}")
        if self._started(instance, permission):
            raise ProviderUnavailable(f"instance {instance.id} was stopped and is starting; reinstall it when it runs")
        image = {} if self._settings.image is None else {"ImageId": self._settings.image}
        self._calls.interrupt(
            f"replace the root volume of {instance.id}",
            lambda ec2: ec2.create_replace_root_volume_task(
                InstanceId=instance.id, DeleteReplacedRootVolume=True, **image
            ),
            permission,
        )

    def release(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """Terminate the instance; do nothing if it is gone or not ours."""
        with suppress(MachineNotFound):
            instance = self._fleet.get(provider_id, deadline)
            self._calls.change(
                f"terminate {instance.id}", lambda ec2: ec2.terminate_instances(InstanceIds=[instance.id]), deadline
            )

    def _started(self, instance: Instance, permission: Permission) -> bool:
        """
        Start *instance* if it is stopped; return whether it was stopped.

        Raises:
            ProviderUnavailable: it is stopping, and can be neither started nor stopped now.
        """
        if instance.state == objects.STOPPING:
            raise ProviderUnavailable(f"instance {instance.id} is still stopping; try again when it has stopped")
        if instance.state == objects.STOPPED:
            self._start(instance, permission)
        return instance.state == objects.STOPPED

    def _start(self, instance: Instance, permission: Permission) -> None:
        self._calls.interrupt(
            f"start {instance.id}", lambda ec2: ec2.start_instances(InstanceIds=[instance.id]), permission
        )


def build(settings: Ec2Settings, context: ProviderContext) -> Ec2Provider:
    """Return the provider of these settings."""
    return Ec2Provider(settings, context.public_key, context.clock)
