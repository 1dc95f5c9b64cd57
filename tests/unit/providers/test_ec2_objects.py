"""What EC2's answers mean as machines and capacity, and what a new instance is told."""

import json
from ipaddress import ip_address
from typing import Any
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key
from shepherd_core.adapters import ssh_keys
from shepherd_core.domain.errors import ConfigError
from shepherd_core.domain.machine import INVALID, Availability, Machine, ProviderStatus
from shepherd_core.providers.ec2.objects import Instance, has_replaceable_root, launch, machine, machines, user_data
from shepherd_core.settings.providers.ec2 import Ec2Settings
from shepherd_core.settings.sources import load

TOKEN = UUID("0a4bc1a8-7c5f-4c0f-9a53-6b4b5b1f0001")
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHb1Jc7TZl0g8cFz7h5oVb5Gg2c0J5s0n1p6c9w3Qk7d"
REQUIRED = {
    "PROVIDER_FLEET": "f",
    "PROVIDER_LIMIT": "3",
    "PROVIDER_SUBNETS": "subnet-1,subnet-2",
    "PROVIDER_LAUNCH_TEMPLATE": "metal",
}
RUNNING = {
    "InstanceId": "i-1",
    "State": {"Name": "running"},
    "InstanceType": "m7i.metal-24xl",
    "Placement": {"AvailabilityZone": "eu-central-1a"},
    "PrivateIpAddress": "10.0.0.1",
    "PublicIpAddress": "192.0.2.1",
    "Tags": [
        {"Key": "shepherd-fleet", "Value": "f"},
        {"Key": "shepherd-slot", "Value": "f/1"},
        {"Key": "shepherd-machine", "Value": str(TOKEN)},
        {"Key": "shepherd-host-key", "Value": HOST_KEY},
        {"Key": "empty"},
    ],
}


def set_up(monkeypatch: pytest.MonkeyPatch, **values: str | None) -> Ec2Settings:
    """Return the settings that are required, with others added or, as None, left out."""
    for name, value in {**REQUIRED, **values}.items():
        if value is not None:
            monkeypatch.setenv(f"SHEPHERD_{name}", value)
    (settings,) = load(Ec2Settings)
    return settings


def settings(**values: Any) -> Ec2Settings:
    """Return settings that need no environment."""
    given: dict[str, Any] = {"fleet": "f", "limit": 3, "subnets": "subnet-1", "launch_template": "metal", **values}
    return Ec2Settings(**given)


def instance(instance_id: str = "i-1", state: str = "running", slot: str | None = "f/1", reason: str = "") -> Instance:
    """Return an instance of the fleet."""
    tags = {} if slot is None else {"shepherd-slot": slot}
    return Instance(
        id=instance_id,
        state=state,
        type="m5.large",
        tags={"shepherd-fleet": "f", **tags},
        zone=None,
        reason=reason,
        private_address=ip_address("10.0.0.1"),
        public_address=None,
    )


def capacity(found: list[Machine]) -> list[str | None]:
    """Return the names of the capacity that may be used."""
    return [each.reservation_id for each in found if each.availability is Availability.KNOWN_UNUSED and not each.failed]


# --- machines ---


def test_an_instance_is_a_machine_with_all_that_its_tags_tell() -> None:
    """The function that created it may have been killed: only the tags say for which machine."""
    assert machine(Instance.of(RUNNING), "private") == Machine(
        provider_id="i-1",  # type: ignore[arg-type]  # a text is as good here
        availability=Availability.KNOWN_USED,
        address=ip_address("10.0.0.1"),
        reservation_id="f/1",
        location="eu-central-1a",
        status=ProviderStatus.RUNNING,
        token=TOKEN,
        host_key=HOST_KEY,
    )


@pytest.mark.parametrize(
    ("which", "raw", "address"),
    [
        ("private", RUNNING, "10.0.0.1"),
        ("public", RUNNING, "192.0.2.1"),
        ("public", {**RUNNING, "PublicIpAddress": None}, None),
        ("public", {**RUNNING, "PublicIpAddress": ""}, None),
        ("public", {**RUNNING, "PublicIpAddress": None, "Ipv6Address": "2001:db8::1"}, None),
        (
            "public",
            {**RUNNING, "PrivateIpAddress": None, "PublicIpAddress": None, "Ipv6Address": "2001:db8::1"},
            "2001:db8::1",
        ),
        ("private", {**RUNNING, "PrivateIpAddress": None, "Ipv6Address": "2001:db8::1"}, "2001:db8::1"),
    ],
)
def test_the_address_is_the_one_that_is_asked_for(which: str, raw: dict[str, Any], address: str | None) -> None:
    """A machine with an unroutable address looks like one that is down."""
    assert machine(Instance.of(raw), which).address == (address and ip_address(address))


@pytest.mark.parametrize(
    ("state", "status", "failed"),
    [
        ("pending", ProviderStatus.PROVISIONING, False),
        ("running", ProviderStatus.RUNNING, False),
        ("stopping", ProviderStatus.STOPPED, False),
        ("stopped", ProviderStatus.STOPPED, False),
        ("shutting-down", ProviderStatus.MISSING, True),
        ("terminated", ProviderStatus.MISSING, True),
        ("a-new-one", ProviderStatus.UNKNOWN, False),
        ("", ProviderStatus.UNKNOWN, False),
    ],
)
def test_a_state_means_what_it_says_and_an_unknown_one_nothing(
    state: str, status: ProviderStatus, failed: bool
) -> None:
    """EC2 may learn new states; none of them may be taken for an end."""
    found = machine(Instance.of({**RUNNING, "State": {"Name": state}}), "private")
    assert (found.status, found.failed) == (status, failed)
    assert (found.token is None) is failed  # nothing is to be adopted that has ended


@pytest.mark.parametrize(
    "value", ["", "ssh-rsa AAAA", "ssh-dss " + HOST_KEY.split()[1], HOST_KEY[:-1], HOST_KEY[:-1] + "\n"]
)
def test_an_invalid_host_key_tag_is_not_pinned(value: str) -> None:
    """A tag with an invalid key must not be pinned: no connection would ever succeed."""
    tags = [{"Key": "shepherd-host-key", "Value": value}]
    assert machine(Instance.of({**RUNNING, "Tags": tags}), "private").host_key is None


@pytest.mark.parametrize("value", ["", "0a4b", "not an id"])
def test_a_token_that_is_none_is_left_out(value: str) -> None:
    """Tags can be edited by hand."""
    tags = [{"Key": "shepherd-machine", "Value": value}]
    assert machine(Instance.of({**RUNNING, "Tags": tags}), "private").token is None


def test_an_instance_without_details_has_an_unknown_state() -> None:
    """Missing details become an unknown state."""
    assert machine(Instance.of({"InstanceId": "i-1"}), "private") == Machine(
        provider_id="i-1",  # type: ignore[arg-type]  # as above
        availability=Availability.KNOWN_USED,
    )


# --- capacity ---


def test_capacity_is_what_the_limit_leaves_under_names_that_stay() -> None:
    """A penalty and an intent hold on to a name: it must mean the same place in the next listing."""
    assert capacity(machines(settings(), [])) == ["f/1", "f/2", "f/3"]
    assert capacity(machines(settings(), [instance(slot="f/2")])) == ["f/1", "f/3"]


def test_capacity_has_no_id_of_its_own() -> None:
    """There is nothing at EC2 that it could be the id of."""
    assert {each.provider_id for each in machines(settings(), [])} == {INVALID}


@pytest.mark.parametrize("state", ["pending", "running", "stopping", "stopped", "shutting-down", "a-new-one"])
def test_an_instance_takes_up_its_place_until_it_has_ended(state: str) -> None:
    """Bare metal takes minutes to shut down, and counts against the account's own limit until then."""
    assert capacity(machines(settings(), [instance(state=state)])) == ["f/2", "f/3"]


def test_an_instance_without_a_place_leaves_room_for_one_less() -> None:
    """Somebody gave it the fleet's tag by hand: the limit holds all the same."""
    assert capacity(machines(settings(), [instance(slot=None)])) == ["f/1", "f/2"]
    assert capacity(machines(settings(limit=1), [instance(slot="f/7")])) == []


def test_a_lower_limit_takes_nothing_away() -> None:
    """It stops creations, and no machine."""
    found = machines(settings(limit=1), [instance("i-1", slot="f/1"), instance("i-2", slot="f/2")])
    assert [each.provider_id for each in found] == ["i-1", "i-2"]


@pytest.mark.parametrize("reason", ["", "Client.UserInitiatedShutdown", "Client.InstanceInitiatedShutdown"])
def test_the_place_of_an_instance_that_was_terminated_is_free_at_once(reason: str) -> None:
    """It says nothing against the next one."""
    found = machines(settings(), [instance(state="terminated", reason=reason)])
    assert capacity(found) == ["f/1", "f/2", "f/3"]
    assert found[0].reservation_id is None  # or it would be in the way of the capacity of that name


@pytest.mark.parametrize("reason", ["Client.InternalError", "Server.InternalError", "Client.VolumeLimitExceeded"])
def test_nothing_is_created_where_an_instance_has_just_failed(reason: str) -> None:
    """Without permission for a disk's key, for example, each instance ends at once: one a minute without end."""
    found = machines(settings(), [instance(state="terminated", reason=reason)])
    assert capacity(found) == ["f/2", "f/3"]
    assert [each.reservation_id for each in found if each.failed] == [None, "f/1"]


# --- what a new instance is told ---


def test_user_data_has_the_host_key_and_our_login_key_only() -> None:
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


def test_the_private_host_key_is_one_that_belongs_to_the_public_one() -> None:
    """The machine shows the one, and we compare with the other."""
    private = ssh_keys.generate()
    key = load_ssh_private_key(private.encode(), None).public_key()
    assert ssh_keys.public_line(private) == key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def test_a_new_instance_is_launched_from_the_settings() -> None:
    """What is unset is left to the launch template."""
    told = launch(settings(), "f/1", TOKEN, HOST_KEY, "data")
    assert told["LaunchTemplate"] == {"LaunchTemplateName": "metal"}
    assert not {"ImageId", "InstanceType", "SecurityGroupIds"} & told.keys()
    told = launch(
        settings(
            launch_template="lt-1",
            launch_template_version="7",
            image="ami-1",
            machine_type="m5.metal",
            security_groups="sg-1,sg-2",
        ),
        "f/1",
        TOKEN,
        HOST_KEY,
        "data",
    )
    assert told["LaunchTemplate"] == {"LaunchTemplateId": "lt-1", "Version": "7"}
    assert (told["ImageId"], told["InstanceType"], told["SecurityGroupIds"]) == ("ami-1", "m5.metal", ["sg-1", "sg-2"])


def test_a_new_instance_and_its_volumes_carry_the_tag_of_the_fleet() -> None:
    """The tags identify the volumes, for us and in the bill; the host key is for the instance alone."""
    of_instance, of_volume = launch(settings(), "f/1", TOKEN, HOST_KEY, "data")["TagSpecifications"]
    assert of_instance == {
        "ResourceType": "instance",
        "Tags": [
            {"Key": "Name", "Value": "f/1"},
            {"Key": "shepherd-fleet", "Value": "f"},
            {"Key": "shepherd-slot", "Value": "f/1"},
            {"Key": "shepherd-machine", "Value": str(TOKEN)},
            {"Key": "shepherd-host-key", "Value": HOST_KEY},
        ],
    }
    assert of_volume == {"ResourceType": "volume", "Tags": of_instance["Tags"][1:4]}


def test_user_data_cannot_be_read_through_a_mere_request_or_from_a_container() -> None:
    """It holds the private host key, and the metadata service shows it to every local process."""
    assert launch(settings(), "f/1", TOKEN, HOST_KEY, "data")["MetadataOptions"] == {
        "HttpEndpoint": "enabled",
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 1,
    }


@pytest.mark.parametrize(
    ("instance_type", "can"),
    [("m5.large", True), ("m5.metal", False), ("m7i.metal-24xl", False), ("mac2.metal", True), (None, True)],
)
def test_bare_metal_cannot_be_reinstalled(instance_type: str | None, can: bool) -> None:
    """EC2 replaces root volumes of virtual machines and of Macs."""
    assert has_replaceable_root(instance_type) is can


# --- settings ---


def test_the_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch template is enough, and so are an image and a type."""
    assert set_up(monkeypatch).launch_template == "metal"
    monkeypatch.delenv("SHEPHERD_PROVIDER_LAUNCH_TEMPLATE")
    found = set_up(monkeypatch, PROVIDER_LAUNCH_TEMPLATE=None, PROVIDER_IMAGE="ami-0", PROVIDER_MACHINE_TYPE="m5.metal")
    assert (found.image, found.machine_type) == ("ami-0", "m5.metal")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PROVIDER_FLEET", "FIXME"),
        ("PROVIDER_FLEET", "all*"),  # a pattern, to EC2
        ("PROVIDER_FLEET", "x" * 65),
        ("PROVIDER_LIMIT", "0"),
        ("PROVIDER_SUBNETS", "subnet-1, subnet-2"),
        ("PROVIDER_SUBNETS", "subnet-1,,subnet-2"),
        ("PROVIDER_SECURITY_GROUPS", ","),
        ("PROVIDER_IMAGE", "ubuntu"),
        ("PROVIDER_ADDRESS", "both"),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Better at the first invocation than at the first creation."""
    with pytest.raises(ConfigError, match=f"SHEPHERD_{name} is "):
        set_up(monkeypatch, **{name: value})


def test_without_a_launch_template_image_and_type_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both at once, as with all faults."""
    with pytest.raises(ConfigError) as raised:
        set_up(monkeypatch, PROVIDER_LAUNCH_TEMPLATE=None)
    assert [fault.split()[0] for fault in raised.value.faults] == [
        "SHEPHERD_PROVIDER_IMAGE",
        "SHEPHERD_PROVIDER_MACHINE_TYPE",
    ]
