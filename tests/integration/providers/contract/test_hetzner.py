import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote_plus
from uuid import UUID

import pytest
from shepherd_core.domain.clock import Deadline, Permission
from shepherd_core.domain.errors import TimeLimitExceeded
from shepherd_core.domain.errors.provider import MachineNotFound, ProviderError, ProviderRefused, ProviderUnavailable
from shepherd_core.domain.machine import Availability, Machine, ProviderId
from shepherd_core.providers.hetzner.adapter import HetznerProvider
from shepherd_core.settings.providers.hetzner import HetznerSettings

from simulator.environment.faults import FakeAnswer
from simulator.providers.hetzner.objects import RobotServer
from simulator.providers.hetzner.robot import HetznerRobot
from simulator.providers.kit.hardware import NoHardware
from tests.conftest import ManualClock
from tests.integration.providers.contract.description import Description
from tests.integration.providers.contract.provider_contract import PUBLIC_KEY, Places, ProviderContract, Setup
from tests.integration.providers.contract.provider_faults import ProviderFaults
from tests.support.providers.scripted_http import Answer, Request, Script, said, scripted_server

PASSWORD = "a-password-that-nobody-may-see"
CREDENTIAL = f"#ws+made-up:{PASSWORD}"
TWICE = [{"server": {"server_number": 321, "server_name": "shepherd-1"}}] * 2


def provider(url: str, clock: ManualClock, **settings: Any) -> HetznerProvider:
    fields = {"credential_parameter": "/unused", "fleet": "shepherd-", "key_name": "ours", "api_url": url, **settings}
    return HetznerProvider(HetznerSettings(**fields), lambda: CREDENTIAL, lambda: PUBLIC_KEY, clock)


class TestHetzner(ProviderContract, ProviderFaults):
    lacks = frozenset({"release", "tokens"})

    @pytest.fixture
    def setup(self, clock: ManualClock) -> Iterator[Setup]:
        hardware = NoHardware()
        servers = [
            RobotServer(id="11", name="shepherd-a"),
            RobotServer(id="12", name="shepherd-b", resets=("power", "power_long", "hw", "man")),
            RobotServer(id="13", name="shepherd-c", ipv4=False),
            RobotServer(id="14", name="shepherd-d", cancelled=True),
            RobotServer(id="15", name="web-server"),
        ]
        with HetznerRobot(hardware, secret=CREDENTIAL, servers=servers) as robot:
            Description("hetzner").hold(robot)
            yield Setup.of(
                robot,
                hardware,
                FakeAnswer(path="/server", times=0, status=200, body=TWICE),
                provider=provider(robot.url, clock),
                capacity_ids=frozenset({"11", "12", "13", "14"}),
                stores_tokens=False,
                remove_keys=robot.keys.clear,
                keyed=("reinstall",),
                confuse=lambda provider_id: robot.change(provider_id, state="unheard of"),
                secret=PASSWORD,
                places=Places(path="/server", id="*.server.server_number", address="*.server.server_ip"),
            )
            assert robot.errors == []


TOKEN = UUID("6f9d9a52-4f5c-4d43-9f5e-3a6f0d0d1d11")
A = ProviderId("11")
OURS = "e8:58:d4:06:f9:8a:ad:ef:c5:84:d7:88:93:f4:cd:77"


def refused(status: int, code: str, **more: Any) -> Answer:
    return said(status, error={"status": status, "code": code, "message": "no", **more})


def server(**fields: Any) -> Answer:
    return said(200, server={"server_number": 11, "server_name": "shepherd-a", **fields})


def resets(*types: str, status: str = "running") -> Answer:
    return said(200, reset={"type": types, "operating_status": status})


def boot(kind: str = "", *fingerprints: str) -> Answer:
    """Return the answer about boot configurations: of *kind* one is active, with these keys."""
    options: dict[str, dict[str, Any]] = {
        name: {"active": name == kind, "authorized_key": None} for name in ("rescue", "linux", "vnc")
    }
    if fingerprints:
        options[kind]["authorized_key"] = [{"key": {"fingerprint": each}} for each in fingerprints]
    return said(200, boot={**options, "windows": None})


BROKEN = Answer(500)
ENABLED = refused(409, "BOOT_ALREADY_ENABLED")
USUAL = {
    "GET /server/11": server(),
    "GET /reset/11": resets("sw", "hw", "man"),
    "GET /boot/11": boot(),
    "GET /key": Answer(
        200, f'[{{"key": {{"name": "ours", "fingerprint": "{OURS}", "data": "{PUBLIC_KEY}"}}}}]'.encode()
    ),
}
LOOK, KEY, BOOT = ("GET /server/11", "GET /reset/11"), "GET /key", "GET /boot/11"
RESET, ARMS = "POST /reset/11", "POST /boot/11/linux"
HARD, SOFT, POWER = (f"{RESET} type={each}" for each in ("hw", "sw", "power"))
ARM = f"{ARMS} dist=Debian 12 base&lang=en&authorized_key={OURS}"
ARM_RESCUE = f"POST /boot/11/rescue os=linux&authorized_key={OURS}"
DISARM, DISARM_RESCUE = "DELETE /boot/11/linux", "DELETE /boot/11/rescue"
UNAVAILABLE, REFUSED = "ProviderUnavailable: ", "ProviderRefused: "
RESET_FAILS = (*LOOK, KEY, BOOT, ARM, HARD, DISARM)

CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...], str]] = {
    # What is reset, and how. No technician is called, and no running server is switched off.
    "software": ("reboot", {"graceful": True}, (*LOOK, BOOT, SOFT), ""),
    "no software": ("reboot", {LOOK[1]: resets("power", "hw")}, (*LOOK, BOOT, HARD), ""),
    "hardware": ("reboot", {"graceful": False}, (*LOOK, BOOT, HARD), ""),
    "power cycle": ("power_cycle", {}, (*LOOK, BOOT, HARD), ""),
    "no reset": ("power_cycle", {LOOK[1]: resets("sw", "power", "man")}, LOOK, "NotSupported: .*none of .'hw'"),
    "no resets": ("reboot", {LOOK[1]: refused(404, "RESET_NOT_AVAILABLE")}, LOOK, "NotSupported: .*RESET_NOT_AV"),
    "off": ("power_cycle", {LOOK[1]: resets("hw", "power", status="shut off")}, (*LOOK, BOOT, POWER), ""),
    "technician": ("power_cycle", {RESET: refused(409, "RESET_MANUAL_ACTIVE")}, (*LOOK, BOOT, HARD), UNAVAILABLE),
    # The wrong server would be reset.
    "foreign": ("reboot", {LOOK[0]: server(server_name="db")}, LOOK[:1], "MachineNotFound: .*'db' does not begin"),
    "mixed up": ("reboot", {LOOK[0]: server(server_number=12)}, LOOK[:1], f"{UNAVAILABLE}.*12 instead of 11"),
    "foreign and new": ("create_machine", {LOOK[0]: server(server_name="db")}, LOOK[:1], f"{REFUSED}.*begin.*{TOKEN}"),
    "cancelled": ("create_machine", {LOOK[0]: server(cancelled=True)}, LOOK[:1], f"{REFUSED}.*is cancelled.*{TOKEN}"),
    # An invocation died between arming and resetting; days later a plain reboot would erase the machine.
    "armed by us": ("power_cycle", {BOOT: boot("linux", OURS)}, (*LOOK, BOOT, DISARM, HARD), ""),
    "armed to rescue": ("reboot", {BOOT: boot("rescue", "a", OURS)}, (*LOOK, BOOT, DISARM_RESCUE, SOFT), ""),
    "armed by others": ("reboot", {BOOT: boot("vnc")}, (*LOOK, BOOT), f"{REFUSED}.*'vnc', not by Shepherd"),
    "armed, other key": ("reinstall", {BOOT: boot("linux", "a")}, (*LOOK, KEY, BOOT), f"{REFUSED}.*not by Shepherd"),
    "disks alone": ("reboot", {BOOT: refused(404, "BOOT_NOT_AVAILABLE")}, (*LOOK, BOOT, SOFT), ""),
    # A reinstall arms, and resets. If anything goes wrong, a machine that reboots by itself must come back as it was.
    "linux": ("reinstall", {}, (*LOOK, KEY, BOOT, ARM, HARD), ""),
    "dist": ("reinstall", {"os": "X"}, (*LOOK, KEY, BOOT, ARM.replace("Debian 12 base", "X"), HARD), ""),
    "rescue": ("reinstall", {"reinstall": "rescue"}, (*LOOK, KEY, BOOT, ARM_RESCUE, HARD), ""),
    "no reinstall": ("reinstall", {LOOK[1]: resets("sw")}, LOOK, "NotSupported: .*none of"),
    "armed earlier": ("reinstall", {BOOT: boot("linux", OURS)}, (*LOOK, KEY, BOOT, DISARM, ARM, HARD), ""),
    "armed meanwhile": (
        "reinstall",
        {BOOT: [boot(), boot("linux", OURS)], ARMS: [ENABLED, said(200)]},
        (*LOOK, KEY, BOOT, ARM, BOOT, DISARM, ARM, HARD),
        "",
    ),
    "lost race": ("reinstall", {ARMS: ENABLED}, (*LOOK, KEY, BOOT, ARM, BOOT, ARM), f"{UNAVAILABLE}.*another client"),
    "lost arming": ("reinstall", {ARMS: BROKEN}, (*LOOK, KEY, BOOT, ARM, DISARM), f"{UNAVAILABLE}.*boot/11/linux: 500"),
    "no arming": ("reinstall", {ARMS: refused(400, "INVALID")}, (*LOOK, KEY, BOOT, ARM), f"{REFUSED}.*INVALID"),
    "lost reset": ("reinstall", {RESET: BROKEN, DISARM: BROKEN}, RESET_FAILS, f"{UNAVAILABLE}.*POST /reset/11: 500"),
    "refused reset": ("reinstall", {RESET: refused(409, "CONFLICT")}, RESET_FAILS, f"{REFUSED}.*CONFLICT"),
}


def robot(answers: dict[str, Any]) -> Callable[[Request], Answer]:
    """Return the web service as a script: an answer for each request, or several in turn."""
    left = {name: list(each) if isinstance(each, list) else each for name, each in {**USUAL, **answers}.items()}

    def answer(request: Request) -> Answer:
        found = left.get(f"{request.method} {request.path}", said(200))
        given: Answer = found.pop(0) if isinstance(found, list) else found
        return given

    return answer


def asked(script: Script) -> list[str]:
    bodies = [(f"{each.method} {each.path}", unquote_plus(each.body.decode())) for each in script.requests]
    return [" ".join(filter(None, each)) for each in bodies]


@pytest.mark.parametrize("case", CASES)
def test_a_step_sends_these_requests(case: str, clock: ManualClock, deadline: Deadline) -> None:
    """An armed server that is reset is erased, so the order of requests decides."""
    step, given, requests, error = CASES[case]
    settings = {name: each for name, each in given.items() if name in HetznerSettings.model_fields}
    outcome = ""
    with scripted_server(robot(given)) as script:
        one = provider(script.url, clock, **settings)
        try:
            if step == "create_machine":
                one.create_machine(Machine(provider_id=A, availability=Availability.KNOWN_UNUSED), TOKEN, deadline)
            else:
                getattr(one, step)(A, Permission(deadline))
        except ProviderError as raised:
            outcome = f"{type(raised).__name__}: {raised}"
    assert re.match(error or "$", outcome), outcome
    assert asked(script) == list(requests)


def test_nothing_is_armed_without_time_to_reset(clock: ManualClock) -> None:
    with scripted_server(robot({})) as script, pytest.raises(TimeLimitExceeded, match="was not armed"):
        provider(script.url, clock).reinstall(A, Permission(Deadline(clock, 9)))
    assert ARM not in asked(script)


@pytest.mark.parametrize("odd", ["011", "+11", "1_1", "\u0661\u0661", "11 ", "198.18.0.1", "11\n", "1" * 19])
def test_only_numbers_are_asked_for(odd: str, clock: ManualClock, deadline: Deadline) -> None:
    """Robot also takes addresses, and might take other spellings: one server would have two provider ids."""
    with pytest.raises(MachineNotFound, match="is not the number"):
        provider("http://127.0.0.1:9", clock).reboot(ProviderId(odd), Permission(deadline))


@pytest.mark.parametrize(("interval", "seconds"), [(600, 600), (0, 3_600), (None, 3_600)])
def test_a_limit_says_when_to_come_back(
    interval: int | None, seconds: int, clock: ManualClock, deadline: Deadline
) -> None:
    """It comes with status 403, which elsewhere means never."""
    limit = refused(403, "RATE_LIMIT_EXCEEDED", interval=interval)
    with scripted_server(robot({"GET /server": limit})) as script, pytest.raises(ProviderUnavailable) as caught:
        provider(script.url, clock).list_machines(deadline)
    assert caught.value.retry_after == seconds


def test_a_refused_credential_is_sent_once_by_all_threads(clock: ManualClock, deadline: Deadline) -> None:
    """The third failure locks out everybody behind our address for ten minutes."""
    with scripted_server(robot({LOOK[0]: refused(401, "UNAUTHORIZED")})) as script:
        one = provider(script.url, clock)

        def attempt(_: int) -> str:
            with pytest.raises(ProviderRefused) as caught:
                one.reboot(A, Permission(deadline))
            return str(caught.value)

        with ThreadPoolExecutor(10) as pool:
            texts = list(pool.map(attempt, range(20)))
    assert len(script.requests) == 1
    assert sum("not sent: the credential was refused; retry in 600 s" in text for text in texts) == 19
