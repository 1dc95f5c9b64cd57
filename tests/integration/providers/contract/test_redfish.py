from collections.abc import Iterator
from contextlib import nullcontext as does_not_raise
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from shepherd_core.domain.clock import Deadline, Permission
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.errors.provider import NotSupported, ProviderRefused, ProviderUnavailable
from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.domain.provider import Capability

from simulator.environment.faults import Drop, FakeAnswer
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.redfish.bmcs import RedfishRack
from tests.conftest import ManualClock
from tests.integration.providers.contract.provider_contract import ProviderContract, Setup
from tests.integration.providers.contract.provider_faults import ProviderFaults
from tests.support.providers.redfish_rack import NAME, RESET, Site, provider

PASSWORD = "made-up:password of a BMC"
SAID = {"error": {"message": f"{PASSWORD} may not", "code": "Base.1.0.GeneralError"}}
INSERT = "/**/Actions/VirtualMedia.InsertMedia"
OFF_AND_ON = ("On", "ForceOff")


class TestRedfish(ProviderContract, ProviderFaults):
    """Listing and creation ask no BMC: they read the list, as the static provider does."""

    lacks = frozenset({"release", "tokens", "places"})

    @pytest.fixture
    def setup(self, clock: ManualClock, tmp_path: Path) -> Iterator[Setup]:
        with RedfishRack(NoHardware(), tmp_path, machines=2) as rack:
            yield Setup(
                provider=provider(rack, clock, reinstall="pxe"),
                capacity_ids=frozenset(rack.names),
                stores_tokens=False,
                requests=lambda: rack.calls,
                settle=rack.wait_until_idle,
                make_refusing=lambda: rack.faults.add(FakeAnswer(times=0, status=403, body=SAID)),
                spoil_listing=lambda: rack.entries.append(rack.entries[0]),
                reboots=rack.starts,
                confuse=lambda one: setattr(rack.bmcs[one], "power", "Unheard-of"),
                secret=PASSWORD,
                one_credential=False,
                lists=False,
                faults=rack.faults,
            )
            assert rack.errors == []


@pytest.fixture
def site(tmp_path: Path, clock: ManualClock) -> Iterator[Site]:
    pool = NoHardware()
    with RedfishRack(pool, tmp_path, machines=2) as rack:
        yield Site(pool, rack, clock, Deadline(clock, 120))
        assert rack.errors == []


ALL = ("On", "ForceOff", "GracefulShutdown", "GracefulRestart", "ForceRestart", "PowerCycle", "Nmi", "ForceOn")


@pytest.mark.parametrize(
    ("action", "offered", "action_info", "graceful", "sent"),
    [
        ("reboot", ALL, False, False, ["ForceRestart"]),
        ("reboot", ALL, True, True, ["GracefulRestart"]),
        ("reboot", (*OFF_AND_ON, "ForceRestart"), False, True, ["ForceRestart"]),
        ("reboot", (*OFF_AND_ON, "GracefulRestart", "PowerCycle"), True, False, ["PowerCycle"]),
        ("reboot", (*OFF_AND_ON, "GracefulRestart"), False, False, ["ForceOff", "On"]),
        ("reboot", ("ForceOn", "ForceOff"), True, False, ["ForceOff", "ForceOn"]),
        ("power_cycle", ALL, False, False, ["PowerCycle"]),
        ("power_cycle", (*OFF_AND_ON, "ForceRestart"), True, False, ["ForceOff", "On"]),
    ],
)
def test_a_restart_is_what_the_bmc_offers(
    site: Site, *, action: str, offered: tuple[str, ...], action_info: bool, graceful: bool, sent: list[str]
) -> None:
    """BMCs differ in what they can, and say so in one of two places; force is what cures a machine that hangs."""
    site.bmc.reset_types, site.bmc.action_info = offered, action_info
    site.act(action, graceful=graceful)
    assert site.bmc.resets == sent
    assert (site.rack.power(NAME), site.rack.starts(NAME)) == ("On", 1)


def test_a_bmc_too_busy_to_show_resets_is_asked_later(site: Site) -> None:
    """To take it for one that says nothing, and so offers all, would be to send what it may not have."""
    site.bmc.reset_types, site.bmc.action_info = OFF_AND_ON, True
    site.bmc.faults.add(FakeAnswer(method="GET", path=f"{site.bmc.system}/ResetActionInfo", times=0, status=503))
    with pytest.raises(ProviderUnavailable):
        site.act("reboot")
    assert site.bmc.resets == []


@pytest.mark.parametrize(
    ("action", "offered"),
    [("reboot", ("Nmi",)), ("power_cycle", ("ForceOff", "Nmi")), ("reboot", ("On", "Nmi")), ("power_cycle", ("On",))],
)
def test_a_machine_that_cannot_be_restarted_is_left_alone(site: Site, action: str, offered: tuple[str, ...]) -> None:
    """To switch off what cannot be switched on again would be the end of it."""
    site.bmc.reset_types = offered
    site.override("Once")
    with pytest.raises(NotSupported, match=r"offers no .*, only "):
        site.act(action)
    assert (site.bmc.resets, site.bmc.override) == ([], "Once")


@pytest.mark.parametrize("action", ["reboot", "power_cycle"])
def test_a_machine_that_is_off_is_switched_on(site: Site, action: str) -> None:
    """Many BMCs refuse to restart a machine that is off, and the machine must run afterwards."""
    site.switch_off()
    listing = site.provider().list_machines(site.deadline)
    assert [machine.status for machine in listing] == [ProviderStatus.STOPPED, ProviderStatus.RUNNING]
    site.act(action)
    assert (site.bmc.resets, site.rack.power(NAME)) == (["On"], "On")


@pytest.mark.parametrize(("action", "sent"), [("reboot", ["On"]), ("power_cycle", ["ForceOff", "On", "On", "On"])])
def test_a_machine_that_stays_off_is_noticed_at_once(site: Site, action: str, sent: list[str]) -> None:
    """Some BMCs accept On and do nothing; an agent start would try for half an hour to reach the machine."""
    site.bmc.reset_types = OFF_AND_ON
    if action == "reboot":
        site.switch_off()

    def ignore(method: str, path: str, body: Any) -> tuple[int, bytes]:
        if isinstance(body, dict) and body.get("ResetType") == "On":
            return 204, b""
        return ask(method, path, body)

    ask, site.bmc._ask = site.bmc._ask, ignore
    with pytest.raises(ProviderUnavailable, match="On was accepted, but the machine is still reported to be off"):
        site.act(action)
    assert site.bmc.resets == sent
    assert sum(site.clock.slept) < 70


@pytest.mark.parametrize("state", ["PoweringOff", None, "off", 0, ["Off"]])
def test_unknown_is_not_off(site: Site, state: object) -> None:
    """To switch on what runs does nothing: a machine that hangs would hang on."""
    site.bmc.power = state
    adapter = site.provider()
    assert adapter.get_machine(NAME, site.deadline).status is ProviderStatus.UNKNOWN
    assert adapter.list_machines(site.deadline)[0].status is ProviderStatus.UNKNOWN
    site.act("reboot")
    assert site.bmc.resets == ["ForceRestart"]


@pytest.mark.parametrize("state", ["On", None])
def test_a_machine_that_stays_on_is_not_switched_on(site: Site, state: object) -> None:
    """Sent too early, On does nothing, and a machine that goes off late stays off."""
    site.bmc.power = state
    with pytest.raises(ProviderUnavailable, match="not reported to be off"):
        site.act("power_cycle", seconds=15)
    assert site.bmc.resets == ["ForceOff"]
    assert sum(site.clock.slept) <= 15


@pytest.mark.parametrize("again", ["reboot", "power_cycle"])
def test_the_next_restart_finishes_a_power_cycle_that_died(site: Site, again: str) -> None:
    """The machine is off then, and nothing else would switch it on."""
    # The session ends with the first effect, as if the function had died there.
    dying = Permission(Deadline(site.clock, 120, session_left=lambda: 0.0 if site.bmc.resets else 1.0))
    with pytest.raises(SessionExpired, match="; the machine is off"):
        site.act("power_cycle", dying)
    assert (site.bmc.resets, site.rack.power(NAME)) == (["ForceOff"], "Off")
    site.act(again)
    assert (site.bmc.resets, site.rack.power(NAME)) == (["ForceOff", "On"], "On")


@pytest.mark.parametrize("status", [400, 503])
@pytest.mark.parametrize(
    ("times", "left"), [(2, does_not_raise()), (3, pytest.raises(Exception, match="; the machine is off"))]
)
def test_a_machine_that_was_switched_off_is_switched_on_again(site: Site, status: int, times: int, left: Any) -> None:
    """Some BMCs refuse it for the first seconds; if it fails, the next restart does it, and an operator must know."""
    site.bmc.reset_types = OFF_AND_ON
    site.bmc.faults.add(FakeAnswer(method="POST", path=RESET, nth=2, times=times, status=status))
    with left as raised:
        site.act("power_cycle")
    if raised:
        assert isinstance(raised.value, ProviderRefused | ProviderUnavailable)
        site.act("reboot")
    assert site.bmc.resets == ["ForceOff", "On"]


def test_time_is_left_to_switch_on_what_was_switched_off(site: Site) -> None:
    """A BMC that is busy for all the time that a machine has to go off does not leave it off."""
    site.bmc.reset_types = OFF_AND_ON
    site.bmc.faults.add(FakeAnswer(method="GET", path=site.bmc.system, nth=3, times=37, status=503))
    site.act("power_cycle", Permission(Deadline(site.clock, 40)), seconds=30)
    assert site.bmc.resets == ["ForceOff", "On"]
    assert 28 < sum(site.clock.slept) < 40


@pytest.mark.parametrize("action", ["power_cycle", "reinstall"])
@pytest.mark.parametrize("answered", [True, False])
def test_a_machine_that_goes_off_late_may_be_off(site: Site, action: str, *, answered: bool) -> None:
    """The BMC may carry out what it accepted after the adapter has given up."""
    site.bmc.reset_types = OFF_AND_ON
    site.bmc.faults.add(
        FakeAnswer(method="GET", path=site.bmc.system, nth=2, times=0, status=200, body=site.shown_system())
    )
    if not answered:
        site.bmc.faults.add(Drop(method="POST", path=RESET))
    with pytest.raises(ProviderUnavailable, match="; the machine may be off"):
        site.act(action, reinstall="pxe")


def test_a_machine_whose_state_is_unknown_may_be_off(site: Site) -> None:
    site.bmc.reset_types = OFF_AND_ON
    site.bmc.faults.add(Drop(method="POST", path=RESET))
    site.bmc.faults.add(FakeAnswer(method="GET", path=site.bmc.system, nth=2, times=0, status=404))
    with pytest.raises(ProviderUnavailable, match="; the machine may be off"):
        site.act("power_cycle")
    assert "On" not in site.bmc.resets


def test_a_system_without_what_every_system_has_is_refused(site: Site) -> None:
    """Another try would see the same."""
    site.bmc.faults.add(FakeAnswer(method="GET", path=site.bmc.system, times=0, status=200, body={}))
    with pytest.raises(ProviderRefused):
        site.act("reboot")


@pytest.mark.parametrize(
    ("action", "source", "shown"),
    [
        ("reboot", None, None),
        ("power_cycle", "pxe", None),
        ("reboot", "pxe", "Disabled"),
        ("power_cycle", "pxe", "Continuous"),
        ("reboot", None, "from the next reset on"),
        ("power_cycle", None, "from the next reset on"),
    ],
)
def test_a_plain_restart_never_reinstalls(site: Site, action: str, source: str | None, shown: str | None) -> None:
    """Some BMCs show an override that waits as disabled, for one boot as lasting, or elsewhere until it is too late."""
    if shown == "from the next reset on":
        site.bmc.pending = {"BootSourceOverrideTarget": "Pxe", "BootSourceOverrideEnabled": "Once"}
    else:
        site.override("Once")
        site.bmc.shown_override = shown
    site.act(action, reinstall=source)
    assert site.done == ["power_off", "power_on"]
    assert site.bmc.override == "Disabled"


def test_a_permanent_boot_override_is_left_alone(site: Site) -> None:
    """With a permanent network boot, the boot server decides what machines boot."""
    site.override("Continuous")
    site.act("reboot")
    assert site.bmc.override == "Continuous"
    assert not [call for call in site.bmc.calls if call.startswith("PATCH")]


@pytest.mark.parametrize(
    ("source", "override", "restarted"), [(None, "Disabled", True), ("pxe", "Disabled", False), (None, "Once", False)]
)
def test_a_bmc_that_clears_no_override_restarts_only_without_one(
    site: Site, source: str | None, override: str, restarted: bool
) -> None:
    """Where Shepherd sets no override, and none is shown, there is nothing to fear; else to hang beats being wiped."""
    site.override(override)
    site.bmc.faults.add(FakeAnswer(method="PATCH", times=0, status=400))
    with does_not_raise() if restarted else pytest.raises(ProviderRefused):
        site.act("reboot", reinstall=source)
    assert site.bmc.resets == ["ForceRestart"] * restarted


@pytest.mark.parametrize("settings", [False, True], ids=["at once", "in a resource of its own"])
@pytest.mark.parametrize("media", [False, True])
def test_a_reinstallation_boots_once_from_the_source(site: Site, media: bool, settings: bool) -> None:
    if settings:
        site.bmc.pending = {"BootSourceOverrideTarget": "None", "BootSourceOverrideEnabled": "Disabled"}
    source = site.source(media=media)
    site.act("reinstall", reinstall=source)
    assert site.done == ["power_off", "reinstall"]
    assert site.inserted == media
    site.act("reboot", reinstall=source)
    assert site.done == ["power_off", "reinstall", "power_off", "power_on"]
    assert not site.inserted


def test_another_image_in_the_drive_gives_way_to_reinstallations_alone(site: Site) -> None:
    """Somebody may have put it there to rescue the machine."""
    other = f"{site.rack.image_url}?rescue"
    site.bmc._forwarded("POST", f"{site.bmc.system}/VirtualMedia/Cd/Actions/VirtualMedia.InsertMedia", {"Image": other})
    for action in ("reboot", "reinstall"):
        site.act(action, reinstall=site.rack.image_url)
        assert site.inserted
    assert site.bmc.resets == ["ForceRestart", "ForceOff", "On"]


@pytest.mark.parametrize("fault", ["lost", "its answer lost", "refused"])
@pytest.mark.parametrize(
    ("media", "method", "path", "nth"),
    [
        (media, *request)
        for media in (False, True)
        for request in [("POST", RESET, 1), ("POST", INSERT, 1), ("PATCH", "**", 1), ("POST", RESET, 2)]
        if media or INSERT not in request  # PXE inserts nothing
    ],
)
def test_a_reinstallation_that_fails_does_not_happen_at_later_restarts(
    site: Site, *, media: bool, fault: str, method: Any, path: str, nth: int
) -> None:
    """Wherever it died: it happens at once, or not at all. A BMC that could not fetch the image left a machine off."""
    request, source = {"method": method, "path": path, "nth": nth}, site.source(media=media)
    if fault == "refused":
        site.bmc.faults.add(FakeAnswer(**request, times=1, status=400))
    else:
        site.bmc.faults.add(Drop(**request, when="before" if fault == "lost" else "after"))
    with pytest.raises(ProviderRefused if fault == "refused" else ProviderUnavailable):
        site.act("reinstall", reinstall=source)
    site.rack.wait_until_idle()
    happened = site.done
    assert happened in ([], ["power_off"], ["power_off", "power_on"], ["power_off", "reinstall"])
    if fault == "refused":
        assert (site.rack.power(NAME), "reinstall" in happened, site.inserted) == ("On", False, False)
    if site.rack.power(NAME) == "On":
        assert site.bmc.override == "Disabled"  # nothing waits for a machine that runs
    site.act("reboot", reinstall=source)
    assert "reinstall" not in site.done[len(happened) :]
    assert site.rack.power(NAME) == "On"
    assert not site.inserted


@pytest.mark.parametrize(
    ("source", "lacking", "words"),
    [
        ("media", "/**/VirtualMedia", "no virtual CD"),
        ("media", "the drives' names", "no virtual CD"),  # sushy raises an error for that
        ("pxe", "On", "offers no On"),
        (None, "", "redfish cannot reinstall"),
    ],
)
def test_a_machine_that_cannot_be_reinstalled_is_not_switched_off(
    site: Site, source: str | None, lacking: str, words: str
) -> None:
    if lacking == "On":
        site.bmc.reset_types = ("ForceOff", "ForceRestart")
    elif lacking.startswith("/"):
        site.bmc.faults.add(FakeAnswer(path=lacking, times=0, status=404))
    elif lacking:
        shown = {name: value for name, value in site.shown_system().items() if name not in {"VirtualMedia", "Links"}}
        site.bmc.faults.add(FakeAnswer(method="GET", path=site.bmc.system, times=0, status=200, body=shown))
    source = site.rack.image_url if source == "media" else source
    always = {Capability.CREATE, Capability.REBOOT, Capability.POWER_CYCLE}
    assert site.provider(reinstall=source).capabilities == always | ({Capability.REINSTALL} if source else set())
    with pytest.raises(NotSupported, match=words):
        site.act("reinstall", reinstall=source)
    assert site.bmc.resets == []


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
    system = {**site.shown_system(), "PowerState": "Off", **change}
    shown = {name: value for name, value in system.items() if value is not None}
    site.bmc.faults.add(FakeAnswer(method="GET", path=site.bmc.system, nth=3, times=1, status=200, body=shown))
    with suppress(ProviderRefused, ProviderUnavailable):
        site.act("reinstall", reinstall=site.rack.image_url)
    assert site.bmc.resets[0] == "ForceOff"
    assert len([call for call in site.bmc.calls if call == f"GET {site.bmc.system}"]) >= 3
    site.rack.wait_until_idle()
    assert site.rack.power(NAME) == "On"
    assert site.inserted == ("reinstall" in site.done)
