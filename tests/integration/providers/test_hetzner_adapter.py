"""The adapter of Hetzner's dedicated servers against the simulated service: listing, resets, reinstalls, our key."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors import TimeLimitExceeded
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.errors.provider import (
    ListingInvalid,
    MachineNotFound,
    NotSupported,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
)
from shepherd_core.domain.machine import Availability, Machine, ProviderId
from shepherd_core.providers.hetzner.adapter import HetznerProvider
from shepherd_core.settings.providers.hetzner import HetznerSettings

from simulator.environment.faults import Drop, FakeAnswer
from simulator.providers.hetzner.objects import RobotServer
from simulator.providers.hetzner.robot import HetznerRobot, RobotOptions
from simulator.providers.kit.hardware import NoHardware
from tests.conftest import ManualClock
from tests.support.providers.description import Description
from tests.support.waiting import eventually

USER = "#ws+made-up"
PASSWORD = "a-password"
BLOB = "AAAAC3NzaC1lZDI1NTE5AAAAIHb1Jc7TZl0g8cFz7h5oVb5Gg2c0J5s0n1p6c9w3Qk7d"
PUBLIC_KEY = f"ssh-ed25519 {BLOB} shepherd"
OTHER_PUBLIC_KEY = f"ssh-ed25519 {BLOB[:-4]}AAAA somebody"
TOKEN = UUID("6f9d9a52-4f5c-4d43-9f5e-3a6f0d0d1d11")

A, B, FOREIGN = ProviderId("11"), ProviderId("12"), ProviderId("21")
RESET = ("POST", "/reset/{number}")


class HetznerSetup:
    """An account at the simulated web service, and providers for it."""

    def __init__(self, robot: HetznerRobot, hardware: NoHardware, clock: ManualClock) -> None:
        self.robot = robot
        self.hardware = hardware
        self.clock = clock
        self.provider = self.another()

    def another(
        self,
        public_key: Callable[[], str] = lambda: PUBLIC_KEY,
        credential: Callable[[], str] = lambda: f"{USER}:{PASSWORD}",
        **settings: Any,
    ) -> HetznerProvider:
        """Return one more provider, which shares nothing with the first."""
        fields = {
            "credential_parameter": "/unused",
            "hetzner_name_prefix": "fleet-",
            "hetzner_key_name": "shepherd-key",
            "hetzner_api_url": self.robot.url,
            **settings,
        }
        return HetznerProvider(HetznerSettings(**fields), credential, public_key, self.clock)

    def server(self, provider_id: ProviderId = A) -> RobotServer:
        """Return a server after everything that was accepted has happened."""
        eventually(self.robot.settled)
        return self.robot.server(int(provider_id))

    def set(self, **fields: Any) -> None:
        """Change the first server."""
        self.robot.change(int(A), **fields)


@pytest.fixture
def setup(clock: ManualClock) -> Iterator[HetznerSetup]:
    """Return an account with two servers of ours and one for something else; its hours are the test's."""
    hardware = NoHardware()
    names = {A: "fleet-a", B: "fleet-b", FOREIGN: "database"}
    servers = [RobotServer(number=int(number), name=name) for number, name in names.items()]
    options = RobotOptions(clock=clock.monotonic)
    with HetznerRobot(hardware, user=USER, password=PASSWORD, servers=servers, options=options) as robot:
        Description("hetzner").hold(robot)
        yield HetznerSetup(robot, hardware, clock)
        assert robot.errors == []


# The listing, and single servers


def test_servers_with_other_names_are_not_ours(setup: HetznerSetup, deadline: Deadline) -> None:
    """An account holds more than one fleet; a wrong reset could hit a database."""
    assert {machine.provider_id for machine in setup.provider.list_machines(deadline)} == {A, B}
    act: Callable[[ProviderId, Deadline], object]
    for act in (
        setup.provider.get_machine,
        setup.provider.reboot,
        setup.provider.power_cycle,
        setup.provider.reinstall,
    ):
        with pytest.raises(MachineNotFound, match="'database' does not begin with 'fleet-'"):
            act(FOREIGN, deadline)
    assert setup.robot.calls[RESET] == 0


def test_one_server_is_one_request(setup: HetznerSetup, deadline: Deadline) -> None:
    """Listing and asking for one use up the same two hundred requests an hour."""
    setup.provider.list_machines(deadline)
    setup.provider.get_machine(A, deadline)
    assert dict(setup.robot.calls) == {("GET", "/server"): 1, ("GET", "/server/{number}"): 1}


@pytest.mark.parametrize("odd", ["011", "+11", "1_1", "\u0661\u0661", "11 ", "198.18.0.1", "11\n"])
def test_a_provider_id_that_is_no_number_is_not_asked_for(odd: str, setup: HetznerSetup, deadline: Deadline) -> None:
    """Robot also takes addresses, and might take other spellings: one server would have two provider ids."""
    with pytest.raises(MachineNotFound):
        setup.provider.reboot(ProviderId(odd), deadline)
    assert setup.robot.calls.total() == 0


def test_an_answer_about_another_server_is_not_believed(setup: HetznerSetup, deadline: Deadline) -> None:
    """Whatever mixed them up, the wrong one would be reset."""
    body = {"server": {"server_number": 12, "server_name": "fleet-b"}}
    setup.robot.faults.add(FakeAnswer(path="/server/11", times=0, status=200, body=body))
    with pytest.raises(ProviderUnavailable, match="server 12 instead of 11"):
        setup.provider.reboot(A, deadline)


def test_an_account_without_servers_is_empty(setup: HetznerSetup, deadline: Deadline) -> None:
    """Robot has been seen to say it in two ways."""
    fault = {"error": {"status": 404, "code": "SERVER_NOT_FOUND", "message": "No server found"}}
    for status, body in ((404, fault), (200, [])):
        setup.robot.faults.add(FakeAnswer(path="/server", status=status, body=body))
        assert setup.provider.list_machines(deadline) == []


def test_a_wrong_url_is_no_empty_account(setup: HetznerSetup, deadline: Deadline) -> None:
    """A fleet that seems to be gone is another matter than a setting that is wrong."""
    setup.robot.faults.add(FakeAnswer(times=0, status=404, body="<html>"))
    with pytest.raises(ProviderRefused, match="404"):
        setup.provider.list_machines(deadline)
    with pytest.raises(ProviderRefused, match="404"):
        setup.provider.get_machine(A, deadline)


@pytest.mark.parametrize(
    "body",
    [
        {"server": []},
        [{"server": {"server_name": "fleet-a"}}],
        [{"server": None}],
        ["fleet-a"],
        [{"server": {"server_number": 21, "server_name": "database"}}] * 2,
    ],
)
def test_a_listing_that_is_not_understood_is_none(body: object, setup: HetznerSetup, deadline: Deadline) -> None:
    """Half a listing would make the other half look like machines that are gone."""
    setup.robot.faults.add(FakeAnswer(path="/server", status=200, body=body))
    with pytest.raises(ListingInvalid):
        setup.provider.list_machines(deadline)


# Taking a server


def test_taking_a_server_changes_nothing(setup: HetznerSetup, deadline: Deadline) -> None:
    """It may run something already that the operator wants to keep until the agent takes over."""
    listed = next(machine for machine in setup.provider.list_machines(deadline) if machine.provider_id == A)
    taken = setup.provider.create_machine(listed, TOKEN, deadline)
    assert taken.availability is Availability.KNOWN_USED
    assert {method for method, _ in setup.robot.calls} == {"GET"}


@pytest.mark.parametrize(("provider_id", "fields"), [(A, {"cancelled": True}), (FOREIGN, {})])
def test_a_server_that_goes_or_is_not_ours_is_not_taken(
    provider_id: ProviderId, fields: dict[str, Any], setup: HetznerSetup, deadline: Deadline
) -> None:
    """It was listed a moment ago, and things changed."""
    setup.set(**fields)
    capacity = Machine(provider_id=provider_id, availability=Availability.POSSIBLY_USED)
    with pytest.raises(ProviderRefused, match=str(TOKEN)):
        setup.provider.create_machine(capacity, TOKEN, deadline)


# Resets


@pytest.mark.parametrize(
    ("setting", "offered", "done"),
    [
        ("software", ("sw", "hw", "man"), ("sw", "hw")),
        ("software", ("power", "power_long", "hw", "man"), ("hw", "hw")),
        ("hardware", ("sw", "hw", "man"), ("hw", "hw")),
        ("software", ("sw", "man"), ("sw", None)),
        ("hardware", ("sw", "man"), (None, None)),
        ("software", ("man",), (None, None)),
        ("software", ("power", "power_long"), (None, None)),
        ("software", (), (None, None)),
    ],
)
def test_a_server_is_reset_as_the_settings_say_and_robot_can(
    setting: str, offered: tuple[str, ...], done: tuple[str | None, str | None], setup: HetznerSetup, deadline: Deadline
) -> None:
    """No technician is called and no running server is switched off; the policy skips what a server cannot do."""
    provider = setup.another(hetzner_reboot=setting)
    setup.set(resets=offered)
    for act, expected in zip((provider.reboot, provider.power_cycle), done, strict=True):
        setup.set(resets_done=[])
        if expected is None:
            with pytest.raises(NotSupported):
                act(A, deadline)
        else:
            act(A, deadline)
        assert setup.server().resets_done == ([expected] if expected else [])


@pytest.mark.parametrize("act", ["reboot", "power_cycle"])
def test_a_server_that_is_off_is_switched_on(act: str, setup: HetznerSetup, deadline: Deadline) -> None:
    """The reset button does nothing to it; the power button would switch a running one off."""
    setup.set(resets=("power", "power_long", "hw", "man"), off=True)
    getattr(setup.provider, act)(A, deadline)
    assert setup.server().resets_done == ["power"]
    assert not setup.server().off
    assert setup.hardware.calls[-1] == ("power_on", A)


def test_a_server_that_hangs_needs_more_than_a_reboot(setup: HetznerSetup, deadline: Deadline) -> None:
    """This is why there is a power cycle."""
    setup.set(hung=True)
    setup.provider.reboot(A, deadline)
    assert setup.server().hung
    setup.provider.power_cycle(A, deadline)
    assert not setup.server().hung
    assert setup.hardware.calls.count(("reboot", A)) == 1


def test_a_technician_at_work_is_waited_for(setup: HetznerSetup, deadline: Deadline) -> None:
    """Somebody asked for a reset by hand; until it is done, Robot does none."""
    setup.set(technician=True)
    with pytest.raises(ProviderUnavailable, match="RESET_MANUAL_ACTIVE"):
        setup.provider.power_cycle(A, deadline)


# Reinstalls


@pytest.mark.parametrize(
    ("settings", "booted"),
    [
        ({}, "linux Debian 12 base"),
        ({"hetzner_dist": "Ubuntu 24.04 LTS base"}, "linux Ubuntu 24.04 LTS base"),
        ({"hetzner_reinstall": "rescue"}, "rescue linux"),
    ],
)
def test_a_reinstall_boots_what_the_settings_say(
    settings: dict[str, Any], booted: str, setup: HetznerSetup, deadline: Deadline
) -> None:
    """Once: the boot after it is an ordinary one."""
    setup.another(**settings).reinstall(A, deadline)
    assert setup.server().boots_done == [booted]
    assert setup.server().resets_done == ["hw"]
    assert setup.hardware.calls[-1] == ("reinstall", A)
    setup.provider.reboot(A, deadline)
    assert setup.server().boots_done == [booted, "disk"]


def test_a_reinstalled_server_lets_our_key_in(setup: HetznerSetup, deadline: Deadline) -> None:
    """Only our key is authorized, and no password; without it we could not log in."""
    setup.robot.faults.add(FakeAnswer(method="POST", path="/reset/*", status=500))
    setup.robot.faults.add(FakeAnswer(method="DELETE", times=0, status=500))
    with pytest.raises(ProviderUnavailable):
        setup.provider.reinstall(A, deadline)
    armed = setup.server().armed
    assert armed is not None
    assert armed.keys == tuple(key.fingerprint for key in setup.robot.ssh_keys())
    assert [(key.name, key.line) for key in setup.robot.ssh_keys()] == [("shepherd-key", f"ssh-ed25519 {BLOB}")]


@pytest.mark.parametrize("act", ["reboot", "power_cycle"])
@pytest.mark.parametrize(("kind", "choice"), [("linux", "Debian 12 base"), ("rescue", "linux")])
def test_a_reboot_is_no_reinstall(kind: str, choice: str, act: str, setup: HetznerSetup, deadline: Deadline) -> None:
    """An invocation died between arming and resetting; days later a plain reboot would erase the machine."""
    key = setup.robot.add_key("shepherd-key", PUBLIC_KEY)
    setup.robot.arm(11, kind, choice, (key.fingerprint,))
    getattr(setup.provider, act)(A, deadline)
    assert setup.server().boots_done == ["disk"]


@pytest.mark.parametrize("armed", [("linux", "Debian 12 base", 0), ("rescue", "linux", 1), ("vnc", "", 0)])
@pytest.mark.parametrize("act", ["reboot", "power_cycle", "reinstall"])
def test_an_activation_by_others_is_left_alone(
    act: str, armed: tuple[str, str, int], setup: HetznerSetup, deadline: Deadline
) -> None:
    """They are at work on the machine, or forgot it; a reset would erase it in their name."""
    kind, choice, keys = armed
    other = setup.robot.add_key("somebody", OTHER_PUBLIC_KEY)
    setup.robot.arm(11, kind, choice, (other.fingerprint,) * keys)
    with pytest.raises(ProviderRefused, match=f"{kind!r}, not by Shepherd"):
        getattr(setup.provider, act)(A, deadline)
    assert setup.server().armed is not None
    assert setup.server().resets_done == []


def test_a_session_that_ends_in_between_leaves_nothing_to_a_reboot(setup: HetznerSetup, deadline: Deadline) -> None:
    """Deactivation is a change too, and must not happen after the deadline; the next reboot does it."""
    setup.provider._key.ensure(deadline)
    left = iter([1, 0, 0])
    with pytest.raises(SessionExpired):
        setup.provider.reinstall(A, Deadline(SystemClock(), 60, lambda: next(left)))
    assert setup.server().armed is not None
    assert setup.server().resets_done == []
    setup.another().reboot(A, deadline)
    assert setup.server().boots_done == ["disk"]


@pytest.mark.parametrize("fault", [{"status": 500}, {"status": 409, "body": {"error": {"code": "CONFLICT"}}}])
def test_a_reset_that_fails_disarms(fault: dict[str, Any], setup: HetznerSetup, deadline: Deadline) -> None:
    """Until somebody tries again, a machine that reboots by itself must come back as it was."""
    setup.robot.faults.add(FakeAnswer(method="POST", path="/reset/*", **fault))
    with pytest.raises(ProviderError):
        setup.provider.reinstall(A, deadline)
    assert setup.server().armed is None
    setup.provider.reinstall(A, deadline)
    assert setup.server().boots_done == ["linux Debian 12 base"]


def test_arming_with_an_unknown_outcome_is_undone(setup: HetznerSetup, deadline: Deadline) -> None:
    """The answer was lost, not the request."""
    setup.robot.faults.add(Drop(method="POST", path="/boot/**", when="after"))
    with pytest.raises(ProviderUnavailable):
        setup.provider.reinstall(A, deadline)
    assert setup.server().armed is None
    assert setup.server().resets_done == []


def test_nothing_is_armed_without_time_to_reset(setup: HetznerSetup, clock: ManualClock) -> None:
    """It would be left behind."""
    with pytest.raises(TimeLimitExceeded, match="was not armed"):
        setup.provider.reinstall(A, Deadline(clock, 9))
    assert setup.server().armed is None


def test_an_activation_of_an_earlier_call_is_replaced(setup: HetznerSetup, deadline: Deadline) -> None:
    """With the distribution of today's settings."""
    key = setup.robot.add_key("shepherd-key", PUBLIC_KEY)
    setup.robot.arm(11, "rescue", "linux", (key.fingerprint,))
    setup.provider.reinstall(A, deadline)
    assert setup.server().boots_done == ["linux Debian 12 base"]


def test_an_activation_that_robot_did_not_show_is_replaced(setup: HetznerSetup, deadline: Deadline) -> None:
    """Its listing was stale, or a concurrent invocation was faster."""
    key = setup.robot.add_key("shepherd-key", PUBLIC_KEY)
    setup.robot.arm(11, "linux", "Rocky Linux 9 base", (key.fingerprint,))
    setup.robot.faults.add(FakeAnswer(method="GET", path="/boot/*", status=200, body={"boot": {"linux": None}}))
    setup.provider.reinstall(A, deadline)
    assert setup.server().boots_done == ["linux Debian 12 base"]


def test_an_activation_that_always_loses_the_race_is_given_up(setup: HetznerSetup, deadline: Deadline) -> None:
    """What the other one armed is theirs to start."""
    body = {"error": {"status": 409, "code": "BOOT_ALREADY_ENABLED", "message": "again"}}
    setup.robot.faults.add(FakeAnswer(method="POST", path="/boot/**", times=2, status=409, body=body))
    with pytest.raises(ProviderUnavailable, match="is being armed by another client"):
        setup.provider.reinstall(A, deadline)
    assert setup.robot.calls["DELETE", "/boot/{number}/linux"] == 0
    assert setup.server().resets_done == []


def test_a_distribution_that_robot_does_not_have_is_refused_by_name(setup: HetznerSetup, deadline: Deadline) -> None:
    """The operator must learn which setting is wrong; the machine stays as it is."""
    with pytest.raises(ProviderRefused, match="INVALID_INPUT: invalid_input: invalid dist"):
        setup.another(hetzner_dist="Slackware").reinstall(A, deadline)
    assert setup.server().resets_done == []


@pytest.mark.parametrize("boots", [(), ("rescue",)])
def test_a_server_that_cannot_be_installed_is_skipped(
    boots: tuple[str, ...], setup: HetznerSetup, deadline: Deadline
) -> None:
    """It can be rebooted all the same."""
    setup.set(boots=boots)
    with pytest.raises(NotSupported, match="BOOT_NOT_AVAILABLE"):
        setup.provider.reinstall(A, deadline)
    assert setup.server().resets_done == []
    setup.provider.reboot(A, deadline)
    assert setup.server().boots_done == ["disk"]


def test_a_server_that_cannot_be_reset_is_not_armed(setup: HetznerSetup, deadline: Deadline) -> None:
    """The time of its next boot is unknown."""
    setup.set(resets=("man",))
    with pytest.raises(NotSupported):
        setup.provider.reinstall(A, deadline)
    assert setup.server().armed is None


# Our SSH key
