"""What the adapter of Amazon EC2 makes of an EC2 that is slow, full, forgetful or unwilling."""

import base64
import gzip
import json
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import asyncssh
import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import HTTPClientError
from shepherd_core.adapters import ssh_keys
from shepherd_core.adapters.aws import answers as aws_answers
from shepherd_core.adapters.http.bounded_answer import LONGEST_ANSWER, MOST_VALUES
from shepherd_core.adapters.ssh.dialer import SshDialer
from shepherd_core.domain.clock import Deadline, Permission, SystemClock
from shepherd_core.domain.errors import SecretMissing, SecretUnavailable
from shepherd_core.domain.errors.machine import SshHostKeyChanged
from shepherd_core.domain.errors.provider import (
    CapacityTaken,
    ListingInvalid,
    MachineNotFound,
    NotSupported,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUnusable,
)
from shepherd_core.domain.machine import INVALID, Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.domain.provider import Capability
from shepherd_core.providers.ec2.adapter import STOPPING_SECONDS, Ec2Provider
from shepherd_core.providers.ec2.launches import NO_CAPACITY_RETRY_SECONDS
from shepherd_core.settings.providers.ec2 import Ec2Settings

from tests.conftest import ManualClock
from tests.support.agents.ssh_server import SshServer
from tests.support.providers.ec2_api import FLEET, IMAGE, Ec2Api, ec2_api, refusal, subnets
from tests.support.providers.provider_contract import _method
from tests.support.providers.scripted_http import Answer, scripted_server

OUR_KEY = ssh_keys.generate()
OUR_LINE = ssh_keys.public_line(OUR_KEY)
TOKEN = UUID("0a4bc1a8-7c5f-4c0f-9a53-6b4b5b1f0001")
PLACE = Machine(provider_id=INVALID, availability=Availability.KNOWN_UNUSED, reservation_id=f"{FLEET}/1")


class Site:
    """An account without instances, and the provider of a fleet there."""

    def __init__(self, api: Ec2Api, clock: ManualClock, deadline: Deadline) -> None:
        self.api, self.clock, self.deadline, self.permission = api, clock, deadline, Permission(deadline)
        self.provider = self.make()

    def make(self, public_key: Callable[[], str] = lambda: OUR_LINE, **settings: Any) -> Ec2Provider:
        """Return another provider of the fleet, in all subnets."""
        given = {"subnets": ",".join(subnets()), "image": IMAGE, "machine_type": "m5.large", **settings}
        named = {"fleet": FLEET, "limit": 3, **given}
        return Ec2Provider(Ec2Settings(**named), public_key, self.clock)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, clock: ManualClock, deadline: Deadline) -> Iterator[Site]:
    """Return that account."""
    with ec2_api() as api:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", api.server.url)
        yield Site(api, clock, deadline)


@pytest.fixture
def machine(site: Site) -> Machine:
    """Return a machine of that fleet."""
    return site.provider.create_machine(PLACE, TOKEN, site.deadline)


def cloud_config(user_data: str) -> dict[str, Any]:
    """Return what cloud-init reads in user data."""
    found: dict[str, Any] = json.loads(user_data.removeprefix("#cloud-config\n"))
    return found


def state(api: Ec2Api, machine: Machine) -> str:
    """Return the state of an instance."""
    found: str = api.instance(machine.provider_id)._state.name
    return found


def changes(api: Ec2Api) -> set[str]:
    """Return what EC2 was asked for besides to show something."""
    return {action for action in api.calls if not action.startswith("Describe")}


# --- creation, and the host key ---


def test_the_first_contact_with_a_new_machine_is_verified(site: Site) -> None:
    """A machine with the key of its user data is the one that we launched; any other is not."""
    created = site.provider.create_machine(PLACE, TOKEN, site.deadline)
    (user_data,) = site.api.user_data()
    keys = cloud_config(user_data)["ssh_keys"]
    assert created.host_key == keys["ed25519_public"]
    dialer_of = {"user": "root", "connect_timeout": 5}
    with SshServer(OUR_LINE, asyncssh.import_private_key(keys["ed25519_private"])) as server:
        dialer = SshDialer(OUR_KEY, port=server.port, **dialer_of)  # type: ignore[arg-type]  # one dict, two types
        dialer.dial("127.0.0.1", created.host_key, site.deadline).close()
    with SshServer(OUR_LINE) as impostor:
        dialer = SshDialer(OUR_KEY, port=impostor.port, **dialer_of)  # type: ignore[arg-type]  # as above
        with pytest.raises(SshHostKeyChanged):
            dialer.dial("127.0.0.1", created.host_key, site.deadline)


def test_every_machine_has_a_host_key_of_its_own(site: Site) -> None:
    """Otherwise the user data of one machine would allow posing as all."""
    for number in (1, 2):
        place = Machine(provider_id=INVALID, availability=Availability.KNOWN_UNUSED, reservation_id=f"{FLEET}/{number}")
        site.provider.create_machine(place, UUID(int=number), site.deadline)
    assert len({cloud_config(found)["ssh_keys"]["ed25519_private"] for found in site.api.user_data()}) == 2


def test_the_host_key_is_found_again_wherever_the_machine_is(site: Site, machine: Machine) -> None:
    """Only the listing is known when the machine is adopted."""
    (listed,) = [each for each in site.provider.list_machines(site.deadline) if each.token == TOKEN]
    assert machine.host_key is not None
    assert listed.host_key == site.provider.get_machine(machine.provider_id, site.deadline).host_key == machine.host_key


@pytest.mark.parametrize("replays", [False, True], ids=["EC2 finds a mismatch", "EC2 answers with the instance"])
@pytest.mark.parametrize("shown", [True, False], ids=["and shows it", "and does not show it yet"])
def test_a_creation_whose_answer_was_lost_is_found_with_its_host_key(site: Site, replays: bool, shown: bool) -> None:
    """Each call makes a new key; the machine has the one of the call that came through."""
    site.api.lost, site.api.shows_new, site.api.replays = {"RunInstances"}, shown, replays
    with pytest.raises(ProviderUnavailable):
        site.provider.create_machine(PLACE, TOKEN, site.deadline)
    site.api.lost = set()
    if not shown and not replays:
        with pytest.raises(ProviderUnavailable, match="does not show it yet"):
            site.provider.create_machine(PLACE, TOKEN, site.deadline)
        site.api.shows_new = True
    again = site.provider.create_machine(PLACE, TOKEN, site.deadline)
    assert again.host_key == cloud_config(site.api.user_data()[0])["ssh_keys"]["ed25519_public"]
    assert [found.id for found in site.api.instances()] == [again.provider_id]
    assert {launch["SubnetId"] for launch in site.api.launches} == {site.api.launches[0]["SubnetId"]}


def test_an_answer_that_does_not_show_the_tags_is_not_trusted(site: Site) -> None:
    """Without tags the machine's key is unknown; EC2 shows them a moment later."""
    taken = site.provider.create_machine(PLACE, TOKEN, site.deadline)
    site.api.instance(taken.provider_id).add_tags({"shepherd-host-key": ""})
    site.api.replays, site.api.shows_new = True, False
    site.api._hidden = {taken.provider_id}
    site.api._launched = {token: body.replace(b"shepherd-host-key", b"?") for token, body in site.api._launched.items()}
    with pytest.raises(ProviderUnavailable, match="does not show it yet"):
        site.provider.create_machine(PLACE, TOKEN, site.deadline)


def test_a_machine_that_ended_before_it_was_recorded_is_given_up(site: Site, machine: Machine) -> None:
    """EC2 never launches another for its client token."""
    site.api.set_state(machine.provider_id, "terminated", "Client.InternalError")
    with pytest.raises(CapacityTaken, match=r"terminated, Client\.InternalError"):
        site.provider.create_machine(PLACE, TOKEN, site.deadline)


def test_of_two_with_one_token_the_one_that_lives_is_the_machine(site: Site, machine: Machine) -> None:
    """Somebody terminated one of a pair that should not have been."""
    tags = {"shepherd_fleet": FLEET, "shepherd_slot": f"{FLEET}/1", "shepherd_machine": str(TOKEN)}
    other = site.api.launch_by_hand(**tags)
    site.api.set_state(machine.provider_id, "terminated")
    assert site.provider.create_machine(PLACE, TOKEN, site.deadline).provider_id == other


def test_the_place_of_a_machine_that_is_shutting_down_is_taken(site: Site, machine: Machine) -> None:
    """The account's own limit counts it until it has ended."""
    site.api.set_state(machine.provider_id, "shutting-down")
    with pytest.raises(CapacityTaken):
        site.provider.create_machine(PLACE, UUID(int=2), site.deadline)


@pytest.mark.parametrize(
    ("error", "kind"), [(SecretUnavailable("later"), ProviderUnavailable), (SecretMissing("no"), ProviderRefused)]
)
def test_nothing_is_launched_without_our_key(site: Site, error: Exception, kind: type[ProviderError]) -> None:
    """No login would be possible."""

    def fail() -> str:
        raise error

    with pytest.raises(kind, match="our SSH key"):
        site.make(fail).create_machine(PLACE, TOKEN, site.deadline)
    assert site.api.launches == []


# --- subnets ---


def test_where_a_subnet_has_no_room_the_next_one_is_tried(site: Site) -> None:
    """Bare metal is scarce, and not in all zones at once. Each has a token of its own: a zone knows a token once."""
    first, second, _ = subnets()
    site.api.no_room = {first: "InsufficientInstanceCapacity"}
    created = site.provider.create_machine(PLACE, TOKEN, site.deadline)
    assert site.api.instance(created.provider_id).subnet_id == second
    assert [launch["SubnetId"] for launch in site.api.launches] == [first, second]
    assert [launch["ClientToken"] for launch in site.api.launches] == [f"{TOKEN}-0", f"{TOKEN}-1"]


@pytest.mark.parametrize(
    ("code", "kind", "retry_after"),
    [
        ("InsufficientInstanceCapacity", ProviderUnavailable, NO_CAPACITY_RETRY_SECONDS),
        ("InsufficientHostCapacity", ProviderUnavailable, NO_CAPACITY_RETRY_SECONDS),
        ("InsufficientFreeAddressesInSubnet", ProviderUnavailable, NO_CAPACITY_RETRY_SECONDS),
        ("Unsupported", ProviderRefused, None),
    ],
)
def test_the_reason_why_no_subnet_has_room_decides_the_error(
    site: Site, code: str, kind: type[ProviderError], retry_after: float | None
) -> None:
    """Capacity comes back, and says nothing against the place that is asked for; a type that is not there does not."""
    named = subnets()
    site.api.no_room = dict.fromkeys(named, code)
    with pytest.raises(kind, match=", ".join(rf"{subnet} \({code}\)" for subnet in named)) as raised:
        site.provider.create_machine(PLACE, TOKEN, site.deadline)
    assert getattr(raised.value, "retry_after", None) == retry_after


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refusal(500, "InternalError"), ProviderUnavailable),
        (refusal(503, "RequestLimitExceeded"), ProviderUnavailable),
        (refusal(400, "InvalidAMIID.NotFound"), ProviderRefused),
        (refusal(400, "VcpuLimitExceeded"), ProviderRefused),
        (Answer(200, b"<RunInstancesResponse/>"), ProviderUnavailable),
    ],
)
def test_any_other_answer_leads_to_no_other_subnet(site: Site, answer: Answer, kind: type[ProviderError]) -> None:
    """Perhaps an instance was launched there: another elsewhere would be one too many. And it is asked for once."""
    site.api.refuse("RunInstances", answer)
    with pytest.raises(kind):
        site.provider.create_machine(PLACE, TOKEN, site.deadline)
    assert site.api.calls["RunInstances"] == 1


# --- secrets ---


def echoing(code: str, status: int) -> Callable[[str, dict[str, str]], Answer | None]:
    """Return a fault that repeats the request, plain and as it was encoded."""

    def fault(action: str, asked: dict[str, str]) -> Answer | None:
        if action != "RunInstances":
            return None
        plain = base64.b64decode(asked["UserData"]).decode().replace("\n", " ")
        if not code:
            return Answer(status, f"<{plain}".encode(), {"Content-Type": "text/xml"})
        return refusal(status, code, f"{asked['UserData']} {plain}")

    return fault


@pytest.mark.parametrize(
    ("code", "status"),
    [("InvalidParameterValue", 400), ("InvalidUserData.Malformed", 400), ("InternalError", 500), ("", 200)],
)
def test_the_private_host_key_is_in_no_error(site: Site, code: str, status: int) -> None:
    """AWS's sentences may repeat what was sent, and what boto3 could not read it shows."""
    seen: list[str] = []

    def remember(action: str, asked: dict[str, str]) -> Answer | None:
        seen.extend(asked[name] for name in ("UserData",) if action == "RunInstances")
        return echoing(code, status)(action, asked)

    site.api.faults.append(remember)
    with pytest.raises(ProviderError) as raised:
        site.provider.create_machine(PLACE, TOKEN, site.deadline)
    shown = "".join(traceback.format_exception(raised.value)) + repr(raised.value.__context__)
    encoded = seen[0]
    secret = cloud_config(base64.b64decode(encoded).decode())["ssh_keys"]["ed25519_private"]
    lines = secret.splitlines()[1:-1]
    assert lines
    assert not [line for line in [*lines, encoded, encoded[:40]] if line in shown]


def test_a_denial_names_principal_and_permission(site: Site) -> None:
    """The operator must extend the policy; the encoded text after the sentence does not help."""
    sentence = "User: f is not authorized to perform: ec2:RunInstances on resource: instance/*"
    blob = " Encoded authorization failure message: x1y2z3"
    site.api.refuse("RunInstances", refusal(403, "UnauthorizedOperation", sentence + blob))
    with pytest.raises(ProviderRefused, match=r"on resource: instance/\*$"):
        site.provider.create_machine(PLACE, TOKEN, site.deadline)


@pytest.mark.parametrize(("status", "code"), [(403, "UnauthorizedOperation"), (401, "AuthFailure")])
def test_a_refusal_of_our_account_is_no_machines_fault(site: Site, machine: Machine, status: int, code: str) -> None:
    """It counts for no machine: a permission or a key that is missing brings none of them into quarantine."""
    site.api.refuse("RebootInstances", refusal(status, code, "no"))
    with pytest.raises(ProviderUnusable):
        site.provider.reboot(machine.provider_id, site.permission)


def test_a_provider_shows_no_key(site: Site, machine: Machine) -> None:
    """A repr ends up in logs and tracebacks; the public half may."""
    assert "PRIVATE" not in repr(machine) + repr(vars(site.provider))


# --- restarts ---


def test_a_power_cycle_waits_until_the_machine_has_stopped(site: Site, machine: Machine) -> None:
    """EC2 starts nothing that is still stopping."""
    site.api.looks_until_stopped = 3
    site.provider.power_cycle(machine.provider_id, site.permission)
    assert state(site.api, machine) == "running"
    assert site.api.restarts[machine.provider_id] == 1
    assert len(site.clock.slept) == 4


@pytest.mark.parametrize("seconds", [600, 30], ids=["its time limit", "its deadline"])
def test_a_machine_that_takes_too_long_to_stop_is_started_by_the_next_call(
    site: Site, machine: Machine, seconds: float
) -> None:
    """Bare metal takes minutes, and waiting is billed. The machine must be started again later."""
    site.api.looks_until_stopped = 1_000
    begin = site.clock.now
    with pytest.raises(ProviderUnavailable, match="still stopping"):
        site.provider.power_cycle(machine.provider_id, Permission(Deadline(site.clock, seconds)))
    assert site.clock.now - begin <= min(seconds, STOPPING_SECONDS)
    for call in (site.provider.power_cycle, site.provider.reboot, site.provider.reinstall):
        with pytest.raises(ProviderUnavailable, match="still stopping"):
            call(machine.provider_id, Permission(Deadline(site.clock, seconds)))
    site.api._stopping.clear()
    site.api.set_state(machine.provider_id, "stopped")
    site.provider.power_cycle(machine.provider_id, Permission(Deadline(site.clock, seconds)))
    assert (state(site.api, machine), site.api.calls["StopInstances"]) == ("running", 1)


def test_a_machine_that_is_stopped_is_started_by_a_reboot(site: Site, machine: Machine) -> None:
    """The function that stopped it for a power cycle may have been killed."""
    site.api.set_state(machine.provider_id, "stopped")
    site.provider.reboot(machine.provider_id, site.permission)
    assert (state(site.api, machine), changes(site.api)) == ("running", {"RunInstances", "StartInstances"})


def test_a_machine_for_which_there_is_no_room_any_more_is_started_later(site: Site, machine: Machine) -> None:
    """To stop an instance is to give its hardware back."""
    site.api.refuse("StartInstances", refusal(500, "InsufficientInstanceCapacity"), times=1)
    with pytest.raises(ProviderUnavailable, match=r"could not start i-.*InsufficientInstanceCapacity"):
        site.provider.power_cycle(machine.provider_id, site.permission)
    assert site.provider.get_machine(machine.provider_id, site.deadline).status is ProviderStatus.STOPPED
    site.provider.reboot(machine.provider_id, site.permission)
    assert state(site.api, machine) == "running"


def test_a_machine_in_the_wrong_state_for_a_moment_may_be_tried_again(site: Site, machine: Machine) -> None:
    """It changed between the look and the call."""
    site.api.refuse("RebootInstances", refusal(400, "IncorrectInstanceState"))
    with pytest.raises(ProviderUnavailable):
        site.provider.reboot(machine.provider_id, site.permission)


# --- reinstalling ---


@pytest.mark.parametrize("image", [IMAGE, None], ids=["the image of the settings", "as at launch"])
def test_a_reinstall_replaces_the_root_volume(site: Site, machine: Machine, image: str | None) -> None:
    """With a launch template alone, EC2 knows best what the machine was launched from."""
    site.make(image=image, launch_template="metal").reinstall(machine.provider_id, site.permission)
    (asked,) = site.api.reinstalled
    assert (asked["InstanceId"], asked.get("ImageId")) == (machine.provider_id, image)
    assert asked["DeleteReplacedRootVolume"] == "true"


def test_bare_metal_is_not_reinstalled(site: Site, machine: Machine) -> None:
    """EC2 cannot; what the type is, the instance tells where the launch template decides."""
    assert Capability.REINSTALL not in site.make(machine_type="m5.metal").capabilities
    provider = site.make(machine_type=None, launch_template="metal")
    assert Capability.REINSTALL in provider.capabilities
    site.api.instance(machine.provider_id).instance_type = "m5.metal"
    with pytest.raises(NotSupported, match=r"m5\.metal"):
        provider.reinstall(machine.provider_id, site.permission)
    assert site.api.reinstalled == []


def test_a_machine_is_started_before_it_can_be_reinstalled(site: Site, machine: Machine) -> None:
    """EC2 replaces the root volume of a running instance alone."""
    site.api.set_state(machine.provider_id, "stopped")
    with pytest.raises(ProviderUnavailable, match="when it runs"):
        site.provider.reinstall(machine.provider_id, site.permission)
    site.provider.reinstall(machine.provider_id, site.permission)
    assert len(site.api.reinstalled) == 1


# --- what is not ours, or no more ---


@pytest.mark.parametrize("tags", [{}, {"shepherd_fleet": "another"}], ids=["no fleet", "another fleet"])
def test_instances_outside_the_fleet_are_neither_listed_nor_touched(site: Site, tags: dict[str, str]) -> None:
    """An account is full of other people's machines."""
    foreign = ProviderId(site.api.launch_by_hand(**tags))
    site.api.calls.clear()
    with pytest.raises(MachineNotFound, match="no tag shepherd-fleet"):
        site.provider.get_machine(foreign, site.deadline)
    for interrupt in (site.provider.reboot, site.provider.power_cycle, site.provider.reinstall):
        with pytest.raises(MachineNotFound, match="no tag shepherd-fleet"):
            interrupt(foreign, site.permission)
    site.provider.release(foreign, site.deadline)
    assert changes(site.api) == set()
    assert foreign not in {each.provider_id for each in site.provider.list_machines(site.deadline)}


def test_a_terminated_instance_is_not_found(site: Site, machine: Machine) -> None:
    """EC2 shows it for an hour, and would refuse everything."""
    site.api.set_state(machine.provider_id, "terminated", "Client.UserInitiatedShutdown")
    with pytest.raises(MachineNotFound, match="has ended"):
        site.provider.reboot(machine.provider_id, site.permission)
    site.provider.release(machine.provider_id, site.deadline)
    assert changes(site.api) == {"RunInstances"}


def test_a_listing_with_a_foreign_instance_is_refused(site: Site, machine: Machine) -> None:
    """The filter asked for our instances: an answer with others may also lack some of ours."""
    site.api.faults.append(
        lambda _, asked: Answer(200, site.api._forward(asked).body.replace(FLEET.encode() + b"<", b"other<"), {})
    )
    with pytest.raises(ListingInvalid, match="without the tag shepherd-fleet"):
        site.provider.list_machines(site.deadline)


# --- the edge ---


def test_a_throttled_read_is_tried_again(site: Site) -> None:
    """EC2 throttles by account: somebody else may have used up what there was a second ago."""
    site.api.refuse("DescribeInstances", refusal(503, "RequestLimitExceeded"), times=1)
    assert len(site.provider.list_machines(site.deadline)) == 3
    assert site.api.calls["DescribeInstances"] == 2


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ("reboot", "RebootInstances"),
        ("power-cycle", "StopInstances"),
        ("reinstall", "CreateReplaceRootVolumeTask"),
        ("release", "TerminateInstances"),
    ],
)
def test_a_throttled_change_is_not_tried_again(site: Site, machine: Machine, call: str, action: str) -> None:
    """The loops know better when to repeat it, and whether the machine is still theirs then."""
    site.api.refuse(action, refusal(503, "RequestLimitExceeded"))
    with pytest.raises(ProviderUnavailable, match="RequestLimitExceeded") as raised:
        _method(site.provider, call)(machine.provider_id, site.deadline)
    assert raised.value.retry_after is None
    assert site.api.calls[action] == 1


def test_without_a_region_the_error_names_the_setting(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an operator's own machine nothing sets it."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    with pytest.raises(ProviderRefused, match="NoRegionError"):
        site.provider.list_machines(Deadline(SystemClock(), 60))


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, b" " * (1 << 20), repeat=LONGEST_ANSWER // (1 << 20) + 1),
        Answer(200, gzip.compress(b" " * (LONGEST_ANSWER + 1)), {"Content-Encoding": "gzip"}),
        Answer(200, b"<a/>" * (MOST_VALUES + 1)),
    ],
    ids=["long", "compressed", "many values"],
)
def test_an_answer_beyond_the_limits_of_all_providers_is_not_parsed(
    site: Site, machine: Machine, answer: Answer
) -> None:
    """Botocore itself would read it to its end, into a function with 512 MB."""
    site.api.refuse("RebootInstances", answer)
    with pytest.raises(ProviderUnavailable, match="HTTPClientError"):
        site.provider.reboot(machine.provider_id, site.permission)


def test_an_answer_of_aws_that_trickles_in_is_cut_off() -> None:
    """Each part comes in time; a thread that waits for the whole would stay in the process, with what it has read."""
    with scripted_server(lambda _: Answer(200, b" ", repeat=10_000, pause_seconds=0.02)) as server:
        once = Config(read_timeout=1, retries={"total_max_attempts": 1})
        client = boto3.client("ec2", endpoint_url=server.url, config=once)
        aws_answers.limit(client)
        with pytest.raises(HTTPClientError, match="incomplete when the time was up"):
            client.describe_instances()
