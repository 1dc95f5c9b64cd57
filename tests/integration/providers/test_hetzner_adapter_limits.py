"""How the adapter of Hetzner's dedicated servers minds the limits of the web service, and its lock-out."""

import base64
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors.provider import ProviderError, ProviderRefused, ProviderUnavailable
from shepherd_core.domain.machine import ProviderId
from shepherd_core.providers.hetzner.adapter import HetznerProvider
from shepherd_core.providers.hetzner.api import LOCKOUT_SECONDS
from shepherd_core.settings.providers.hetzner import HetznerSettings

from simulator.environment.faults import FakeAnswer
from simulator.providers.hetzner.robot import HetznerRobot, RobotOptions
from simulator.providers.kit.hardware import NoHardware
from tests.conftest import ManualClock
from tests.support.providers.description import Description

USER = "#ws+made-up"
PASSWORD = "the-right-password"
RIGHT = f"{USER}:{PASSWORD}"
WRONG = f"{USER}:an-old-password"
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHb1Jc7TZl0g8cFz7h5oVb5Gg2c0J5s0n1p6c9w3Qk7d shepherd"
SERVER = ProviderId("1000")


@pytest.fixture
def robot(clock: ManualClock) -> Iterator[HetznerRobot]:
    """Return an account with a server; its hours are the test's, and only a few requests fit into them."""
    options = RobotOptions(limits={"GET /server": 40, "POST /reset/{number}": 2}, clock=clock.monotonic)
    with HetznerRobot(NoHardware(), user=USER, password=PASSWORD, servers=1, options=options) as service:
        Description("hetzner").hold(service)
        yield service
        assert service.errors == []


def provider(robot: HetznerRobot, clock: ManualClock, credential: Callable[[], str] = lambda: RIGHT) -> HetznerProvider:
    """Return an adapter with a memory of its own, as every environment of a function has."""
    settings = HetznerSettings(
        credential_parameter="/unused",
        hetzner_name_prefix="server-",
        hetzner_key_name="shepherd",
        hetzner_api_url=robot.url,
    )
    return HetznerProvider(settings, credential, lambda: PUBLIC_KEY, clock)


# Limits


def test_a_limit_says_when_to_come_back(robot: HetznerRobot, clock: ManualClock, deadline: Deadline) -> None:
    """It comes with status 403, which elsewhere means never; and asking again at once cannot help."""
    one = provider(robot, clock)
    for _ in range(20):
        one.list_machines(deadline)
        one.get_machine(SERVER, deadline)
    asked = robot.calls.total()
    with pytest.raises(ProviderUnavailable, match="403: RATE_LIMIT_EXCEEDED") as caught:
        one.list_machines(deadline)
    assert caught.value.retry_after == 3_600
    assert robot.calls.total() == asked + 1
    assert clock.slept == []
    clock.now += 3_600
    assert len(one.list_machines(deadline)) == 1


def test_a_limit_of_unknown_length_is_an_hour(robot: HetznerRobot, clock: ManualClock, deadline: Deadline) -> None:
    """All windows of the description are."""
    robot.faults.add(FakeAnswer(times=0, status=403, body={"error": {"code": "RATE_LIMIT_EXCEEDED", "interval": None}}))
    with pytest.raises(ProviderUnavailable) as caught:
        provider(robot, clock).list_machines(deadline)
    assert caught.value.retry_after == 3_600


def test_resets_beyond_the_limit_are_repeated_later(
    robot: HetznerRobot, clock: ManualClock, deadline: Deadline
) -> None:
    """Fifty an hour, while half a fleet may become unhealthy at once; nothing was done, and nothing stays armed."""
    one = provider(robot, clock)
    one.reboot(SERVER, deadline)
    one.power_cycle(SERVER, deadline)
    with pytest.raises(ProviderUnavailable, match="POST /reset/1000: 403: RATE_LIMIT_EXCEEDED"):
        one.reinstall(SERVER, deadline)
    assert robot.servers()[0].armed is None
    clock.now += 3_600
    one.reinstall(SERVER, deadline)


# The credential


def test_a_refused_credential_is_sent_once(robot: HetznerRobot, clock: ManualClock, deadline: Deadline) -> None:
    """The third failure locks out everybody behind our address; asking again, by whatever method, is one more."""
    one = provider(robot, clock, lambda: WRONG)
    for _ in range(3):
        with pytest.raises(ProviderRefused):
            one.list_machines(deadline)
        with pytest.raises(ProviderRefused):
            one.reboot(SERVER, deadline)
    assert robot.failed_logins == 1
    assert len(provider(robot, clock).list_machines(deadline)) == 1


def test_a_refused_credential_is_sent_once_by_all_threads(
    robot: HetznerRobot, clock: ManualClock, deadline: Deadline
) -> None:
    """A batch of machines begins at the same time with the same credential."""
    one = provider(robot, clock, lambda: WRONG)

    def attempt(_: int) -> str:
        with pytest.raises(ProviderRefused) as caught:
            one.reboot(SERVER, deadline)
        return str(caught.value)

    with ThreadPoolExecutor(10) as pool:
        said = list(pool.map(attempt, range(20)))
    assert robot.failed_logins == 1
    assert sum("401" in text for text in said) == 1
    assert sum("not sent: the credential was refused; retry in 600 s" in text for text in said) == 19


def test_a_refused_credential_is_tried_again_when_a_lock_out_must_be_over(
    robot: HetznerRobot, clock: ManualClock, deadline: Deadline
) -> None:
    """Others may have locked our address out: then ours was right all the time."""
    one = provider(robot, clock)
    for _ in range(3):
        requests.get(f"{robot.url}/server", auth=("somebody", "else"), timeout=10)
    with pytest.raises(ProviderRefused, match="401: UNAUTHORIZED"):
        one.list_machines(deadline)
    clock.now += LOCKOUT_SECONDS - 1
    with pytest.raises(ProviderRefused, match="not sent"):
        one.list_machines(deadline)
    clock.now += 1
    assert len(one.list_machines(deadline)) == 1


def test_a_replaced_credential_is_used_at_once(robot: HetznerRobot, clock: ManualClock, deadline: Deadline) -> None:
    """Whether it was replaced before the refusal, or after it."""
    current = [WRONG]
    one = provider(robot, clock, lambda: current[0])
    with pytest.raises(ProviderRefused):
        one.list_machines(deadline)
    current[0] = RIGHT
    one.reboot(SERVER, deadline)
    assert robot.failed_logins == 1
    current = [WRONG, RIGHT]
    assert len(provider(robot, clock, lambda: current.pop(0)).list_machines(deadline)) == 1
    assert robot.failed_logins == 2


@pytest.mark.parametrize("broken", ["the-secret", "user:", ":the-secret", ""])
def test_a_credential_of_another_form_is_not_sent(
    broken: str, robot: HetznerRobot, clock: ManualClock, deadline: Deadline
) -> None:
    """It can only fail, and would count."""
    one = provider(robot, clock, lambda: broken)
    for _ in range(2):
        with pytest.raises(ProviderRefused) as caught:
            one.list_machines(deadline)
        assert "the-secret" not in "".join(traceback.format_exception(caught.value))
    assert robot.calls.total() == 0


def test_the_password_is_in_no_error(robot: HetznerRobot, clock: ManualClock, deadline: Deadline) -> None:
    """Neither as it is nor as it is sent; the answers of boot configurations hold passwords of their own."""
    encoded = base64.b64encode(RIGHT.encode()).decode()
    for body in (
        {"error": {"code": PASSWORD, "message": encoded, "invalid": [RIGHT]}},
        {"error": f"{PASSWORD} {encoded}"},
        {"boot": {"linux": {"active": True, "password": PASSWORD, "authorized_key": PASSWORD}}},
        {"reset": {"type": PASSWORD}},
    ):
        for status in (200, 400, 500):
            robot.faults.clear()
            robot.faults.add(FakeAnswer(path="/boot/**", times=0, status=status, body=body))
            robot.faults.add(FakeAnswer(path="/reset/**", nth=2, times=0, status=status, body=body))
            robot.faults.add(FakeAnswer(path="/key", times=0, status=status, body=body))
            with pytest.raises(ProviderError) as caught:
                provider(robot, clock).reinstall(SERVER, deadline)
            shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
            assert PASSWORD not in shown
            assert encoded not in shown
