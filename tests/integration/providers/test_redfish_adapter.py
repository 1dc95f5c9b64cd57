"""What the redfish adapter does with the power of machines, and with what they boot from."""

import json
from collections.abc import Iterator
from contextlib import nullcontext as does_not_raise
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from shepherd_core.domain.clock import Deadline, Permission, SystemClock
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.errors.provider import NotSupported, ProviderRefused, ProviderUnavailable
from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.domain.provider import Capability

from simulator.environment.faults import Delay, Drop, FakeAnswer
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.redfish.bmcs import RedfishRack
from tests.conftest import ManualClock
from tests.support.providers.redfish_rack import NAME, RESET, Site

INSERT = "/**/Actions/VirtualMedia.InsertMedia"


@pytest.fixture
def site(tmp_path: Path, clock: ManualClock) -> Iterator[Site]:
    """Return a rack of two machines that only remember what was done to them."""
    pool = NoHardware()
    with RedfishRack(pool, tmp_path, machines=2) as rack:
        yield Site(pool, rack, clock, Deadline(clock, 120))
        assert rack.errors == []


# Restarts

ALL = ("On", "ForceOff", "GracefulShutdown", "GracefulRestart", "ForceRestart", "PowerCycle", "Nmi", "ForceOn")


@pytest.mark.parametrize("action_info", [False, True])
@pytest.mark.parametrize(
    ("offered", "graceful", "sent"),
    [
        (ALL, False, ["ForceRestart"]),
        (ALL, True, ["GracefulRestart"]),
        (("On", "ForceOff", "ForceRestart"), True, ["ForceRestart"]),
        (("On", "ForceOff", "GracefulRestart", "PowerCycle"), False, ["PowerCycle"]),
        (("On", "ForceOff", "GracefulRestart"), False, ["ForceOff", "On"]),
        (("ForceOn", "ForceOff"), False, ["ForceOff", "ForceOn"]),
    ],
)
def test_a_reboot_is_what_the_bmc_offers(
    site: Site, *, offered: tuple[str, ...], graceful: bool, sent: list[str], action_info: bool
) -> None:
    """BMCs differ in what they can, and say so in one of two places; force is what cures a machine that hangs."""
    site.bmc.reset_types, site.bmc.action_info = offered, action_info
    site.provider(graceful=graceful).reboot(NAME, site.permission)
    site.rack.wait_until_idle()
    assert site.bmc.resets == sent
    assert site.rack.power(NAME) == "On"
    assert site.rack.starts(NAME) == 1


def test_a_bmc_that_does_not_get_to_say_what_it_offers_is_asked_later(site: Site) -> None:
    """To take it for one that says nothing, and so offers all, would be to send what it may not have."""
    site.bmc.reset_types, site.bmc.action_info = ("On", "ForceOff"), True
    site.bmc.faults.add(FakeAnswer(method="GET", path=f"{site.bmc.system}/ResetActionInfo", times=0, status=503))
    with pytest.raises(ProviderUnavailable):
        site.provider().reboot(NAME, site.permission)
    assert site.bmc.resets == []


@pytest.mark.parametrize(
    ("offered", "sent"), [(ALL, ["PowerCycle"]), (("On", "ForceOff", "ForceRestart"), ["ForceOff", "On"])]
)
def test_a_power_cycle_cuts_the_power(site: Site, offered: tuple[str, ...], sent: list[str]) -> None:
    """A restart does not reset what only loses its mind without power."""
    site.bmc.reset_types = offered
    site.provider().power_cycle(NAME, site.permission)
    site.rack.wait_until_idle()
    assert site.bmc.resets == sent
    assert site.rack.starts(NAME) == 1


@pytest.mark.parametrize("action", ["reboot", "power_cycle"])
@pytest.mark.parametrize("offered", [("Nmi",), ("ForceOff", "Nmi"), ("On", "Nmi")])
def test_a_machine_that_cannot_be_restarted_is_left_as_it_is(site: Site, action: str, offered: tuple[str, ...]) -> None:
    """To switch off what cannot be switched on again would be the end of it."""
    site.bmc.reset_types = offered
    site.override("Once")
    with pytest.raises(NotSupported, match=r"offers no .*, only .*Nmi"):
        getattr(site.provider(), action)(NAME, site.permission)
    assert (site.bmc.resets, site.bmc.override) == ([], "Once")


@pytest.mark.parametrize("action", ["reboot", "power_cycle"])
def test_a_machine_that_is_off_is_switched_on(site: Site, action: str) -> None:
    """Many BMCs refuse to restart a machine that is off, and the machine must run afterwards."""
    site.switch_off()
    getattr(site.provider(), action)(NAME, site.permission)
    site.rack.wait_until_idle()
    assert site.bmc.resets == ["On"]
    assert site.rack.power(NAME) == "On"


@pytest.mark.parametrize(
    "state", ["PoweringOff", "PoweringOn", "Paused", None, "Off-ish", "off", "", 0, False, ["Off"]]
)
def test_unknown_is_not_off(site: Site, state: object) -> None:
    """To switch on what runs does nothing: a machine that hangs would hang on."""
    site.bmc.power = state
    adapter = site.provider()
    assert adapter.get_machine(NAME, site.deadline).status is ProviderStatus.UNKNOWN
    assert adapter.list_machines(site.deadline)[0].status is ProviderStatus.UNKNOWN
    adapter.reboot(NAME, site.permission)
    assert site.bmc.resets == ["ForceRestart"]


@pytest.mark.parametrize("state", ["On", "PoweringOff", None])
def test_a_machine_that_does_not_go_off_is_not_switched_on(site: Site, state: object) -> None:
    """Sent too early, On does nothing, and a machine that goes off late stays off."""
    site.bmc.power = state
    with pytest.raises(ProviderUnavailable, match="not reported to be off"):
        site.provider(seconds=60).power_cycle(NAME, site.permission)
    assert site.bmc.resets == ["ForceOff"]
    assert sum(site.clock.slept) <= 60


def test_a_bmc_may_be_busy_while_the_machine_goes_off(site: Site) -> None:
    """Given up half-way, the machine would stay off until the next attempt."""
    site.bmc.faults.add(FakeAnswer(method="GET", path=site.bmc.system, nth=3, times=4, status=503))
    site.provider().power_cycle(NAME, site.permission)
    assert site.bmc.resets == ["ForceOff", "On"]


@pytest.mark.parametrize("again", ["reboot", "power_cycle"])
def test_a_power_cycle_that_died_half_way_is_finished_by_the_next_restart(site: Site, again: str) -> None:
    """The machine is off then, and nothing else would switch it on."""
    # The session ends with the first effect, as if the function had died there.
    dying = Permission(Deadline(site.clock, 120, session_left=lambda: 0.0 if site.bmc.resets else 1.0))
    adapter = site.provider()
    with pytest.raises(SessionExpired, match="; the machine is off"):
        adapter.power_cycle(NAME, dying)
    assert site.bmc.resets == ["ForceOff"]
    assert site.rack.power(NAME) == "Off"
    getattr(adapter, again)(NAME, site.permission)
    site.rack.wait_until_idle()
    assert site.bmc.resets == ["ForceOff", "On"]
    assert site.rack.power(NAME) == "On"


# What it boots from


@pytest.mark.parametrize("action", ["reboot", "power_cycle"])
@pytest.mark.parametrize("source", [None, "pxe"])
def test_a_plain_restart_never_reinstalls(site: Site, action: str, source: str | None) -> None:
    """An override that somebody set and never used would wipe the machine at a reboot that means to keep it."""
    site.override("Once")
    getattr(site.provider(reinstall=source), action)(NAME, site.permission)
    site.rack.wait_until_idle()
    assert site.done == ["power_off", "power_on"]
    assert site.bmc.override == "Disabled"


@pytest.mark.parametrize("action", ["reboot", "power_cycle"])
def test_an_override_that_waits_for_the_next_reset_is_taken_back(site: Site, action: str) -> None:
    """Some BMCs show what was asked for elsewhere until it holds, and then it is too late."""
    site.bmc.pending = {"BootSourceOverrideTarget": "Pxe", "BootSourceOverrideEnabled": "Once"}
    getattr(site.provider(), action)(NAME, site.permission)
    site.rack.wait_until_idle()
    assert site.done == ["power_off", "power_on"]


def test_a_reinstallation_may_be_asked_for_in_a_resource_of_its_own(site: Site) -> None:
    """It holds when the machine is switched on, and for no boot after that."""
    site.bmc.pending = {"BootSourceOverrideTarget": "None", "BootSourceOverrideEnabled": "Disabled"}
    adapter = site.provider(reinstall="pxe")
    adapter.reinstall(NAME, site.permission)
    adapter.reboot(NAME, site.permission)
    site.rack.wait_until_idle()
    assert site.done == ["power_off", "reinstall", "power_off", "power_on"]


def test_a_permanent_boot_override_is_left_alone(site: Site) -> None:
    """With a permanent network boot, the boot server decides what machines boot."""
    site.override("Continuous")
    site.provider().reboot(NAME, site.permission)
    assert site.bmc.override == "Continuous"
    assert not [call for call in site.bmc.calls if call.startswith("PATCH")]


@pytest.mark.parametrize("shown", ["Disabled", "Continuous"])
def test_a_bmc_is_not_believed_about_the_boot_override(site: Site, shown: str) -> None:
    """Some show one that waits as disabled, or one for one boot as lasting: a plain restart would wipe the machine."""
    site.override("Once")
    site.bmc.shown_override = shown
    site.provider(reinstall="pxe").reboot(NAME, site.permission)
    site.rack.wait_until_idle()
    assert site.done == ["power_off", "power_on"]


@pytest.mark.parametrize("source", [None, "pxe"])
def test_a_bmc_that_cannot_clear_a_cleared_override_is_restarted_unless_one_may_be_ours(
    site: Site, source: str | None
) -> None:
    """Where Shepherd sets no override, there is nothing to be afraid of."""
    site.bmc.faults.add(FakeAnswer(method="PATCH", times=0, status=400))
    expected = does_not_raise() if source is None else pytest.raises(ProviderRefused)
    with expected:
        site.provider(reinstall=source).reboot(NAME, site.permission)
    assert site.bmc.resets == ["ForceRestart"] * (source is None)


def test_an_override_that_cannot_be_taken_back_stops_the_restart(site: Site) -> None:
    """A machine that hangs is better than one that is wiped."""
    site.override("Once")
    site.bmc.faults.add(FakeAnswer(method="PATCH", times=0, status=400))
    with pytest.raises(ProviderRefused):
        site.provider().reboot(NAME, site.permission)
    assert site.bmc.resets == []


@pytest.mark.parametrize("media", [False, True])
def test_a_reinstallation_boots_once_from_the_source(site: Site, media: bool) -> None:
    """The boot after it must find what was installed."""
    adapter = site.provider(reinstall=site.source(media=media))
    adapter.reinstall(NAME, site.permission)
    site.rack.wait_until_idle()
    assert site.done == ["power_off", "reinstall"]
    assert site.inserted == media
    adapter.reboot(NAME, site.permission)
    site.rack.wait_until_idle()
    assert site.done == ["power_off", "reinstall", "power_off", "power_on"]
    assert not site.inserted


def test_another_image_in_the_drive_gives_way_and_is_otherwise_left_alone(site: Site) -> None:
    """Somebody may have put it there to rescue the machine."""
    other = f"{site.rack.image_url}?rescue"
    site.bmc._forwarded("POST", f"{site.bmc.system}/VirtualMedia/Cd/Actions/VirtualMedia.InsertMedia", {"Image": other})
    adapter = site.provider(reinstall=site.rack.image_url)
    adapter.reboot(NAME, site.permission)
    assert site.inserted
    adapter.reinstall(NAME, site.permission)
    assert site.inserted
    assert site.bmc.resets == ["ForceRestart", "ForceOff", "On"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("media", "method", "path", "nth"),
    [
        (media, *request)
        for media in (False, True)
        for request in [("POST", RESET, 1), ("POST", INSERT, 1), ("PATCH", "**", 1), ("POST", RESET, 2)]
        if media or INSERT not in request  # PXE inserts nothing
    ],
)
def test_a_reinstallation_that_died_does_not_happen_at_a_later_restart(
    site: Site, *, media: bool, when: Any, method: Any, path: str, nth: int
) -> None:
    """Wherever it died: it happens at once, with nothing run in between, or not at all."""
    site.bmc.faults.add(Drop(method=method, path=path, nth=nth, when=when))
    adapter = site.provider(reinstall=site.source(media=media))
    with pytest.raises(ProviderUnavailable):
        adapter.reinstall(NAME, site.permission)
    site.rack.wait_until_idle()
    happened = site.done
    assert happened in ([], ["power_off"], ["power_off", "power_on"], ["power_off", "reinstall"])
    if site.rack.power(NAME) == "On":
        assert site.bmc.override == "Disabled"  # nothing waits for a machine that runs
    adapter.reboot(NAME, site.permission)
    site.rack.wait_until_idle()
    assert "reinstall" not in site.done[len(happened) :]
    assert site.rack.power(NAME) == "On"
    assert not site.inserted


def test_a_machine_that_cannot_be_reinstalled_is_not_switched_off(site: Site) -> None:
    """What the BMC lacks can be seen before anything is done."""
    site.bmc.faults.add(FakeAnswer(path="/**/VirtualMedia", times=0, status=404))
    with pytest.raises(NotSupported, match="no virtual CD"):
        site.provider(reinstall=site.rack.image_url).reinstall(NAME, site.permission)
    site.bmc.reset_types = ("ForceOff", "ForceRestart")
    with pytest.raises(NotSupported, match="offers no On"):
        site.provider(reinstall="pxe").reinstall(NAME, site.permission)
    assert site.bmc.resets == []


def test_a_bmc_that_names_no_virtual_drives_has_none(site: Site) -> None:
    """Neither at its system nor at a manager: the property is optional, and sushy raises an error for it."""
    system = json.loads(site.bmc._forwarded("GET", site.bmc.system, None).body)
    del system["VirtualMedia"], system["Links"]["ManagedBy"]
    site.bmc.faults.add(FakeAnswer(method="GET", path=site.bmc.system, times=0, status=200, body=system))
    with pytest.raises(NotSupported, match="no virtual CD"):
        site.provider(reinstall=site.rack.image_url).reinstall(NAME, site.permission)
    assert site.bmc.resets == []


@pytest.mark.parametrize(
    ("method", "path", "nth"), [("POST", INSERT, 1), ("POST", RESET, 1), ("PATCH", "**", 1), ("POST", RESET, 2)]
)
def test_a_reinstallation_that_is_refused_leaves_the_machine_running(
    site: Site, method: Any, path: str, nth: int
) -> None:
    """A BMC that could not fetch the image left its machine off, and every further attempt found it so."""
    site.bmc.faults.add(FakeAnswer(method=method, path=path, nth=nth, times=1, status=400))
    with pytest.raises(ProviderRefused, match="400"):
        site.provider(reinstall=site.rack.image_url).reinstall(NAME, site.permission)
    site.rack.wait_until_idle()
    assert site.rack.power(NAME) == "On"
    assert "reinstall" not in site.done
    assert not site.inserted
    assert site.bmc.override == "Disabled"


@pytest.mark.parametrize("status", [400, 503])
def test_a_restart_that_is_refused_in_the_middle_says_that_the_machine_is_off(site: Site, status: int) -> None:
    """The next restart switches it on; until then an operator may wonder."""
    site.bmc.reset_types = ("On", "ForceOff")
    site.bmc.faults.add(FakeAnswer(method="POST", path=RESET, nth=2, times=3, status=status))
    with pytest.raises((ProviderRefused, ProviderUnavailable), match="; the machine is off"):
        site.provider().power_cycle(NAME, site.permission)
    site.provider().reboot(NAME, site.permission)
    assert site.bmc.resets == ["ForceOff", "On"]


@pytest.mark.parametrize("status", [400, 503])
def test_a_machine_that_was_switched_off_is_switched_on_again(site: Site, status: int) -> None:
    """Some BMCs refuse it for the first seconds; a machine that is off waits for the next attempt, an hour later."""
    site.bmc.reset_types = ("On", "ForceOff")
    site.bmc.faults.add(FakeAnswer(method="POST", path=RESET, nth=2, times=2, status=status))
    site.provider().power_cycle(NAME, site.permission)
    assert site.bmc.resets == ["ForceOff", "On"]


def test_time_is_left_to_switch_on_what_was_switched_off(site: Site) -> None:
    """A BMC that is busy for all the time that a machine has to go off does not leave it off."""
    site.bmc.reset_types = ("On", "ForceOff")
    site.bmc.faults.add(FakeAnswer(method="GET", path=site.bmc.system, nth=3, times=37, status=503))
    site.provider(seconds=30).power_cycle(NAME, Permission(Deadline(site.clock, 40)))
    assert site.bmc.resets == ["ForceOff", "On"]
    assert 28 < sum(site.clock.slept) < 40


def test_a_machine_whose_time_is_up_may_be_off(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the failure is: an operator who reads it must know."""
    sleep = site.clock.sleep
    monkeypatch.setattr(site.clock, "sleep", lambda _: sleep(200))
    site.bmc.reset_types = ("On", "ForceOff")
    site.bmc.faults.add(FakeAnswer(method="GET", path=site.bmc.system, nth=3, times=0, status=503))
    with pytest.raises(ProviderUnavailable, match="; the machine may be off"):
        site.provider().power_cycle(NAME, site.permission)


@pytest.mark.parametrize("action", ["power_cycle", "reinstall"])
@pytest.mark.parametrize("answered", [True, False])
def test_a_machine_that_goes_off_late_may_be_off(site: Site, action: str, *, answered: bool) -> None:
    """The BMC may carry out what it accepted after the adapter has given up."""
    site.bmc.reset_types = ("On", "ForceOff")
    running = json.loads(site.bmc._forwarded("GET", site.bmc.system, None).body)
    site.bmc.faults.add(FakeAnswer(method="GET", path=site.bmc.system, nth=2, times=0, status=200, body=running))
    if not answered:
        site.bmc.faults.add(Drop(method="POST", path=RESET))
    with pytest.raises(ProviderUnavailable, match="; the machine may be off"):
        getattr(site.provider(reinstall="pxe"), action)(NAME, site.permission)


@pytest.mark.parametrize(
    "change",
    [
        {"Boot": {"BootSourceOverrideTarget@Redfish.AllowableValues": ["Pxe"]}},
        {"Boot": 5},
        {"Actions": {}},
        {"Actions": 5},
        {"Id": None},
    ],
)
def test_a_reinstallation_that_is_not_understood_leaves_the_machine_running(site: Site, change: Any) -> None:
    """What a BMC shows of a machine that is off may be something else: no error may leave it off."""
    system = json.loads(site.bmc._forwarded("GET", site.bmc.system, None).body)
    shown = {name: value for name, value in {**system, "PowerState": "Off", **change}.items() if value is not None}
    site.bmc.faults.add(FakeAnswer(method="GET", path=site.bmc.system, nth=3, times=1, status=200, body=shown))
    with suppress(ProviderRefused, ProviderUnavailable):
        site.provider(reinstall=site.rack.image_url).reinstall(NAME, site.permission)
    assert site.bmc.resets[0] == "ForceOff"
    assert len([call for call in site.bmc.calls if call == f"GET {site.bmc.system}"]) >= 3
    site.rack.wait_until_idle()
    assert site.rack.power(NAME) == "On"
    assert site.inserted == ("reinstall" in site.done)


def test_a_machine_that_cannot_be_switched_on_is_reported_as_off(site: Site) -> None:
    """Somebody has to switch it on."""
    site.bmc.faults.add(FakeAnswer(method="POST", path=RESET, nth=2, times=0, status=400))
    with pytest.raises(ProviderRefused, match="the machine is off"):
        site.provider(reinstall="pxe").reinstall(NAME, site.permission)
    assert site.rack.power(NAME) == "Off"


def test_a_bmc_without_a_reset_is_not_supported(site: Site) -> None:
    """Recovery then goes on with the next step at once, as for any provider that cannot."""
    system = json.loads(site.bmc._forwarded("GET", site.bmc.system, None).body)
    del system["Actions"]
    site.bmc.faults.add(FakeAnswer(method="GET", path=site.bmc.system, times=0, status=200, body=system))
    with pytest.raises(NotSupported, match="cannot reset"):
        site.provider().reboot(NAME, site.permission)


def test_it_reinstalls_only_with_a_boot_source(site: Site) -> None:
    """A restart in place of an installation would look like one."""
    without = site.provider()
    assert without.capabilities == {Capability.CREATE, Capability.REBOOT, Capability.POWER_CYCLE}
    with pytest.raises(NotSupported, match="redfish cannot reinstall"):
        without.reinstall(NAME, site.permission)
    assert Capability.REINSTALL in site.provider(reinstall="pxe").capabilities


# The listing


def test_a_listing_has_the_power_states(site: Site) -> None:
    """It is what an operator sees of machines that do not answer."""
    site.switch_off()
    listing = site.provider().list_machines(site.deadline)
    assert [machine.status for machine in listing] == [ProviderStatus.STOPPED, ProviderStatus.RUNNING]


@pytest.mark.parametrize(
    "fault",
    [
        FakeAnswer(times=0, status=503),
        FakeAnswer(times=0, status=403),
        FakeAnswer(times=0, status=200, body="<html>"),
        Drop(times=0),
        Delay(times=0, seconds=3600),
    ],
)
def test_a_bmc_that_does_not_answer_leaves_its_machine_in_the_listing(
    site: Site, deadline: Deadline, fault: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine whose BMC hangs is not gone, nor off; and the others are told of as if nothing were."""
    site.bmc.faults.add(fault)
    time_limit = 2 if isinstance(fault, Delay) else 30
    listing = site.provider(seconds=time_limit).list_machines(deadline)
    assert [(machine.provider_id, machine.status) for machine in listing] == [
        (NAME, ProviderStatus.UNKNOWN),
        ("rack-002", ProviderStatus.RUNNING),
    ]
    assert NAME in capsys.readouterr().out  # why it is unknown


def test_a_listing_takes_no_more_than_half_of_the_time(site: Site) -> None:
    """The caller needs time to use the listing."""
    site.rack.faults.add(Delay(times=0, seconds=3600))
    short = Deadline(SystemClock(), 3)
    listing = site.provider().list_machines(short)
    assert [machine.status for machine in listing] == [ProviderStatus.UNKNOWN] * 2
    short.check()


def test_a_machine_is_taken_without_its_bmc(site: Site) -> None:
    """A creation changes nothing at the BMC, so a broken BMC need not prevent it."""
    adapter = site.provider()
    capacity = adapter.list_machines(site.deadline)[0]
    site.bmc.faults.add(Drop(times=0))
    created = adapter.create_machine(capacity, uuid4(), site.deadline)
    assert (created.provider_id, created.status) == (NAME, ProviderStatus.RUNNING)
