import base64
import json
import random
import re
import traceback
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import HTTPClientError
from shepherd_core.adapters import ssh_keys
from shepherd_core.adapters.aws import answers as aws_answers
from shepherd_core.domain.clock import Deadline, Permission
from shepherd_core.domain.errors.provider import (
    CapacityTaken,
    MachineNotFound,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
)
from shepherd_core.domain.machine import INVALID, Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.providers.ec2.adapter import STOPPING_SECONDS, Ec2Provider
from shepherd_core.providers.ec2.launches import NO_CAPACITY_RETRY_SECONDS
from shepherd_core.settings.providers.ec2 import Ec2Settings

from simulator.environment.faults import FakeAnswer, Scramble
from simulator.providers.kit.fault_script import FaultScript
from tests.conftest import ManualClock
from tests.integration.providers.contract.provider_contract import PUBLIC_KEY, TOKEN, ProviderContract, Setup
from tests.integration.providers.contract.provider_faults import ProviderFaults
from tests.support.providers.ec2_api import FLEET, IMAGE, XML, Ec2Api, ec2_api, refusal, subnets
from tests.support.providers.scripted_http import Answer, scripted_server

SECRET = "a-secret-access-key-that-nobody-may-see"
_CODES = {
    401: "AuthFailure",
    403: "UnauthorizedOperation",
    404: "InvalidInstanceID.NotFound",
    429: "RequestLimitExceeded",
}
"""What EC2 says with a status; for others, whatever it is."""


class Ec2Faults(FaultScript):
    """The faults that all simulated APIs share, in EC2's form: actions are POSTs to one path, and answers are XML."""

    def __init__(self, api: Ec2Api) -> None:
        super().__init__()
        self._api = api
        api.faults.append(self._answer)

    def _answer(self, action: str, asked: dict[str, str]) -> Answer | None:
        delays, other = self.hits("GET" if action.startswith("Describe") else "POST", "/")
        fault: Any = delays[0] if delays else other
        if fault is None:
            return None
        before = getattr(fault, "when", "after") == "before"
        done = Answer() if before else self._api.perform(action, asked)
        if isinstance(fault, Scramble):
            return Answer(done.status, _scrambled(done.body, random.Random(fault.seed)), XML)
        if not isinstance(fault, FakeAnswer):
            return Answer(200, done.body[:100], XML, missing=100)  # lost, cut, or later than anybody waits
        if fault.status < 300:
            return Answer(fault.status, str(fault.body).encode(), XML)
        return refusal(fault.status, _CODES.get(fault.status, "Whatever"))


def _scrambled(body: bytes, chance: random.Random) -> bytes:
    """Return *body* with another text in one of its elements."""
    start, end = chance.choice([found.span(1) for found in re.finditer(b">([^<>]*)</", body)])
    return body[:start] + chance.choice([b"", b"unheard of", b"-1", b"<a/>", b"9" * 30, b"&#0;"]) + body[end:]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ec2Api]:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with ec2_api() as api:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", api.server.url)
        yield api


def provider(clock: ManualClock, limit: int = 3, **changed: Any) -> Ec2Provider:
    given = {"subnets": ",".join(subnets()), "image": IMAGE, "machine_type": "m5.large", **changed}
    return Ec2Provider(Ec2Settings(fleet=FLEET, limit=limit, **given), lambda: PUBLIC_KEY, clock)


class TestEc2(ProviderContract, ProviderFaults):
    lacks = frozenset({"places"})

    @pytest.fixture
    def setup(self, clock: ManualClock, api: Ec2Api) -> Setup:
        api.page_size = 1
        api.launch_by_hand(shepherd_fleet=FLEET, shepherd_slot=f"{FLEET}/2")
        unnamed = api.launch_by_hand(shepherd_fleet=FLEET)
        api.launch_by_hand(shepherd_fleet="somebody-else's", shepherd_slot=f"{FLEET}/3")
        api.launch_by_hand()
        return Setup(
            provider=provider(clock, limit=5),
            # The one without a name leaves room for one less: the last.
            capacity_ids=frozenset(f"{FLEET}/{number}" for number in (1, 2, 3, 4)) | {unnamed},
            stores_tokens=True,
            requests=lambda: api.calls.total(),  # noqa: PLW0108 - calls is another counter each time
            # boto3 repeats neither of the two, which would only take time; and of the first it shows what it got.
            make_unavailable=lambda: api.refuse("*", Answer(200, f"<{SECRET}>".encode(), missing=100)),
            make_refusing=lambda: api.refuse("*", refusal(401, "AuthFailure", SECRET)),
            spoil_listing=api.repeat_pages,
            reboots=lambda provider_id: api.restarts[provider_id],
            confuse=lambda provider_id: api.set_state(provider_id, "unheard-of"),
            stall=api.stall,
            secret=SECRET,
            says_when=False,
            faults=Ec2Faults(api),
        )


class Site:
    def __init__(self, api: Ec2Api, clock: ManualClock, deadline: Deadline) -> None:
        self.api, self.clock, self.deadline, self.permission = api, clock, deadline, Permission(deadline)
        self.provider = provider(clock)

    def create(self, token: UUID = TOKEN, slot: int = 1) -> Machine:
        place = Machine(provider_id=INVALID, availability=Availability.KNOWN_UNUSED, reservation_id=f"{FLEET}/{slot}")
        return self.provider.create_machine(place, token, self.deadline)

    def told(self, launch: int = 0) -> dict[str, str]:
        user_data = base64.b64decode(self.api.launches[launch]["UserData"]).decode()
        keys: dict[str, str] = json.loads(user_data.partition("\n")[2])["ssh_keys"]
        return keys

    def state(self, machine: Machine) -> str:
        return str(self.api.instance(machine.provider_id)._state.name)

    def changes(self) -> set[str]:
        """Return what EC2 was asked for besides to show something."""
        return {action for action in self.api.calls if not action.startswith("Describe")}


@pytest.fixture
def site(api: Ec2Api, clock: ManualClock, deadline: Deadline) -> Site:
    return Site(api, clock, deadline)


@pytest.fixture
def machine(site: Site) -> Machine:
    return site.create()


def test_a_machine_has_its_own_host_key_which_listings_show(site: Site, machine: Machine) -> None:
    """Only the listing is known when the machine is adopted; with one key, each machine could pose as all."""
    (listed,) = [each for each in site.provider.list_machines(site.deadline) if each.token == TOKEN]
    shown = site.provider.get_machine(machine.provider_id, site.deadline)
    keys = site.told()
    assert keys["ed25519_public"] == ssh_keys.public_line(keys["ed25519_private"])
    assert keys["ed25519_public"] == machine.host_key == listed.host_key == shown.host_key
    assert "PRIVATE" not in repr(machine) + repr(vars(site.provider))
    assert site.create(UUID(int=2), slot=2).host_key != machine.host_key


@pytest.mark.parametrize("replays", [False, True], ids=["EC2 finds a mismatch", "EC2 answers with the instance"])
@pytest.mark.parametrize("shown", [True, False], ids=["and shows it", "and does not show it yet"])
def test_a_creation_without_answer_is_found_with_its_host_key(site: Site, replays: bool, shown: bool) -> None:
    """Each call makes a new key; the machine has the one of the call that came through."""
    site.api.lost, site.api.replays = {"RunInstances"}, replays
    with pytest.raises(ProviderUnavailable):
        site.create()
    site.api.lost = set()
    site.api.hidden = set() if shown else {found.id for found in site.api.instances()}
    if not shown and not replays:
        with pytest.raises(ProviderUnavailable, match="does not show it yet"):
            site.create()
        site.api.hidden.clear()
    again = site.create()
    assert again.host_key == site.told()["ed25519_public"]
    assert [found.id for found in site.api.instances()] == [again.provider_id]
    assert site.provider.boot_seconds == 60  # each attempt before would ask EC2 for its address in vain
    assert {launch["SubnetId"] for launch in site.api.launches} == {site.api.launches[0]["SubnetId"]}


@pytest.mark.parametrize(
    ("state", "reason", "token", "words"),
    [
        ("terminated", "Client.InternalError", TOKEN, r"terminated, Client\.InternalError"),  # its token is used up
        ("shutting-down", "", UUID(int=2), r"\(shutting-down\)"),  # the account's own limit counts it until its end
    ],
)
def test_a_place_with_an_instance_that_ends_is_taken(
    site: Site, machine: Machine, state: str, reason: str, token: UUID, words: str
) -> None:
    """EC2 never launches another for its client token."""
    site.api.set_state(machine.provider_id, state, reason)
    with pytest.raises(CapacityTaken, match=words):
        site.create(token)


def test_a_subnet_without_room_is_followed_by_the_next(site: Site) -> None:
    """Bare metal is scarce, and not in all zones at once. Each has a token of its own: a zone knows a token once."""
    first, second, _ = subnets()
    asked = []
    site.api.faults.append(lambda action, of: asked.append(of) if action == "RunInstances" else None)
    site.api.refuse("RunInstances", refusal(500, "InsufficientInstanceCapacity"), times=1)
    assert site.api.instance(site.create().provider_id).subnet_id == second
    assert [launch["SubnetId"] for launch in asked] == [first, second]
    assert [launch["ClientToken"] for launch in asked] == [f"{TOKEN}-0", f"{TOKEN}-1"]


NO_ROOM = ("InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientFreeAddressesInSubnet")


@pytest.mark.parametrize(
    ("answer", "kind", "retry_after", "launches"),
    [
        *[(refusal(400, code), ProviderUnavailable, NO_CAPACITY_RETRY_SECONDS, 3) for code in NO_ROOM],
        (refusal(400, "Unsupported"), ProviderRefused, None, 3),
        (refusal(500, "InternalError"), ProviderUnavailable, None, 1),
        (refusal(400, "VcpuLimitExceeded"), ProviderRefused, None, 1),
        (Answer(200, b"<RunInstancesResponse/>"), ProviderUnavailable, None, 1),  # shows no instance
    ],
)
def test_only_for_lack_of_room_another_subnet_is_tried(
    site: Site, answer: Answer, kind: type[ProviderError], retry_after: float | None, launches: int
) -> None:
    """Room comes back, a type that is not there does not. After any other answer an instance may be there: one more."""
    site.api.refuse("RunInstances", answer)
    code = answer.body.partition(b"<Code>")[2].partition(b"<")[0].decode()
    words = ", ".join(rf"{subnet} \({code}\)" for subnet in subnets()) if launches > 1 else code or "shows no"
    with pytest.raises(kind, match=words) as raised:
        site.create()
    assert getattr(raised.value, "retry_after", None) == retry_after
    assert site.api.calls["RunInstances"] == launches


@pytest.mark.parametrize(("code", "status"), [("InvalidUserData.Malformed", 400), ("InternalError", 500), ("", 200)])
def test_the_private_host_key_is_in_no_error(site: Site, code: str, status: int) -> None:
    """AWS's sentences may repeat what was sent, and what boto3 could not read it shows."""
    sent: list[str] = []

    def echo(action: str, asked: dict[str, str]) -> Answer | None:
        if action != "RunInstances":
            return None
        sent.extend([asked["UserData"], base64.b64decode(asked["UserData"]).decode().replace("\n", " ")])
        return refusal(status, code, " ".join(sent)) if code else Answer(status, f"<{sent[1]}".encode())

    site.api.faults.append(echo)
    with pytest.raises(ProviderError) as raised:
        site.create()
    shown = "".join(traceback.format_exception(raised.value)) + repr(raised.value.__context__)
    secret = json.loads(sent[1].partition(" ")[2])["ssh_keys"]["ed25519_private"].splitlines()[1:-1]
    assert secret
    assert not [line for line in [*secret, sent[0][:40]] if line in shown]


def test_a_power_cycle_waits_until_the_machine_has_stopped(site: Site, machine: Machine) -> None:
    """EC2 starts nothing that is still stopping."""
    site.api.looks_until_stopped = 3
    site.provider.power_cycle(machine.provider_id, site.permission)
    assert (site.state(machine), site.api.restarts[machine.provider_id]) == ("running", 1)
    assert len(site.clock.slept) == 4


@pytest.mark.parametrize("seconds", [600, 30], ids=["its time limit", "its deadline"])
def test_the_next_call_starts_a_machine_that_stopped_late(site: Site, machine: Machine, seconds: float) -> None:
    """Bare metal takes minutes, and waiting is billed. The machine must be started again later."""
    site.api.looks_until_stopped = 1_000
    begin = site.clock.now
    for call in (site.provider.power_cycle, site.provider.power_cycle, site.provider.reboot, site.provider.reinstall):
        with pytest.raises(ProviderUnavailable, match="still stopping"):
            call(machine.provider_id, Permission(Deadline(site.clock, seconds)))
    assert site.clock.now - begin <= min(seconds, STOPPING_SECONDS)
    site.api._stopping.clear()
    site.api.set_state(machine.provider_id, "stopped")
    site.provider.power_cycle(machine.provider_id, Permission(Deadline(site.clock, seconds)))
    assert (site.state(machine), site.api.calls["StopInstances"]) == ("running", 1)


def test_a_machine_without_room_is_started_later(site: Site, machine: Machine) -> None:
    """To stop an instance is to give its hardware back; the function that stopped it may have been killed, too."""
    site.api.refuse("StartInstances", refusal(500, "InsufficientInstanceCapacity"), times=1)
    with pytest.raises(ProviderUnavailable, match=r"could not start i-.*InsufficientInstanceCapacity"):
        site.provider.power_cycle(machine.provider_id, site.permission)
    assert site.provider.get_machine(machine.provider_id, site.deadline).status is ProviderStatus.STOPPED
    site.provider.reboot(machine.provider_id, site.permission)
    assert (site.state(machine), site.changes()) == ("running", {"RunInstances", "StopInstances", "StartInstances"})


@pytest.mark.parametrize("image", [IMAGE, None], ids=["the image of the settings", "as at launch"])
def test_a_reinstall_replaces_the_root_volume_of_a_running_machine(
    site: Site, machine: Machine, image: str | None
) -> None:
    """EC2 replaces no other; with a launch template alone, EC2 knows best what the machine was launched from."""
    ours = provider(site.clock, image=image, launch_template="metal")
    site.api.set_state(machine.provider_id, "stopped")
    with pytest.raises(ProviderUnavailable, match="when it runs"):
        ours.reinstall(machine.provider_id, site.permission)
    ours.reinstall(machine.provider_id, site.permission)
    (asked,) = site.api.reinstalled
    assert (asked["InstanceId"], asked.get("ImageId")) == (machine.provider_id, image)
    assert asked["DeleteReplacedRootVolume"] == "true"


@pytest.mark.parametrize(
    ("tags", "words"), [({}, "no tag"), ({"shepherd_fleet": "another"}, "no tag"), ({"shepherd_fleet": FLEET}, "ended")]
)
def test_foreign_and_ended_instances_are_not_touched(site: Site, tags: dict[str, str], words: str) -> None:
    """An account is full of other people's machines, and EC2 shows what was terminated for an hour."""
    other = ProviderId(site.api.launch_by_hand(**tags))
    if words == "ended":
        site.api.set_state(other, "terminated", "Client.UserInitiatedShutdown")
    site.api.calls.clear()
    with pytest.raises(MachineNotFound, match=words):
        site.provider.get_machine(other, site.deadline)
    for interrupt in (site.provider.reboot, site.provider.power_cycle, site.provider.reinstall):
        with pytest.raises(MachineNotFound, match=words):
            interrupt(other, site.permission)
    site.provider.release(other, site.deadline)
    assert site.changes() == set()
    assert (other in {each.provider_id for each in site.provider.list_machines(site.deadline)}) is (words == "ended")


def test_an_answer_of_aws_that_trickles_in_is_cut_off() -> None:
    """Each part comes in time; a thread that waits for the whole would stay in the process, with what it has read."""
    with scripted_server(lambda _: Answer(200, b" ", repeat=10_000, pause_seconds=0.02)) as server:
        once = Config(read_timeout=1, retries={"total_max_attempts": 1})
        client = boto3.client("ec2", endpoint_url=server.url, config=once)
        aws_answers.limit(client)
        with pytest.raises(HTTPClientError, match="incomplete when the time was up"):
            client.describe_instances()
