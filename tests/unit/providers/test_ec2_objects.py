import json
from ipaddress import ip_address
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError
from shepherd_core.adapters import ssh_keys
from shepherd_core.domain.machine import INVALID, Availability, Machine, ProviderStatus
from shepherd_core.providers.ec2.objects import Instance, has_replaceable_root, launch, machine, machines, user_data
from shepherd_core.settings.providers.ec2 import Ec2Settings

TOKEN = UUID("0a4bc1a8-7c5f-4c0f-9a53-6b4b5b1f0001")
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHb1Jc7TZl0g8cFz7h5oVb5Gg2c0J5s0n1p6c9w3Qk7d"
TAGS = {"shepherd-fleet": "f", "shepherd-slot": "f/1", "shepherd-machine": str(TOKEN), "shepherd-host-key": HOST_KEY}
RUNNING = {"InstanceId": "i-1", "State": {"Name": "running"}, "Placement": {"AvailabilityZone": "eu-central-1a"}}
ADDRESSES = {"PrivateIpAddress": "10.0.0.1", "PublicIpAddress": "192.0.2.1"}
V6 = "2001:db8::1"


def settings(**values: Any) -> Ec2Settings:
    given: dict[str, Any] = {"fleet": "f", "limit": 3, "subnets": "subnet-1", "launch_template": "metal", **values}
    return Ec2Settings(**given)


def tagged(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": name, "Value": value} for name, value in tags.items()]


def shown(tags: dict[str, str] = TAGS, which: str = "private", **changed: Any) -> Machine:
    return machine(Instance.of({**RUNNING, **ADDRESSES, "Tags": [*tagged(tags), {"Key": "empty"}], **changed}), which)


def test_an_instance_is_a_machine_as_its_tags_tell() -> None:
    """The function that created it may have been killed: only the tags say for which machine."""
    role = {"Name": "f/1", "role": "db", "spaces at an end ": "x"}
    assert shown({**TAGS, **role}) == Machine(
        provider_id="i-1",  # type: ignore[arg-type]  # a text is as good here
        availability=Availability.KNOWN_USED,
        address=ip_address("10.0.0.1"),
        reservation_id="f/1",
        location="eu-central-1a",
        status=ProviderStatus.RUNNING,
        token=TOKEN,
        host_key=HOST_KEY,
        labels={"role": "db", "empty": ""},
    )
    assert machine(Instance.of({"InstanceId": "i-1"}), "private") == Machine(
        provider_id="i-1",  # type: ignore[arg-type]  # as above
        availability=Availability.KNOWN_USED,
    )


@pytest.mark.parametrize(
    ("which", "private", "public", "ipv6", "address"),
    [
        ("private", "10.0.0.1", "192.0.2.1", None, "10.0.0.1"),
        ("public", "10.0.0.1", "192.0.2.1", None, "192.0.2.1"),
        ("public", "10.0.0.1", "", V6, None),
        ("public", None, None, V6, V6),
        ("private", None, None, V6, V6),
    ],
)
def test_the_address_is_the_one_that_is_asked_for(
    which: str, private: str | None, public: str | None, ipv6: str | None, address: str | None
) -> None:
    """A machine with an unroutable address looks like one that is down."""
    found = shown(which=which, PrivateIpAddress=private, PublicIpAddress=public, Ipv6Address=ipv6)
    assert found.address == (address and ip_address(address))


@pytest.mark.parametrize(
    ("state", "status", "failed"),
    [
        ("pending", ProviderStatus.PROVISIONING, False),
        ("stopping", ProviderStatus.STOPPED, False),
        ("stopped", ProviderStatus.STOPPED, False),
        ("shutting-down", ProviderStatus.MISSING, True),
        ("terminated", ProviderStatus.MISSING, True),
        ("a-new-one", ProviderStatus.UNKNOWN, False),
    ],
)
def test_an_unknown_state_means_nothing(state: str, status: ProviderStatus, failed: bool) -> None:
    """EC2 may learn new states; none of them may be taken for an end."""
    found = shown(State={"Name": state})
    assert (found.status, found.failed) == (status, failed)
    assert (found.token is None) is failed  # nothing is to be adopted that has ended


@pytest.mark.parametrize(
    "tags",
    [
        *[{"shepherd-machine": value} for value in ("", "0a4b")],
        *[{"shepherd-host-key": value} for value in ("", "ssh-dss " + HOST_KEY.split()[1], HOST_KEY[:-1] + "\n")],
    ],
)
def test_a_tag_that_somebody_edited_is_left_out(tags: dict[str, str]) -> None:
    assert (shown(tags).token, shown(tags).host_key) == (None, None)


DELIBERATE = ("", "Client.UserInitiatedShutdown", "Client.InstanceInitiatedShutdown")
FAILED = ("Client.InternalError", "Server.InternalError", "Client.VolumeLimitExceeded")


@pytest.mark.parametrize(
    ("limit", "there", "free"),
    [
        (3, [], [1, 2, 3]),
        (3, [(2, "running", "")], [1, 3]),
        *[(3, [(1, state, "")], [2, 3]) for state in ("pending", "stopping", "stopped", "shutting-down", "a-new-one")],
        (3, [(None, "running", "")], [1, 2]),  # somebody gave it the fleet's tag by hand
        (1, [(7, "running", "")], []),
        (1, [(1, "running", ""), (2, "running", "")], []),
        *[(3, [(1, "terminated", reason)], [1, 2, 3]) for reason in DELIBERATE],
        # For example without permission for a disk's key: each instance ends at once, one a minute without end.
        *[(3, [(1, "terminated", reason)], [2, 3]) for reason in FAILED],
    ],
)
def test_capacity_is_what_limits_leave(limit: int, there: list[tuple[int | None, str, str]], free: list[int]) -> None:
    """A penalty and an intent hold on to a name: it must mean the same place in the next listing."""
    instances = [
        Instance.of(
            {
                "InstanceId": f"i-{number}",
                "State": {"Name": state},
                "StateReason": {"Code": reason},
                "Tags": tagged({"shepherd-fleet": "f", **({"shepherd-slot": f"f/{slot}"} if slot else {})}),
            }
        )
        for number, (slot, state, reason) in enumerate(there)
    ]
    found = machines(settings(limit=limit), instances)
    assert [each.provider_id for each in found[: len(there)]] == [each.id for each in instances]
    capacity = found[len(there) :]
    assert {(each.availability, each.provider_id) for each in capacity} <= {(Availability.KNOWN_UNUSED, INVALID)}
    assert [each.reservation_id for each in capacity if not each.failed] == [f"f/{slot}" for slot in free]
    if any(state == "terminated" for _, state, _ in there):
        assert found[0].reservation_id is None  # or it would be in the way of the capacity of that name
        assert len(capacity) == 3


def test_user_data_has_only_host_key_and_login_key() -> None:
    """cloud-init creates no keys if it is given some; a second key would not be pinned."""
    private = ssh_keys.generate()
    head, body = user_data(private, HOST_KEY, "ssh-ed25519 ours").split("\n", 1)
    assert head == "#cloud-config"
    assert json.loads(body) == {
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": private, "ed25519_public": HOST_KEY},
        "ssh_authorized_keys": ["ssh-ed25519 ours"],
        "disable_root": False,
    }
    assert len(user_data(private, HOST_KEY, HOST_KEY)) < 16_384


VERSION_7 = {"launch_template": "lt-1", "launch_template_version": "7"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, {"LaunchTemplate": {"LaunchTemplateName": "metal"}}),
        (
            {"image": "ami-1", "machine_type": "m5.metal", "security_groups": "sg-1,sg-2", **VERSION_7},
            {
                "LaunchTemplate": {"LaunchTemplateId": "lt-1", "Version": "7"},
                "ImageId": "ami-1",
                "InstanceType": "m5.metal",
                "SecurityGroupIds": ["sg-1", "sg-2"],
            },
        ),
    ],
)
def test_a_launch_is_what_the_settings_say(given: dict[str, str], told: dict[str, Any]) -> None:
    """Volumes are known by tags. User data holds the private key: no mere request, and no container, may read it."""
    ours = tagged(TAGS)
    assert launch(settings(**given), "f/1", TOKEN, HOST_KEY, "data") == {
        "MinCount": 1,
        "MaxCount": 1,
        "UserData": "data",
        "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "TagSpecifications": [
            {"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": "f/1"}, *ours]},
            {"ResourceType": "volume", "Tags": ours[:3]},
        ],
        **told,
    }


@pytest.mark.parametrize(
    ("instance_type", "can"),
    [("m5.large", True), ("m5.metal", False), ("m7i.metal-24xl", False), ("mac2.metal", True), (None, True)],
)
def test_bare_metal_cannot_be_reinstalled(instance_type: str | None, can: bool) -> None:
    """EC2 replaces root volumes of virtual machines and of Macs."""
    assert has_replaceable_root(instance_type) is can


REQUIRED = {"fleet": "f", "limit": "3", "subnets": "subnet-1,subnet-2", "image": "ami-0", "machine_type": "m5.metal"}


@pytest.mark.parametrize(
    ("changed", "faulty"),
    [
        ({}, []),
        ({"image": None, "machine_type": None, "launch_template": "metal"}, []),
        ({"image": None, "machine_type": None}, ["image", "machine_type"]),
        ({"fleet": "FIXME"}, ["fleet"]),
        ({"fleet": "all*"}, ["fleet"]),  # a pattern, to EC2
        ({"fleet": "x" * 65}, ["fleet"]),
        ({"limit": "0"}, ["limit"]),
        ({"subnets": "subnet-1, subnet-2"}, ["subnets"]),
        ({"subnets": "subnet-1,,subnet-2"}, ["subnets"]),
        ({"security_groups": ","}, ["security_groups"]),
        ({"image": "ubuntu"}, ["image"]),
        ({"address": "both"}, ["address"]),
    ],
)
def test_a_faulty_setting_is_named(changed: dict[str, str | None], faulty: list[str]) -> None:
    """Better at the first invocation than at the first creation; a launch template may stand for image and type."""
    found = []
    try:
        Ec2Settings.model_validate({**REQUIRED, **changed})
    except ValidationError as error:
        found = [fault["loc"][0] for fault in error.errors()]
    assert found == faulty
