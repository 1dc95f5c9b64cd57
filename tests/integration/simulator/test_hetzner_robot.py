"""The simulated Robot web service keeps to its description, and holds its clients to it."""

from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import requests
from shepherd_core.adapters import ssh_keys

from simulator.machines.pool import MachinePool
from simulator.machines.server import MachineState
from simulator.providers.hetzner.objects import RobotServer
from simulator.providers.hetzner.robot import HetznerRobot, RobotOptions
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.kit.http_server import HttpRequest, Reply
from tests.conftest import ManualClock
from tests.support.providers.description import Description, UndescribedError
from tests.support.waiting import eventually

DESCRIPTION = Description("hetzner")
RIGHT = ("user", "password")
WRONG = ("user", "guess")


@pytest.fixture
def robot(clock: ManualClock) -> Iterator[HetznerRobot]:
    """Return an account with two servers, one of them without IPv4."""
    servers = [RobotServer(number=1, name="one"), RobotServer(number=2, name="two", ip=None, boots=("rescue", "linux"))]
    with HetznerRobot(
        NoHardware(),
        user="user",
        password="password",
        servers=servers,
        options=RobotOptions(clock=clock.monotonic),
    ) as service:
        DESCRIPTION.hold(service)
        yield service


def ask(robot: HetznerRobot, method: str, path: str, **more: Any) -> tuple[int, Any]:
    """Return status and body of an answer."""
    answer = requests.request(method, robot.url + path, auth=more.pop("auth", RIGHT), timeout=10, **more)
    return answer.status_code, answer.json() if answer.content else None


def code(robot: HetznerRobot, method: str, path: str, **more: Any) -> tuple[int, str]:
    """Return status and code of an error."""
    status, body = ask(robot, method, path, **more)
    return status, body["error"]["code"]


def test_every_answer_fits_the_description(robot: HetznerRobot) -> None:
    """Tests of the adapter prove as much as the simulated service is like the real one."""
    key = {"name": "key", "data": ssh_keys.public_line(ssh_keys.generate())}
    assert code(robot, "GET", "/key") == (404, "NOT_FOUND")
    status, added = ask(robot, "POST", "/key", data=key)
    assert status == 201
    armed = {"authorized_key": added["key"]["fingerprint"]}
    for number in (1, 2):
        for method, path, form in (
            ("GET", "/server", None),
            ("GET", f"/server/{number}", None),
            ("GET", f"/reset/{number}", None),
            ("GET", f"/boot/{number}", None),
            ("POST", f"/boot/{number}/linux", {"dist": "Debian 12 base", "lang": "en", **armed}),
            ("GET", f"/boot/{number}", None),
            ("DELETE", f"/boot/{number}/linux", None),
            ("POST", f"/boot/{number}/rescue", {"os": "linux", **armed}),
            ("DELETE", f"/boot/{number}/rescue", None),
            ("POST", f"/reset/{number}", {"type": "hw"}),
            ("GET", "/key", None),
        ):
            assert ask(robot, method, path, data=form)[0] == 200
    assert set(DESCRIPTION.requests) == {" ".join(call) for call in robot.calls}
    assert robot.errors == []


def test_every_refusal_fits_the_description(robot: HetznerRobot) -> None:
    """A client goes by the codes."""
    robot.change(2, resets=(), boots=())
    linux = {"dist": "Debian 12 base", "lang": "en"}
    assert code(robot, "GET", "/server/3") == (404, "SERVER_NOT_FOUND")
    assert code(robot, "GET", "/reset/2") == (404, "RESET_NOT_AVAILABLE")
    assert code(robot, "GET", "/boot/2") == (404, "BOOT_NOT_AVAILABLE")
    assert code(robot, "POST", "/reset/1", data={"type": "power"}) == (400, "INVALID_INPUT")
    assert code(robot, "POST", "/reset/1", data={}) == (400, "INVALID_INPUT")
    assert code(robot, "POST", "/boot/1/linux", data={**linux, "authorized_key": "00:11"}) == (400, "INVALID_INPUT")
    assert ask(robot, "POST", "/boot/1/linux", data=linux)[0] == 200
    assert code(robot, "POST", "/boot/1/linux", data=linux) == (409, "BOOT_ALREADY_ENABLED")
    assert code(robot, "POST", "/key", data={"name": "key", "data": "nonsense"}) == (400, "INVALID_INPUT")
    robot.change(1, technician=True)
    assert code(robot, "POST", "/reset/1", data={"type": "hw"}) == (409, "RESET_MANUAL_ACTIVE")
    assert code(robot, "GET", "/server", auth=WRONG) == (401, "UNAUTHORIZED")
    assert robot.errors == []


@pytest.mark.parametrize(
    ("method", "path", "more"),
    [
        ("DELETE", "/server/1", {}),
        ("POST", "/server/1/cancellation", {"data": {"cancellation_date": "now"}}),
        ("GET", "/servers", {}),
        ("GET", "/server", {"params": {"page": 2}}),
        ("GET", "/server/192.0.2.1", {}),
        ("POST", "/reset/1", {"json": {"type": "hw"}}),
        ("POST", "/reset/1", {"data": {"type": "hw", "force": "1"}}),
        ("POST", "/reset/1", {"data": [("type", "hw"), ("type", "sw")]}),
    ],
)
def test_an_undescribed_request_is_an_error(method: str, path: str, more: dict[str, Any], robot: HetznerRobot) -> None:
    """The real one might ignore it, refuse it, or do something else."""
    ask(robot, method, path, **more)
    assert {type(error) for error in robot.errors} == {UndescribedError}


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        ("/server", 200, {"server": []}),
        ("/key", 200, [{"key": {"name": "key"}}]),
        ("/reset/1", 200, [{}]),
        ("/reset/1", 404, {"error": {"status": 404, "code": "BOOT_NOT_AVAILABLE", "message": "no"}}),
        ("/reset/1", 409, {"error": {"status": 404, "code": "SERVER_NOT_FOUND", "message": "no"}}),
        ("/reset/1", 404, "not found"),
        ("/reset/1", 404, {"error": {"status": 404, "code": "SERVER_NOT_FOUND", "message": "no", "why": "?"}}),
    ],
)
def test_an_answer_outside_the_description_fails(path: str, status: int, body: object) -> None:
    """The checks of the simulated answers can fail."""
    request = HttpRequest(
        method="GET", target=path, path=path, query={}, headers=Message(), content=b"", client="127.0.0.1"
    )
    with pytest.raises(UndescribedError):
        DESCRIPTION.check_answer(request, Reply(status=status, body=body))


def test_the_third_wrong_login_locks_the_address_out(robot: HetznerRobot, clock: ManualClock) -> None:
    """For ten minutes every login from that address fails."""
    for _ in range(2):
        ask(robot, "GET", "/server", auth=WRONG)
    assert ask(robot, "GET", "/server")[0] == 200
    ask(robot, "GET", "/server", auth=WRONG)
    clock.now += 599
    assert code(robot, "GET", "/server") == (401, "UNAUTHORIZED")
    clock.now += 1
    assert ask(robot, "GET", "/server")[0] == 200


def test_limits_are_those_of_the_description(robot: HetznerRobot, clock: ManualClock) -> None:
    """Fifty resets fit into an hour."""
    for _ in range(50):
        assert ask(robot, "POST", "/reset/1", data={"type": "hw"})[0] == 200
    status, body = ask(robot, "POST", "/reset/1", data={"type": "hw"})
    assert (status, body["error"]["max_request"], body["error"]["interval"]) == (403, 50, 3_600)
    clock.now += 3_600
    assert ask(robot, "POST", "/reset/1", data={"type": "hw"})[0] == 200
    assert robot.errors == []


def test_a_reset_reaches_a_simulated_machine(tmp_path: Path) -> None:
    """The same service stands in front of machines that really hang, reboot and are installed."""

    def state(number: int, *wanted: MachineState) -> MachineState:
        eventually(lambda: robot.settled() and (not wanted or pool.state(str(number)) in wanted))
        return pool.state(str(number))

    with MachinePool(tmp_path, 0, boot_seconds=0) as pool:
        server = RobotServer(number=1, name="one", hung=True, resets=("sw", "hw", "power", "power_long"))
        line = ssh_keys.public_line(ssh_keys.generate())
        options = RobotOptions(authorized_key=line)
        with HetznerRobot(pool, user="user", password="password", servers=[server], options=options) as robot:
            state(1, MachineState.UP)
            pool.hang("1")
            ask(robot, "POST", "/reset/1", data={"type": "sw"})
            assert state(1) is not MachineState.UP
            assert pool.reboots("1") == 0
            ask(robot, "POST", "/reset/1", data={"type": "hw"})
            state(1, MachineState.UP)
            assert pool.reboots("1") == 1
            ask(robot, "POST", "/reset/1", data={"type": "power_long"})
            assert state(1) is MachineState.OFF
            ask(robot, "POST", "/boot/1/rescue", data={"os": "linux"})
            ask(robot, "POST", "/reset/1", data={"type": "power"})
            state(1, MachineState.UP)
            assert robot.server(1).boots_done == ["disk", "rescue linux"]
            assert robot.errors == []
