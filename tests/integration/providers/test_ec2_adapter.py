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
from shepherd_core.domain.clock import Deadline, SystemClock
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
from tests.support.providers.scripted_http import Answer, scripted_server

OUR_KEY = ssh_keys.generate()
OUR_LINE = ssh_keys.public_line(OUR_KEY)
TOKEN = UUID("0a4bc1a8-7c5f-4c0f-9a53-6b4b5b1f0001")
PLACE = Machine(provider_id=INVALID, availability=Availability.KNOWN_UNUSED, reservation_id=f"{FLEET}/1")


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ec2Api]:
    """Return an account without instances."""
    with ec2_api() as api:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", api.server.url)
        yield api


@pytest.fixture
def make(api: Ec2Api, clock: ManualClock) -> Callable[..., Ec2Provider]:
    """Return what makes the provider of a fleet in all subnets."""

    def make(public_key: Callable[[], str] = lambda: OUR_LINE, **settings: Any) -> Ec2Provider:
        given = {"subnets": ",".join(subnets()), "image": IMAGE, "instance_type": "m5.large", **settings}
        named = {f"ec2_{name}": value for name, value in {"fleet": FLEET, "limit": 3, **given}.items()}
        return Ec2Provider(Ec2Settings(**named), public_key, clock)

    return make


@pytest.fixture
def provider(make: Callable[..., Ec2Provider]) -> Ec2Provider:
    """Return the provider of a fleet."""
    return make()


@pytest.fixture
def machine(provider: Ec2Provider, deadline: Deadline) -> Machine:
    """Return a machine of that fleet."""
    return provider.create_machine(PLACE, TOKEN, deadline)


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


def test_the_first_contact_with_a_new_machine_is_verified(
    api: Ec2Api, provider: Ec2Provider, deadline: Deadline
) -> None:
    """A machine with the key of its user data is the one that we launched; any other is not."""
    created = provider.create_machine(PLACE, TOKEN, deadline)
    (user_data,) = api.user_data()
    keys = cloud_config(user_data)["ssh_keys"]
    assert created.host_key == keys["ed25519_public"]
    dialer_of = {"user": "root", "connect_timeout": 5}
    with SshServer(OUR_LINE, asyncssh.import_private_key(keys["ed25519_private"])) as server:
        dialer = SshDialer(OUR_KEY, port=server.port, **dialer_of)  # type: ignore[arg-type]  # one dict, two types
        dialer.dial("127.0.0.1", created.host_key, deadline).close()
    with SshServer(OUR_LINE) as impostor:
        dialer = SshDialer(OUR_KEY, port=impostor.port, **dialer_of)  # type: ignore[arg-type]  # as above
        with pytest.raises(SshHostKeyChanged):
            dialer.dial("127.0.0.1", created.host_key, deadline)


def test_every_machine_has_a_host_key_of_its_own(api: Ec2Api, provider: Ec2Provider, deadline: Deadline) -> None:
    """Otherwise the user data of one machine would allow posing as all."""
    for number in (1, 2):
        place = Machine(provider_id=INVALID, availability=Availability.KNOWN_UNUSED, reservation_id=f"{FLEET}/{number}")
        provider.create_machine(place, UUID(int=number), deadline)
    assert len({cloud_config(found)["ssh_keys"]["ed25519_private"] for found in api.user_data()}) == 2


def test_the_host_key_is_found_again_wherever_the_machine_is(
    provider: Ec2Provider, machine: Machine, deadline: Deadline
) -> None:
    """Only the listing is known when the machine is adopted."""
    (listed,) = [each for each in provider.list_machines(deadline) if each.token == TOKEN]
    assert machine.host_key is not None
    assert listed.host_key == provider.get_machine(machine.provider_id, deadline).host_key == machine.host_key


@pytest.mark.parametrize("replays", [False, True], ids=["EC2 finds a mismatch", "EC2 answers with the instance"])
@pytest.mark.parametrize("shown", [True, False], ids=["and shows it", "and does not show it yet"])
def test_a_creation_whose_answer_was_lost_is_found_with_its_host_key(
    api: Ec2Api, provider: Ec2Provider, deadline: Deadline, *, replays: bool, shown: bool
) -> None:
    """Each call makes a new key; the machine has the one of the call that came through."""
    api.lost, api.shows_new, api.replays = {"RunInstances"}, shown, replays
    with pytest.raises(ProviderUnavailable):
        provider.create_machine(PLACE, TOKEN, deadline)
    api.lost = set()
    if not shown and not replays:
        with pytest.raises(ProviderUnavailable, match="does not show it yet"):
            provider.create_machine(PLACE, TOKEN, deadline)
        api.shows_new = True
    again = provider.create_machine(PLACE, TOKEN, deadline)
    assert again.host_key == cloud_config(api.user_data()[0])["ssh_keys"]["ed25519_public"]
    assert [found.id for found in api.instances()] == [again.provider_id]
    assert {launch["SubnetId"] for launch in api.launches} == {api.launches[0]["SubnetId"]}


def test_an_answer_that_does_not_show_the_tags_is_not_trusted(
    api: Ec2Api, provider: Ec2Provider, deadline: Deadline
) -> None:
    """Without tags the machine's key is unknown; EC2 shows them a moment later."""
    taken = provider.create_machine(PLACE, TOKEN, deadline)
    api.instance(taken.provider_id).add_tags({"shepherd-host-key": ""})
    api.replays, api.shows_new = True, False
    api._hidden = {taken.provider_id}
    api._launched = {token: body.replace(b"shepherd-host-key", b"?") for token, body in api._launched.items()}
    with pytest.raises(ProviderUnavailable, match="does not show it yet"):
        provider.create_machine(PLACE, TOKEN, deadline)


def test_a_machine_that_ended_before_it_was_recorded_is_given_up(
    api: Ec2Api, provider: Ec2Provider, machine: Machine, deadline: Deadline
) -> None:
    """EC2 never launches another for its client token."""
    api.set_state(machine.provider_id, "terminated", "Client.InternalError")
    with pytest.raises(CapacityTaken, match=r"terminated, Client\.InternalError"):
        provider.create_machine(PLACE, TOKEN, deadline)


def test_of_two_with_one_token_the_one_that_lives_is_the_machine(
    api: Ec2Api, provider: Ec2Provider, machine: Machine, deadline: Deadline
) -> None:
    """Somebody terminated one of a pair that should not have been."""
    tags = {"shepherd_fleet": FLEET, "shepherd_slot": f"{FLEET}/1", "shepherd_machine": str(TOKEN)}
    other = api.launch_by_hand(**tags)
    api.set_state(machine.provider_id, "terminated")
    assert provider.create_machine(PLACE, TOKEN, deadline).provider_id == other


def test_the_place_of_a_machine_that_is_shutting_down_is_taken(
    api: Ec2Api, provider: Ec2Provider, machine: Machine, deadline: Deadline
) -> None:
    """The account's own limit counts it until it has ended."""
    api.set_state(machine.provider_id, "shutting-down")
    with pytest.raises(CapacityTaken):
        provider.create_machine(PLACE, UUID(int=2), deadline)


@pytest.mark.parametrize(
    ("error", "kind"), [(SecretUnavailable("later"), ProviderUnavailable), (SecretMissing("no"), ProviderRefused)]
)
def test_nothing_is_launched_without_our_key(
    api: Ec2Api, make: Callable[..., Ec2Provider], deadline: Deadline, error: Exception, kind: type[ProviderError]
) -> None:
    """No login would be possible."""

    def fail() -> str:
        raise error

    with pytest.raises(kind, match="our SSH key"):
        make(fail).create_machine(PLACE, TOKEN, deadline)
    assert api.launches == []


# --- subnets ---


def test_where_a_subnet_has_no_room_the_next_one_is_tried(
    api: Ec2Api, provider: Ec2Provider, deadline: Deadline
) -> None:
    """Bare metal is scarce, and not in all zones at once. Each has a token of its own: a zone knows a token once."""
    first, second, _ = subnets()
    api.no_room = {first: "InsufficientInstanceCapacity"}
    created = provider.create_machine(PLACE, TOKEN, deadline)
    assert api.instance(created.provider_id).subnet_id == second
    assert [launch["SubnetId"] for launch in api.launches] == [first, second]
    assert [launch["ClientToken"] for launch in api.launches] == [f"{TOKEN}-0", f"{TOKEN}-1"]


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
    api: Ec2Api,
    provider: Ec2Provider,
    deadline: Deadline,
    *,
    code: str,
    kind: type[ProviderError],
    retry_after: float | None,
) -> None:
    """Capacity comes back, and says nothing against the place that is asked for; a type that is not there does not."""
    named = subnets()
    api.no_room = dict.fromkeys(named, code)
    with pytest.raises(kind, match=", ".join(rf"{subnet} \({code}\)" for subnet in named)) as raised:
        provider.create_machine(PLACE, TOKEN, deadline)
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
def test_any_other_answer_leads_to_no_other_subnet(
    api: Ec2Api, provider: Ec2Provider, deadline: Deadline, answer: Answer, kind: type[ProviderError]
) -> None:
    """Perhaps an instance was launched there: another elsewhere would be one too many. And it is asked for once."""
    api.refuse("RunInstances", answer)
    with pytest.raises(kind):
        provider.create_machine(PLACE, TOKEN, deadline)
    assert api.calls["RunInstances"] == 1


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
def test_the_private_host_key_is_in_no_error(
    api: Ec2Api, provider: Ec2Provider, deadline: Deadline, code: str, status: int
) -> None:
    """AWS's sentences may repeat what was sent, and what boto3 could not read it shows."""
    seen: list[str] = []

    def remember(action: str, asked: dict[str, str]) -> Answer | None:
        seen.extend(asked[name] for name in ("UserData",) if action == "RunInstances")
        return echoing(code, status)(action, asked)

    api.faults.append(remember)
    with pytest.raises(ProviderError) as raised:
        provider.create_machine(PLACE, TOKEN, deadline)
    shown = "".join(traceback.format_exception(raised.value)) + repr(raised.value.__context__)
    encoded = seen[0]
    secret = cloud_config(base64.b64decode(encoded).decode())["ssh_keys"]["ed25519_private"]
    lines = secret.splitlines()[1:-1]
    assert lines
    assert not [line for line in [*lines, encoded, encoded[:40]] if line in shown]


def test_a_denial_names_principal_and_permission(api: Ec2Api, provider: Ec2Provider, deadline: Deadline) -> None:
    """The operator must extend the policy; the encoded text after the sentence does not help."""
    sentence = "User: f is not authorized to perform: ec2:RunInstances on resource: instance/*"
    blob = " Encoded authorization failure message: x1y2z3"
    api.refuse("RunInstances", refusal(403, "UnauthorizedOperation", sentence + blob))
    with pytest.raises(ProviderRefused, match=r"on resource: instance/\*$"):
        provider.create_machine(PLACE, TOKEN, deadline)


@pytest.mark.parametrize(("status", "code"), [(403, "UnauthorizedOperation"), (401, "AuthFailure")])
def test_a_refusal_of_our_account_is_no_machines_fault(
    api: Ec2Api, provider: Ec2Provider, machine: Machine, deadline: Deadline, *, status: int, code: str
) -> None:
    """It counts for no machine: a permission or a key that is missing brings none of them into quarantine."""
    api.refuse("RebootInstances", refusal(status, code, "no"))
    with pytest.raises(ProviderUnusable):
        provider.reboot(machine.provider_id, deadline)


def test_a_provider_shows_no_key(provider: Ec2Provider, machine: Machine) -> None:
    """A repr ends up in logs and tracebacks; the public half may."""
    assert "PRIVATE" not in repr(machine) + repr(vars(provider))


# --- restarts ---


def test_a_power_cycle_waits_until_the_machine_has_stopped(
    api: Ec2Api, provider: Ec2Provider, machine: Machine, clock: ManualClock, deadline: Deadline
) -> None:
    """EC2 starts nothing that is still stopping."""
    api.looks_until_stopped = 3
    provider.power_cycle(machine.provider_id, deadline)
    assert state(api, machine) == "running"
    assert api.restarts[machine.provider_id] == 1
    assert len(clock.slept) == 4


@pytest.mark.parametrize("seconds", [600, 30], ids=["its patience", "its deadline"])
def test_a_machine_that_takes_too_long_to_stop_is_started_by_the_next_call(
    api: Ec2Api, provider: Ec2Provider, machine: Machine, clock: ManualClock, seconds: float
) -> None:
    """Bare metal takes minutes, and waiting is billed. The machine must be started again later."""
    api.looks_until_stopped = 1_000
    begin = clock.now
    with pytest.raises(ProviderUnavailable, match="still stopping"):
        provider.power_cycle(machine.provider_id, Deadline(clock, seconds))
    assert clock.now - begin <= min(seconds, STOPPING_SECONDS)
    for call in (provider.power_cycle, provider.reboot, provider.reinstall):
        with pytest.raises(ProviderUnavailable, match="still stopping"):
            call(machine.provider_id, Deadline(clock, seconds))
    api._stopping.clear()
    api.set_state(machine.provider_id, "stopped")
    provider.power_cycle(machine.provider_id, Deadline(clock, seconds))
    assert (state(api, machine), api.calls["StopInstances"]) == ("running", 1)


def test_a_machine_that_is_stopped_is_started_by_a_reboot(
    api: Ec2Api, provider: Ec2Provider, machine: Machine, deadline: Deadline
) -> None:
    """The function that stopped it for a power cycle may have been killed."""
    api.set_state(machine.provider_id, "stopped")
    provider.reboot(machine.provider_id, deadline)
    assert (state(api, machine), changes(api)) == ("running", {"RunInstances", "StartInstances"})


def test_a_machine_for_which_there_is_no_room_any_more_is_started_later(
    api: Ec2Api, provider: Ec2Provider, machine: Machine, deadline: Deadline
) -> None:
    """To stop an instance is to give its hardware back."""
    api.refuse("StartInstances", refusal(500, "InsufficientInstanceCapacity"), times=1)
    with pytest.raises(ProviderUnavailable, match=r"could not start i-.*InsufficientInstanceCapacity"):
        provider.power_cycle(machine.provider_id, deadline)
    assert provider.get_machine(machine.provider_id, deadline).status is ProviderStatus.STOPPED
    provider.reboot(machine.provider_id, deadline)
    assert state(api, machine) == "running"


def test_a_machine_in_the_wrong_state_for_a_moment_may_be_tried_again(
    api: Ec2Api, provider: Ec2Provider, machine: Machine, deadline: Deadline
) -> None:
    """It changed between the look and the call."""
    api.refuse("RebootInstances", refusal(400, "IncorrectInstanceState"))
    with pytest.raises(ProviderUnavailable):
        provider.reboot(machine.provider_id, deadline)


# --- reinstalling ---


@pytest.mark.parametrize("image", [IMAGE, None], ids=["the image of the settings", "as at launch"])
def test_a_reinstall_replaces_the_root_volume(
    api: Ec2Api, make: Callable[..., Ec2Provider], machine: Machine, deadline: Deadline, image: str | None
) -> None:
    """With a launch template alone, EC2 knows best what the machine was launched from."""
    make(image=image, launch_template="metal").reinstall(machine.provider_id, deadline)
    (asked,) = api.reinstalled
    assert (asked["InstanceId"], asked.get("ImageId")) == (machine.provider_id, image)
    assert asked["DeleteReplacedRootVolume"] == "true"


def test_bare_metal_is_not_reinstalled(
    api: Ec2Api, make: Callable[..., Ec2Provider], machine: Machine, deadline: Deadline
) -> None:
    """EC2 cannot; what the type is, the instance tells where the launch template decides."""
    assert Capability.REINSTALL not in make(instance_type="m5.metal").capabilities
    provider = make(instance_type=None, launch_template="metal")
    assert Capability.REINSTALL in provider.capabilities
    api.instance(machine.provider_id).instance_type = "m5.metal"
    with pytest.raises(NotSupported, match=r"m5\.metal"):
        provider.reinstall(machine.provider_id, deadline)
    assert api.reinstalled == []


def test_a_machine_is_started_before_it_can_be_reinstalled(
    api: Ec2Api, provider: Ec2Provider, machine: Machine, deadline: Deadline
) -> None:
    """EC2 replaces the root volume of a running instance alone."""
    api.set_state(machine.provider_id, "stopped")
    with pytest.raises(ProviderUnavailable, match="when it runs"):
        provider.reinstall(machine.provider_id, deadline)
    provider.reinstall(machine.provider_id, deadline)
    assert len(api.reinstalled) == 1


# --- what is not ours, or no more ---


@pytest.mark.parametrize("tags", [{}, {"shepherd_fleet": "another"}], ids=["no fleet", "another fleet"])
def test_instances_outside_the_fleet_are_neither_listed_nor_touched(
    api: Ec2Api, provider: Ec2Provider, deadline: Deadline, tags: dict[str, str]
) -> None:
    """An account is full of other people's machines."""
    foreign = ProviderId(api.launch_by_hand(**tags))
    api.calls.clear()
    for call in (provider.get_machine, provider.reboot, provider.power_cycle, provider.reinstall):
        with pytest.raises(MachineNotFound, match="no tag shepherd-fleet"):
            call(foreign, deadline)
    provider.release(foreign, deadline)
    assert changes(api) == set()
    assert foreign not in {each.provider_id for each in provider.list_machines(deadline)}


def test_a_terminated_instance_is_not_found(
    api: Ec2Api, provider: Ec2Provider, machine: Machine, deadline: Deadline
) -> None:
    """EC2 shows it for an hour, and would refuse everything."""
    api.set_state(machine.provider_id, "terminated", "Client.UserInitiatedShutdown")
    with pytest.raises(MachineNotFound, match="has ended"):
        provider.reboot(machine.provider_id, deadline)
    provider.release(machine.provider_id, deadline)
    assert changes(api) == {"RunInstances"}


def test_a_listing_with_a_foreign_instance_is_refused(
    api: Ec2Api, provider: Ec2Provider, machine: Machine, deadline: Deadline
) -> None:
    """The filter asked for our instances: an answer with others may also lack some of ours."""
    api.faults.append(
        lambda _, asked: Answer(200, api._forward(asked).body.replace(FLEET.encode() + b"<", b"other<"), {})
    )
    with pytest.raises(ListingInvalid, match="although it is not"):
        provider.list_machines(deadline)


# --- the edge ---


def test_a_throttled_read_is_tried_again(api: Ec2Api, provider: Ec2Provider, deadline: Deadline) -> None:
    """EC2 throttles by account: somebody else may have used up what there was a second ago."""
    api.refuse("DescribeInstances", refusal(503, "RequestLimitExceeded"), times=1)
    assert len(provider.list_machines(deadline)) == 3
    assert api.calls["DescribeInstances"] == 2


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ("reboot", "RebootInstances"),
        ("power_cycle", "StopInstances"),
        ("reinstall", "CreateReplaceRootVolumeTask"),
        ("release", "TerminateInstances"),
    ],
)
def test_a_throttled_change_is_not_tried_again(
    api: Ec2Api, provider: Ec2Provider, machine: Machine, deadline: Deadline, *, call: str, action: str
) -> None:
    """The loops know better when to repeat it, and whether the machine is still theirs then."""
    api.refuse(action, refusal(503, "RequestLimitExceeded"))
    with pytest.raises(ProviderUnavailable, match="RequestLimitExceeded") as raised:
        getattr(provider, call)(machine.provider_id, deadline)
    assert raised.value.retry_after is None
    assert api.calls[action] == 1


def test_without_a_region_the_error_names_the_setting(provider: Ec2Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an operator's own machine nothing sets it."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    with pytest.raises(ProviderRefused, match="NoRegionError"):
        provider.list_machines(Deadline(SystemClock(), 60))


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
    api: Ec2Api, provider: Ec2Provider, machine: Machine, deadline: Deadline, answer: Answer
) -> None:
    """Botocore itself would read it to its end, into a function with 512 MB."""
    api.refuse("RebootInstances", answer)
    with pytest.raises(ProviderUnavailable, match="HTTPClientError"):
        provider.reboot(machine.provider_id, deadline)


def test_an_answer_of_aws_that_trickles_in_is_cut_off() -> None:
    """Each part comes in time; a thread that waits for the whole would stay in the process, with what it has read."""
    with scripted_server(lambda _: Answer(200, b" ", repeat=10_000, pause_seconds=0.02)) as server:
        once = Config(read_timeout=1, retries={"total_max_attempts": 1})
        client = boto3.client("ec2", endpoint_url=server.url, config=once)
        aws_answers.limit(client)
        with pytest.raises(HTTPClientError, match="incomplete when the time was up"):
            client.describe_instances()
