import json
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext as does_not_raise
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from shepherd_core.domain.clock import Deadline, Permission, SystemClock
from shepherd_core.domain.errors import NoLongerDue, SourceMissing, TimeLimitExceeded
from shepherd_core.domain.errors.provider import ProviderRefused, ProviderUnavailable
from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.providers.redfish.login import LOCKOUT_SECONDS

from simulator.environment.faults import Delay, Drop, FakeAnswer
from simulator.environment.tcp_proxy import TcpProxy
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.redfish.bmcs import RedfishRack
from simulator.providers.redfish.middleware import SESSION_SLOTS
from tests.conftest import ManualClock
from tests.support.providers.redfish_rack import NAME, RESET, Secrets, Site
from tests.support.waiting import WAIT_SECONDS, eventually

SECRET = "/shepherd/bmc/rack-001"


@pytest.fixture
def site(tmp_path: Path, clock: ManualClock, deadline: Deadline) -> Iterator[Site]:
    pool = NoHardware()
    with RedfishRack(pool, tmp_path, machines=1) as rack:
        rack.entries[0]["System"] = rack.bmcs[NAME].system
        yield Site(pool, rack, clock, deadline)
        assert rack.errors == []


def test_a_read_is_tried_again(site: Site) -> None:
    site.bmc.faults.add(FakeAnswer(times=1, status=503))
    site.bmc.faults.add(Drop(nth=2))
    assert site.provider().get_machine(NAME, site.deadline).status is ProviderStatus.RUNNING
    assert len(site.bmc.calls) == 3
    assert site.clock.slept == [0.5, 1.0]


def test_a_url_that_the_bmc_names_leads_to_this_bmc(site: Site) -> None:
    """A BMC that was taken over must not be handed the credential for another."""
    reset = {"target": "https://192.0.2.1/elsewhere?now=1", "ResetType@Redfish.AllowableValues": ["ForceRestart"]}
    body = {"Id": "1", "PowerState": "On", "Actions": {"#ComputerSystem.Reset": reset}}
    site.bmc.faults.add(FakeAnswer(method="GET", path=site.bmc.system, status=200, body=body))
    with pytest.raises(ProviderRefused, match="404"):
        site.provider().reboot(NAME, site.permission)
    assert site.bmc.calls[-1] == "POST /elsewhere?now=1"


class SlowToAccept(TcpProxy):
    """A proxy in front of a BMC that holds up the second connection, which is that of the step."""

    def __init__(self, rack: RedfishRack) -> None:
        self.holds = threading.Event()
        self.goes_on = threading.Event()
        self._connections = 0
        target = urlsplit(rack.entries[0]["Bmc"])
        super().__init__((str(target.hostname), int(target.port or 443)))
        rack.entries[0]["Bmc"] = f"https://127.0.0.1:{self.port}"

    def _greeted(self, client: socket.socket) -> socket.socket:
        self._connections += 1
        if self._connections == 2:
            self.holds.set()
            assert self.goes_on.wait(WAIT_SECONDS)
        return super()._greeted(client)


@pytest.mark.parametrize(
    ("meanwhile", "error", "words", "asked"),
    [
        ("it reports", NoLongerDue, "", True),
        ("accepting takes 21 s", ProviderUnavailable, "not done within 20 s", False),
        ("confirming takes 21 s", ProviderUnavailable, "not done within 20 s", True),
    ],
)
def test_a_restart_that_a_bmc_accepts_late_is_not_sent(
    site: Site, meanwhile: str, error: type[Exception], words: str, asked: bool
) -> None:
    """With all tries of TCP and TLS, a BMC may take twice the time limit until it reads the first byte."""
    asks, happened = list[bool](), set[str]()

    def ask() -> None:
        asks.append(True)
        if "it reports" in happened:
            raise NoLongerDue
        site.clock.now += 21 if meanwhile.startswith("confirming") else 0

    permission = Permission(Deadline(site.clock, 3600), ask)
    with SlowToAccept(site.rack) as proxy, ThreadPoolExecutor(1) as pool:
        step = pool.submit(site.provider(seconds=20).reboot, NAME, permission)
        assert proxy.holds.wait(WAIT_SECONDS)
        happened.add(meanwhile)
        site.clock.now += 21 if meanwhile.startswith("accepting") else 0
        proxy.goes_on.set()
        with pytest.raises(error, match=words or None):
            step.result(WAIT_SECONDS)
    assert (bool(asks), permission.interrupted, site.bmc.resets) == (asked, False, [])


def info(*messages: object) -> dict[str, object]:
    """Return what the standard calls extended information."""
    return {"@Message.ExtendedInfo": list(messages)}


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (400, {"error": {"message": "no", **info({"Message": "A."}, {"Message": "B."})}}, ProviderRefused, ": A.; B."),
        (400, info({"MessageId": "Base.1.0.Odd"}), ProviderRefused, ": Base.1.0.Odd"),
        (404, {"error": {"message": "a\r\nb\x1b[31m\x00c"}}, ProviderRefused, ": a b [31m c"),
        (409, {"error": {"message": "already on"}}, ProviderUnavailable, ": already on"),
        (400, {"error": {"message": "SYS518: not ready"}}, ProviderUnavailable, ": SYS518: not ready"),
        (501, {"error": {"message": "never"}}, ProviderRefused, ": never"),
        (500, {"error": {"message": 5, "@Message.ExtendedInfo": {"Message": "x"}}}, ProviderUnavailable, ""),
        (502, "<html>Bad gateway</html>", ProviderUnavailable, ""),
        (307, {}, ProviderRefused, ": redirections are not followed"),  # the credential is for this BMC
    ],
)
def test_the_words_of_a_bmc_are_in_the_error(
    site: Site, status: int, body: object, error: type[Exception], words: str
) -> None:
    """They say what to do; and what is not in the form that the standard gives them does no harm."""
    site.bmc.faults.add(FakeAnswer(method="POST", status=status, body=body))
    with pytest.raises((ProviderRefused, ProviderUnavailable)) as raised:
        site.provider().reboot(NAME, site.permission)
    assert type(raised.value) is error
    assert str(raised.value).endswith(f"{RESET.rpartition('/')[2]}: {status}{words}")


@pytest.mark.parametrize("auth", ["basic", "session"])
def test_no_error_holds_the_credential(site: Site, auth: str) -> None:
    """A BMC that repeats what it was sent would put it into log and history; and it talks at length."""
    words = f"{site.bmc.user}:{site.bmc.password} " + "blah " * 1000
    site.bmc.faults.add(FakeAnswer(method="POST", path=RESET, status=400, body={"error": {"message": words}}))
    with pytest.raises(ProviderRefused) as raised:
        site.provider(auth=auth).reboot(NAME, site.permission)
    assert "***" in str(raised.value)
    assert len(str(raised.value)) < 600
    assert site.bmc.password not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(("newer", "bad_logins"), [("a newer one", 1), ("a wrong one", 2)])
def test_a_credential_that_was_replaced_is_read_again_once(site: Site, newer: str, bad_logins: int) -> None:
    """Passwords are changed, and the store remembers what it read. A third bad login may lock the account."""
    secrets = Secrets(dict(site.rack.secrets))
    adapter = site.provider(secrets=secrets)
    adapter.get_machine(NAME, site.deadline)
    site.bmc.password = "a newer one"
    secrets.stored[SECRET] = f"{site.bmc.user}:{newer}"
    for _ in range(3):
        with does_not_raise() if newer == site.bmc.password else pytest.raises(ProviderRefused):
            adapter.reboot(NAME, site.permission)
    assert site.bmc.bad_logins == bad_logins
    assert secrets.reads.count(SECRET) >= 2


@pytest.mark.parametrize("auth", ["basic", "session"])
def test_a_bmc_that_refuses_us_is_left_for_a_while(site: Site, auth: str) -> None:
    """A few bad logins lock the account, and with it everybody who knows the password."""
    adapter = site.provider(auth=auth)
    site.bmc.password, right = "another one", site.bmc.password
    for _ in range(5):
        with pytest.raises(ProviderRefused) as raised:
            adapter.reboot(NAME, site.permission)
        assert adapter.list_machines(site.deadline)[0].status is ProviderStatus.UNKNOWN
    assert SECRET in str(raised.value)
    assert right not in "".join(traceback.format_exception(raised.value))
    assert site.bmc.bad_logins == 1
    site.bmc.password = right
    site.clock.now += LOCKOUT_SECONDS
    adapter.reboot(NAME, site.permission)
    assert site.bmc.resets == ["ForceRestart"]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_401_while_switching_off_is_not_repeated(site: Site, *, replaced: bool) -> None:
    """Looking again and again whether the machine is off must not lock the account, nor switching it on again."""
    secrets = Secrets(dict(site.rack.secrets))
    adapter = site.provider(secrets=secrets)
    adapter.get_machine(NAME, site.deadline)
    site.bmc.calls.clear()
    secrets.stored[SECRET] = f"{site.bmc.user}:{'a wrong one' if replaced else site.bmc.password}"
    site.bmc.faults.add(FakeAnswer(method="GET", path=site.bmc.system, nth=3, times=0, status=401))
    with pytest.raises(ProviderRefused):
        adapter.power_cycle(NAME, Permission(Deadline(site.clock, 120)))
    assert [call.split()[0] for call in site.bmc.calls] == ["GET", "GET", "PATCH", "POST", "GET", *["GET"] * replaced]


def test_many_systems_send_their_bmc_a_wrong_password_once(site: Site) -> None:
    """A chassis of blades has one BMC, and a listing asks for all of them."""
    site.bmc.password = "another one"
    first, system = site.rack.entries[0], site.bmc.system
    blades = ({"ID": f"blade-{each}", "Addr": f"192.0.2.{each}", "System": f"{system}{each}"} for each in range(1, 9))
    entries = [{**first, **blade} for blade in blades]
    adapter = site.provider(read_list=lambda: json.dumps(entries).encode())
    assert {machine.status for machine in adapter.list_machines(site.deadline)} == {ProviderStatus.UNKNOWN}
    assert site.bmc.bad_logins == 1


@pytest.mark.parametrize("stored", ["", "nothing", "user:", ":password", "user:pass\x00word", "user:pa\nss"])
def test_a_secret_that_is_no_credential_is_not_sent(site: Site, stored: str) -> None:
    """What is sent to a BMC stands in its log."""
    with pytest.raises(ProviderRefused, match=f"{SECRET!r} is not a credential; it must be user:password"):
        site.provider(secrets=Secrets({SECRET: stored})).get_machine(NAME, site.deadline)
    assert site.bmc.calls == []


def test_a_session_is_closed_after_use(site: Site) -> None:
    """A BMC has a handful, and locks everybody out when they are gone."""
    adapter = site.provider(auth="session")
    for _ in range(SESSION_SLOTS + 1):
        assert adapter.get_machine(NAME, site.deadline).status is ProviderStatus.RUNNING
    assert site.bmc.sessions == {}
    assert [call.split()[0] for call in site.bmc.calls[:4]] == ["GET", "POST", "GET", "DELETE"]
    for root in ("{}", "[]"):  # without the place of the sessions: they are where the standard has them
        site.bmc.faults.add(FakeAnswer(method="GET", path="/redfish/v1/", status=200, body=root))
        assert adapter.get_machine(NAME, site.deadline).status is ProviderStatus.RUNNING


def test_time_is_kept_for_closing_a_session(site: Site) -> None:
    """A BMC that is slow would run out of them. A quarter of the time is kept, of more than eight seconds two."""
    site.bmc.faults.add(Delay(method="POST", path=RESET, seconds=3600))
    with pytest.raises((ProviderUnavailable, TimeLimitExceeded)):
        site.provider(auth="session").reboot(NAME, Permission(Deadline(SystemClock(), 4)))
    eventually(lambda: site.bmc.sessions == {})


@pytest.mark.parametrize("location", [None, "http://[", "https://x:y/", "//[::1/sessions"])
def test_a_session_that_cannot_be_closed_spoils_nothing(
    site: Site, location: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The restart has happened, and the BMC ends the session later; the log says so."""
    site.bmc.session_location = location
    site.bmc.faults.add(Drop(method="DELETE"))
    site.provider(auth="session").reboot(NAME, site.permission)
    assert site.bmc.resets == ["ForceRestart"]
    assert "a session was left open" in capsys.readouterr().out


def test_a_session_that_ended_early_is_begun_again(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """BMCs drop sessions when they like; that says nothing against the credential."""
    site.bmc.faults.add(FakeAnswer(method="POST", path=RESET, status=401))
    adapter = site.provider(auth="session")
    adapter.reboot(NAME, site.permission)
    assert site.bmc.resets == ["ForceRestart"]
    adapter.reboot(NAME, site.permission)
    # One that cannot be begun again needs no end.
    site.bmc.faults.add(FakeAnswer(method="POST", path=RESET, status=401))
    site.bmc.faults.add(FakeAnswer(method="POST", path="/**/Sessions", nth=2, times=0, status=503))
    with pytest.raises(ProviderUnavailable):
        adapter.reboot(NAME, site.permission)
    assert "left open" not in capsys.readouterr().out


def test_an_unknown_certificate_gets_no_credential(site: Site) -> None:
    """Any host that answers at the BMC's address would get the password."""
    site.rack.impersonate(NAME)
    with pytest.raises(ProviderRefused, match="CERTIFICATE_VERIFY_FAILED"):
        site.provider().reboot(NAME, site.permission)
    assert site.bmc.calls == []


def missing() -> bytes:
    raise SourceMissing("no such object")


def test_a_pinned_certificate_needs_no_authority(site: Site) -> None:
    """Most BMCs have a self-signed certificate, without a useful name."""
    site.rack.entries[0]["Fingerprint"] = site.rack.fingerprint
    adapter = site.provider(read_ca=missing)
    adapter.reboot(NAME, site.permission)
    assert site.bmc.resets == ["ForceRestart"]
    site.rack.impersonate(NAME)
    calls = list(site.bmc.calls)
    with pytest.raises(ProviderRefused, match="Fingerprints did not match"):
        adapter.reboot(NAME, site.permission)
    assert site.bmc.calls == calls


@pytest.mark.parametrize(
    ("read_ca", "words"),
    [(lambda: b"", ""), (lambda: b"no certificate", ""), ("ümlaut".encode, ""), (missing, ": no such object")],
)
def test_authorities_that_are_none_are_said_to_be_none(site: Site, read_ca: Callable[[], bytes], words: str) -> None:
    """With none at all, every BMC would seem to be at fault; the setting names them, and no BMC is to blame."""
    with pytest.raises(ProviderRefused, match=f"the CAs of the BMCs{words}"):
        site.provider(read_ca=read_ca).reboot(NAME, site.permission)
