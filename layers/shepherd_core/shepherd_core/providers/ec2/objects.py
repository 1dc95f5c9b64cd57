"""EC2's instances as machines, and the parameters of a launch; makes no calls."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shepherd_core.domain import labels
from shepherd_core.domain.errors.provider import ListingInvalid
from shepherd_core.domain.machine import Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.providers.kit import fields
from shepherd_core.providers.kit.creation import free_slots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from ipaddress import IPv4Address, IPv6Address
    from uuid import UUID

    from shepherd_core.settings.providers.ec2 import Ec2Settings

FLEET_TAG = "shepherd-fleet"
SLOT_TAG = "shepherd-slot"
MACHINE_TAG = "shepherd-machine"
HOST_KEY_TAG = "shepherd-host-key"
_NAME_TAG = "Name"
"""As EC2's own console shows it."""

STOPPING, STOPPED, TERMINATED = "stopping", "stopped", "terminated"
_GONE = {"shutting-down", TERMINATED}
_STATUS = {
    "pending": ProviderStatus.PROVISIONING,
    "running": ProviderStatus.RUNNING,
    STOPPING: ProviderStatus.STOPPED,
    STOPPED: ProviderStatus.STOPPED,
    **dict.fromkeys(_GONE, ProviderStatus.MISSING),
}
# Reasons for an end that the next instance need not share. All others mean that it failed, mostly at its launch.
_DELIBERATE = {
    "Client.UserInitiatedShutdown",
    "Client.InstanceInitiatedShutdown",
    "Client.InstanceTerminated",
    "Server.SpotInstanceTermination",
}


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance."""

    id: str
    state: str
    type: str
    tags: Mapping[str, str]
    zone: str | None
    reason: str
    """The code of the reason for its state; empty if EC2 gives none."""
    private_address: IPv4Address | IPv6Address | None
    public_address: IPv4Address | IPv6Address | None

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Instance:
        """
        Return the instance in an answer.

        Raises:
            ListingInvalid: its id or an address is not valid, or a tag has no key.
        """
        if (instance_id := fields.identifier(raw.get("InstanceId"))) is None:
            raise ListingInvalid("EC2 shows an instance without an id of printable characters")
        if any("Key" not in tag for tag in raw.get("Tags", ())):
            raise ListingInvalid(f"EC2 shows instance {instance_id} with a tag without a key")
        private, public, ipv6 = (
            _address(instance_id, raw.get(name)) for name in ("PrivateIpAddress", "PublicIpAddress", "Ipv6Address")
        )
        return cls(
            id=instance_id,
            state=raw.get("State", {}).get("Name", ""),
            type=raw.get("InstanceType", ""),
            tags={tag["Key"]: tag.get("Value", "") for tag in raw.get("Tags", ())},
            zone=raw.get("Placement", {}).get("AvailabilityZone"),
            reason=raw.get("StateReason", {}).get("Code", ""),
            private_address=private or ipv6,
            # An instance with IPv6 alone has one address, which is both private and public.
            public_address=public or (None if private else ipv6),
        )

    def __str__(self) -> str:
        return f"{self.id} ({self.state}{', ' if self.reason else ''}{self.reason})"

    @property
    def is_gone(self) -> bool:
        """Return whether it has ended; EC2 still shows it for a while."""
        return self.state in _GONE

    @property
    def has_failed(self) -> bool:
        """Return whether it ended unintentionally."""
        return self.is_gone and self.reason not in {"", *_DELIBERATE}

    @property
    def slot(self) -> str | None:
        """Return the capacity that it was created on; None if Shepherd did not create it."""
        return self.tags.get(SLOT_TAG)

    @property
    def token(self) -> UUID | None:
        """Return the token (the machine id) that it was created with."""
        return fields.token(self.tags.get(MACHINE_TAG))

    @property
    def host_key(self) -> str | None:
        """Return the public half of its host key."""
        return fields.host_key(self.tags.get(HOST_KEY_TAG))


def _address(instance_id: str, value: object) -> IPv4Address | IPv6Address | None:
    if not value:
        return None
    if (address := fields.address(value)) is None:
        raise ListingInvalid(f"EC2 shows instance {instance_id} with {value!r:.80} as its address")
    return address


def machine(instance: Instance, which_address: str) -> Machine:
    """
    Return *instance* as a machine with its *private* or *public* address (*which_address*).

    An instance that has ended is a failed machine without a token; once it is terminated, its capacity is free.
    """
    address = instance.public_address if which_address == "public" else instance.private_address
    return Machine(
        provider_id=ProviderId(instance.id),
        availability=Availability.KNOWN_USED,
        address=address,
        reservation_id=None if instance.state == TERMINATED else instance.slot,
        location=instance.zone,
        status=_STATUS.get(instance.state, ProviderStatus.UNKNOWN),
        failed=instance.is_gone,
        token=None if instance.is_gone else instance.token,
        host_key=instance.host_key,
        labels=labels.of_tags(tag for tag in instance.tags.items() if tag != (_NAME_TAG, instance.slot)),
    )


def machines(settings: Ec2Settings, instances: Sequence[Instance]) -> list[Machine]:
    """
    Return all *instances* of the fleet as machines, and the capacity that they leave of the limit.

    Capacity has no name in EC2, so it gets one here: FLEET/1 to FLEET/LIMIT, a tag of the instance on it. Capacity
    whose last instance failed is marked as failed while EC2 shows that instance: the next one would probably fail too.
    """
    present = [instance for instance in instances if instance.state != TERMINATED]
    failed = {instance.slot for instance in instances if instance.has_failed}
    free = free_slots(settings.fleet, settings.limit, [instance.slot for instance in present], failed)
    return [machine(instance, settings.address) for instance in instances] + free


def launch(settings: Ec2Settings, slot: str, token: UUID, host_key: str, user_data: str) -> dict[str, Any]:
    """Return the parameters of RunInstances, without subnet and client token."""
    tags = {FLEET_TAG: settings.fleet, SLOT_TAG: slot, MACHINE_TAG: str(token)}
    of_instance = {_NAME_TAG: slot, **tags, HOST_KEY_TAG: host_key}
    wanted: dict[str, Any] = {
        "MinCount": 1,
        "MaxCount": 1,
        "UserData": user_data,
        # User data holds the private host key: containers and server-side request forgery must not reach it.
        "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in given.items()]}
            for kind, given in (("instance", of_instance), ("volume", tags))
        ],
    }
    if settings.image is not None:
        wanted["ImageId"] = settings.image
    if settings.machine_type is not None:
        wanted["InstanceType"] = settings.machine_type
    if settings.security_groups is not None:
        wanted["SecurityGroupIds"] = settings.security_groups.split(",")
    if (template := settings.launch_template) is not None:
        name = "LaunchTemplateId" if template.startswith("lt-") else "LaunchTemplateName"
        wanted["LaunchTemplate"] = {name: template}
        if settings.launch_template_version is not None:
            wanted["LaunchTemplate"]["Version"] = settings.launch_template_version
    return wanted


def user_data(host_private_key: str, host_key: str, authorized_key: str) -> str:
    """
    Return the input of cloud-init at the first boot of a root volume: host key and authorized key. It is a secret.

    With ``ssh_keys``, cloud-init generates no other host keys. JSON is valid YAML, and safe with line breaks.
    """
    wanted = {
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": host_private_key, "ed25519_public": host_key},
        "ssh_authorized_keys": [authorized_key],
        "disable_root": False,
    }
    return f"#cloud-config\n{json.dumps(wanted)}\n"


def has_replaceable_root(instance_type: str | None) -> bool:
    """Return whether EC2 replaces root volumes of this type: not for bare metal, except Macs; None: True."""
    return instance_type is None or ".metal" not in instance_type or instance_type.startswith("mac")
