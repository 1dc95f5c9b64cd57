"""How the redfish adapter talks to BMCs that are slow, broken, full, or not who they should be."""

import json
import socket
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors import NoLongerDue, SecretUnavailable, SourceMissing, TimeLimitExceeded
from shepherd_core.domain.errors.provider import ProviderRefused, ProviderUnavailable
from shepherd_core.domain.machine import ProviderId, ProviderStatus
from shepherd_core.providers.redfish.adapter import RedfishProvider
from shepherd_core.providers.redfish.login import LOCKOUT_SECONDS
from shepherd_core.settings.providers.redfish import RedfishSettings

from simulator.environment.faults import Cut, Delay, Drop, FakeAnswer
from simulator.environment.tcp_proxy import TcpProxy
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.redfish.bmcs import RedfishRack
from simulator.providers.redfish.middleware import SESSION_SLOTS, SimulatedBmc
from tests.conftest import ManualClock
from tests.support.providers.redfish_rack import Secrets, provider
from tests.support.waiting import WAIT_SECONDS, eventually

NAME = ProviderId("rack-001")
SECRET = "/shepherd/bmc/rack-001"
RESET = "/**/Actions/ComputerSystem.Reset"


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[RedfishRack]:
    """Return a rack of one machine, whose entry names its system."""
    with RedfishRack(NoHardware(), tmp_path, machines=1) as rack:
        rack.entries[0]["System"] = rack.bmcs[NAME].system
        yield rack
        assert rack.errors == []


@pytest.fixture
def bmc(rack: RedfishRack) -> SimulatedBmc:
    """Return its BMC."""
    return rack.bmcs[NAME]


@pytest.fixture
def secrets(rack: RedfishRack) -> Secrets:
    """Return the store of its credential."""
    return Secrets(dict(rack.secrets))


# Answers that do not come, or not whole


def test_a_read_is_tried_again(rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline) -> None:
    """BMCs say now and then that they are busy."""
    bmc.faults.add(FakeAnswer(times=1, status=503))
    bmc.faults.add(Drop(nth=2))
    assert provider(rack, clock).get_machine(NAME, deadline).status is ProviderStatus.RUNNING
    assert len(bmc.calls) == 3
    assert clock.slept == [0.5, 1.0]


@pytest.mark.parametrize(
    "fault", [Drop(times=0), Cut(times=0), FakeAnswer(times=0, status=503), FakeAnswer(times=0, status=429)]
)
def test_a_read_is_given_up_after_three_tries(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline, fault: Any
) -> None:
    """The loops know better when to come back."""
    bmc.faults.add(fault)
    with pytest.raises(ProviderUnavailable, match=f"the BMC https://127.0.0.1:.*: GET {bmc.system}: "):
        provider(rack, clock).get_machine(NAME, deadline)
    assert len(bmc.calls) == 3


@pytest.mark.parametrize(
    "fault", [Drop(method="POST"), Drop(method="POST", when="after"), FakeAnswer(method="POST", status=503)]
)
def test_an_effect_is_tried_once(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline, fault: Any
) -> None:
    """Sent twice, a restart falls into the boot that the first one began."""
    bmc.faults.add(fault)
    with pytest.raises(ProviderUnavailable):
        provider(rack, clock).reboot(NAME, deadline)
    assert [call.split()[0] for call in bmc.calls] == ["GET", "GET", "PATCH", "POST"]


@pytest.mark.parametrize("body", ["<html>", "", "[]", "5", '"On"', "null", '{"PowerState": ', "[" * 100_000])
@pytest.mark.parametrize("action", ["get_machine", "reboot"])
def test_an_answer_that_is_no_redfish_is_none(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline, *, body: str, action: str
) -> None:
    """Login pages and half-started firmware answer with 200 too."""
    bmc.faults.add(FakeAnswer(times=0, status=200, body=body))
    with pytest.raises(ProviderUnavailable):
        getattr(provider(rack, clock), action)(NAME, deadline)


@pytest.mark.parametrize(
    "body",
    [
        {"Id": "1", "Boot": [], "Actions": {}},
        {"Id": "1", "Actions": "none"},
        {"Id": "1", "Actions": {"#ComputerSystem.Reset": {"target": 5}}},
        {"Id": "1", "Actions": {"#ComputerSystem.Reset": []}},
        {"Id": "1", "PowerState": "On", "Actions": {"#ComputerSystem.Reset": {"target": "https://["}}},
        {"Id": "1", "PowerState": {}, "Actions": {"#ComputerSystem.Reset": {"target": None}}},
        {"Boot": None},
        {},
    ],
)
def test_an_invalid_answer_of_a_bmc_is_raised_as_our_error(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline, body: object
) -> None:
    """An error of a library would end the work on all machines."""
    bmc.faults.add(FakeAnswer(method="GET", path=bmc.system, times=0, status=200, body=body))
    with pytest.raises((ProviderUnavailable, ProviderRefused)):
        provider(rack, clock).reboot(NAME, deadline)
    assert bmc.resets == []


def test_a_slow_bmc_is_given_up_before_the_deadline(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline
) -> None:
    """One BMC must not use up the time of all; and one that was too slow once is not asked twice more."""
    bmc.faults.add(Delay(times=0, seconds=3600))
    with pytest.raises(ProviderUnavailable):
        provider(rack, clock, timeout_seconds=2).get_machine(NAME, deadline)
    assert len(bmc.calls) == 1
    deadline.check()


def test_an_answer_that_comes_late_is_an_answer(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline
) -> None:
    """A BMC takes its time: what is 60 s there is a third of one here."""
    bmc.faults.add(Delay(method="POST", seconds=0.3, when="after"))
    provider(rack, clock, timeout_seconds=20).reboot(NAME, deadline)
    assert bmc.resets == ["ForceRestart"]


def test_a_power_change_that_never_happens_raises_no_error(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline
) -> None:
    """A restart returns when it is accepted; the Recoverer notices if the machine stays unhealthy."""
    bmc.faults.add(FakeAnswer(method="POST", path=RESET, status=204))
    provider(rack, clock).reboot(NAME, deadline)
    rack.wait_until_idle()
    assert rack.starts(NAME) == 0


def test_a_redirection_is_not_followed(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline
) -> None:
    """The credential is for this BMC; and a restart that was redirected has not happened."""
    bmc.faults.add(FakeAnswer(method="POST", status=307))
    with pytest.raises(ProviderRefused, match="redirections are not followed"):
        provider(rack, clock).reboot(NAME, deadline)


def test_a_url_that_the_bmc_names_leads_to_this_bmc(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline
) -> None:
    """A BMC that was taken over must not be handed the credential for another."""
    reset = {"target": "https://192.0.2.1/elsewhere?now=1", "ResetType@Redfish.AllowableValues": ["ForceRestart"]}
    body = {"Id": "1", "PowerState": "On", "Actions": {"#ComputerSystem.Reset": reset}}
    bmc.faults.add(FakeAnswer(method="GET", path=bmc.system, status=200, body=body))
    with pytest.raises(ProviderRefused, match="404"):
        provider(rack, clock).reboot(NAME, deadline)
    assert bmc.calls[-1] == "POST /elsewhere?now=1"


# A BMC that takes long to accept a connection


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


def test_a_machine_that_reports_while_its_bmc_accepts_is_not_restarted(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock
) -> None:
    """With all tries of TCP and TLS, a BMC may take twice the time limit until it reads the first byte."""
    reports: list[bool] = []

    def ask(_: Deadline) -> None:
        if reports:
            raise NoLongerDue

    deadline = Deadline(SystemClock(), 60, ask=ask)
    with SlowToAccept(rack) as proxy, ThreadPoolExecutor(1) as pool:
        step = pool.submit(provider(rack, clock).reboot, NAME, deadline)
        assert proxy.holds.wait(WAIT_SECONDS)
        reports.append(True)
        proxy.goes_on.set()
        with pytest.raises(NoLongerDue):
            step.result(WAIT_SECONDS)
    assert not deadline.interrupted
    assert bmc.resets == []


def test_a_bmc_that_uses_up_the_time_to_accept_is_sent_nothing(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock
) -> None:
    """The time limit is that of the whole request."""
    asked: list[Deadline] = []
    deadline = Deadline(clock, 3600, ask=asked.append)
    with SlowToAccept(rack) as proxy, ThreadPoolExecutor(1) as pool:
        step = pool.submit(provider(rack, clock, timeout_seconds=20).reboot, NAME, deadline)
        assert proxy.holds.wait(WAIT_SECONDS)
        clock.now += 21
        proxy.goes_on.set()
        with pytest.raises(ProviderUnavailable, match="not done within 20 s"):
            step.result(WAIT_SECONDS)
    assert (asked, deadline.interrupted, bmc.resets) == ([], False, [])


def test_a_check_that_uses_up_the_time_sends_nothing(rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock) -> None:
    """And the step was certainly not taken, so it is no attempt."""

    def ask(_: Deadline) -> None:
        clock.now += 21

    deadline = Deadline(clock, 3600, ask=ask)
    with pytest.raises(ProviderUnavailable, match="not done within 20 s"):
        provider(rack, clock, timeout_seconds=20).reboot(NAME, deadline)
    assert (deadline.interrupted, bmc.resets) == (False, [])


# Its words


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (
            400,
            {"error": {"message": "no", "@Message.ExtendedInfo": [{"Message": "Bad type."}]}},
            ProviderRefused,
            "Bad type.",
        ),
        (400, {"error": {"@Message.ExtendedInfo": [{"Message": "A."}, {"Message": "B."}]}}, ProviderRefused, "A.; B."),
        (400, {"@Message.ExtendedInfo": [{"MessageId": "Base.1.0.Odd"}]}, ProviderRefused, "Base.1.0.Odd"),
        (400, {"error": {"message": "a\r\nb\x1b[31m\x00c"}}, ProviderRefused, "a b [31m c"),
        (404, {"error": {"message": "gone"}}, ProviderRefused, "gone"),
        (409, {"error": {"message": "already on"}}, ProviderUnavailable, "already on"),
        (400, {"error": {"message": "SYS518: not ready"}}, ProviderUnavailable, "SYS518: not ready"),
        (501, {"error": {"message": "never"}}, ProviderRefused, "never"),
        (500, {"error": {"message": 5, "@Message.ExtendedInfo": {"Message": "x"}}}, ProviderUnavailable, None),
        (500, {"error": [{"Message": "x"}]}, ProviderUnavailable, None),
        (502, "<html>Bad gateway</html>", ProviderUnavailable, None),
        (403, [], ProviderRefused, None),
    ],
)
def test_the_words_of_a_bmc_are_in_the_error(
    rack: RedfishRack,
    bmc: SimulatedBmc,
    clock: ManualClock,
    deadline: Deadline,
    *,
    status: int,
    body: object,
    error: type[Exception],
    words: str | None,
) -> None:
    """They say what to do; and what is not in the form that the standard gives them does no harm."""
    bmc.faults.add(FakeAnswer(method="POST", status=status, body=body))
    with pytest.raises((ProviderRefused, ProviderUnavailable)) as raised:
        provider(rack, clock).reboot(NAME, deadline)
    assert type(raised.value) is error
    assert str(raised.value).endswith(f"{RESET.rpartition('/')[2]}: {status}" + (f": {words}" if words else ""))


@pytest.mark.parametrize("auth", ["basic", "session"])
def test_no_error_holds_the_credential(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline, auth: str
) -> None:
    """A BMC that repeats what it was sent would put it into log and history; and it talks at length."""
    words = f"{bmc.user}:{bmc.password} " + "blah " * 1000
    bmc.faults.add(FakeAnswer(method="POST", path=RESET, status=400, body={"error": {"message": words}}))
    with pytest.raises(ProviderRefused) as raised:
        provider(rack, clock, auth=auth).reboot(NAME, deadline)
    assert "***" in str(raised.value)
    assert len(str(raised.value)) < 600
    assert bmc.password not in "".join(traceback.format_exception(raised.value))


# Who we are


def test_a_credential_that_was_replaced_is_read_again(
    rack: RedfishRack, bmc: SimulatedBmc, secrets: Secrets, clock: ManualClock, deadline: Deadline
) -> None:
    """The store remembers for minutes what it read, and passwords are changed."""
    adapter = provider(rack, clock, secrets=secrets)
    adapter.get_machine(NAME, deadline)
    bmc.password = "a newer one"
    secrets.stored[SECRET] = f"{bmc.user}:{bmc.password}"
    adapter.reboot(NAME, deadline)
    assert bmc.resets == ["ForceRestart"]
    assert bmc.bad_logins == 1
    assert secrets.reads == [SECRET, SECRET]


@pytest.mark.parametrize("auth", ["basic", "session"])
def test_a_bmc_that_refuses_us_is_not_asked_again_for_a_while(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline, auth: str
) -> None:
    """A few bad logins lock the account, and with it everybody who knows the password."""
    adapter = provider(rack, clock, auth=auth)
    bmc.password, right = "another one", bmc.password
    for _ in range(5):
        with pytest.raises(ProviderRefused) as raised:
            adapter.reboot(NAME, deadline)
        assert adapter.list_machines(deadline)[0].status is ProviderStatus.UNKNOWN
    assert SECRET in str(raised.value)
    assert right not in "".join(traceback.format_exception(raised.value))
    assert bmc.bad_logins == 1
    bmc.password = right
    clock.now += LOCKOUT_SECONDS
    adapter.reboot(NAME, deadline)
    assert bmc.resets == ["ForceRestart"]


def test_a_newer_credential_that_is_wrong_too_is_the_last(
    rack: RedfishRack, bmc: SimulatedBmc, secrets: Secrets, clock: ManualClock, deadline: Deadline
) -> None:
    """Two bad logins are bearable; a third one may be one too many."""
    adapter = provider(rack, clock, secrets=secrets)
    adapter.get_machine(NAME, deadline)
    bmc.password = "known to nobody"
    secrets.stored[SECRET] = f"{bmc.user}:a wrong one"
    for _ in range(3):
        with pytest.raises(ProviderRefused):
            adapter.reboot(NAME, deadline)
    assert bmc.bad_logins == 2


def test_a_401_in_the_middle_of_switching_off_is_not_repeated(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock
) -> None:
    """Looking again and again whether the machine is off must not lock the account."""
    bmc.faults.add(FakeAnswer(method="GET", path=bmc.system, nth=3, times=0, status=401))
    with pytest.raises(ProviderRefused):
        provider(rack, clock).power_cycle(NAME, Deadline(clock, 120))
    assert [call.split()[0] for call in bmc.calls] == ["GET", "GET", "PATCH", "POST", "GET"]


def test_a_bmc_with_many_systems_is_sent_a_wrong_password_once(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline
) -> None:
    """A chassis of blades has one BMC, and a listing asks for all of them."""
    bmc.password = "another one"
    entries = [
        {**rack.entries[0], "ID": f"blade-{number}", "Addr": f"192.0.2.{number}", "System": f"{bmc.system}{number}"}
        for number in range(1, 9)
    ]
    adapter = provider(rack, clock, read_list=lambda: json.dumps(entries).encode())
    assert {machine.status for machine in adapter.list_machines(deadline)} == {ProviderStatus.UNKNOWN}
    assert bmc.bad_logins == 1


@pytest.mark.parametrize("stored", ["", "nothing", "user:", ":password", "user:pass\x00word", "user:pa\nss"])
def test_a_secret_that_is_no_credential_is_not_sent(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline, stored: str
) -> None:
    """What is sent to a BMC stands in its log."""
    with pytest.raises(ProviderRefused, match=f"{SECRET!r} is not a credential; it must be user:password"):
        provider(rack, clock, secrets=Secrets({SECRET: stored})).get_machine(NAME, deadline)
    assert bmc.calls == []


def test_a_password_may_hold_anything_that_can_be_typed(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline
) -> None:
    """Colons, blanks and umlauts too; the end of the line, which editors add, is none of it."""
    bmc.password = 'a:b "c" \N{LATIN SMALL LETTER U WITH DIAERESIS}'
    for auth in ("basic", "session"):
        secrets = Secrets({SECRET: f"{bmc.user}:{bmc.password}\n"})
        provider(rack, clock, secrets=secrets, auth=auth).get_machine(NAME, deadline)
    assert bmc.bad_logins == 0


def test_a_missing_secret_and_an_unavailable_store_differ(
    rack: RedfishRack, clock: ManualClock, deadline: Deadline
) -> None:
    """One needs a person, the other time."""
    with pytest.raises(ProviderRefused, match=SECRET):
        provider(rack, clock, secrets=Secrets({})).get_machine(NAME, deadline)

    class Down(Secrets):
        def read(self, name: str) -> str:
            raise SecretUnavailable(name)

    with pytest.raises(ProviderUnavailable, match=SECRET):
        provider(rack, clock, secrets=Down({})).get_machine(NAME, deadline)


# Sessions


def test_a_session_is_closed_after_use(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline
) -> None:
    """A BMC has a handful, and locks everybody out when they are gone."""
    adapter = provider(rack, clock, auth="session")
    for _ in range(SESSION_SLOTS + 1):
        assert adapter.get_machine(NAME, deadline).status is ProviderStatus.RUNNING
    assert bmc.sessions == {}
    assert [call.split()[0] for call in bmc.calls[:4]] == ["GET", "POST", "GET", "DELETE"]


@pytest.mark.parametrize(
    "fault",
    [
        FakeAnswer(method="GET", path="/**/Systems/**", times=0, status=500),
        FakeAnswer(method="GET", path="/**/Systems/**", times=0, status=200, body="<html>"),
        FakeAnswer(method="POST", path=RESET, status=403),
        Drop(method="POST", path=RESET, when="after"),
    ],
)
def test_a_session_is_closed_after_an_error_too(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline, fault: Any
) -> None:
    """Errors repeat, and each would cost a session."""
    bmc.faults.add(fault)
    with pytest.raises((ProviderRefused, ProviderUnavailable)):
        provider(rack, clock, auth="session").reboot(NAME, deadline)
    assert any("Sessions" in call for call in bmc.calls)
    assert bmc.sessions == {}


def test_time_is_kept_for_closing_a_session(rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock) -> None:
    """A BMC that is slow would run out of them. A quarter of the time is kept, of more than eight seconds two."""
    bmc.faults.add(Delay(method="POST", path=RESET, seconds=3600))
    with pytest.raises((ProviderUnavailable, TimeLimitExceeded)):
        provider(rack, clock, auth="session").reboot(NAME, Deadline(SystemClock(), 4))
    eventually(lambda: bmc.sessions == {})


def test_a_session_that_cannot_be_closed_spoils_nothing(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline, capsys: pytest.CaptureFixture[str]
) -> None:
    """The restart has happened, and the BMC ends the session some time; but somebody may wonder."""
    bmc.faults.add(Drop(method="DELETE"))
    provider(rack, clock, auth="session").reboot(NAME, deadline)
    assert bmc.resets == ["ForceRestart"]
    assert "a session was left open" in capsys.readouterr().out


@pytest.mark.parametrize("location", ["http://[", "https://x:y/", "//[::1/sessions"])
def test_a_session_at_no_path_is_left_open(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline, location: str
) -> None:
    """The error of the parser would leave the adapter, after the restart."""
    bmc.session_location = location
    provider(rack, clock, auth="session").reboot(NAME, deadline)
    assert bmc.resets == ["ForceRestart"]


def test_a_session_that_ended_early_is_begun_again(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline
) -> None:
    """BMCs drop sessions when they like; that says nothing against the credential."""
    bmc.faults.add(FakeAnswer(method="POST", path=RESET, status=401))
    adapter = provider(rack, clock, auth="session")
    adapter.reboot(NAME, deadline)
    assert bmc.resets == ["ForceRestart"]
    adapter.reboot(NAME, deadline)


def test_a_bmc_without_a_free_session_is_tried_later(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline
) -> None:
    """Others use it too; its words say what the matter is."""
    bmc.sessions = {str(number): f"/{number}" for number in range(SESSION_SLOTS)}
    with pytest.raises(ProviderUnavailable, match="too many sessions are open"):
        provider(rack, clock, auth="session").reboot(NAME, deadline)
    assert bmc.resets == []


# Who it is


def test_an_unknown_certificate_gets_no_credential(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline
) -> None:
    """Any host that answers at the BMC's address would get the password."""
    rack.impersonate(NAME)
    with pytest.raises(ProviderRefused, match="CERTIFICATE_VERIFY_FAILED"):
        provider(rack, clock).reboot(NAME, deadline)
    assert bmc.calls == []


def test_a_pinned_certificate_needs_no_authority(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline
) -> None:
    """Most BMCs have a self-signed certificate, without a useful name."""
    rack.entries[0]["Fingerprint"] = rack.fingerprint
    settings = RedfishSettings(redfish_list="/unused")
    secrets = Secrets(dict(rack.secrets))
    adapter = RedfishProvider(
        settings, lambda: rack.document, clock, read_secret=secrets.read, invalidate_secret=secrets.invalidate
    )
    adapter.reboot(NAME, deadline)
    assert bmc.resets == ["ForceRestart"]
    rack.impersonate(NAME)
    calls = list(bmc.calls)
    with pytest.raises(ProviderRefused, match="Fingerprints did not match"):
        adapter.reboot(NAME, deadline)
    assert bmc.calls == calls


@pytest.mark.parametrize("document", [b"", b"no certificate", "ümlaut".encode()])
def test_authorities_that_are_none_are_said_to_be_none(
    rack: RedfishRack, clock: ManualClock, deadline: Deadline, document: bytes
) -> None:
    """With none at all, every BMC would seem to be at fault."""
    rack.ca_file.write_bytes(document)
    with pytest.raises(ProviderRefused, match="the CAs of the BMCs"):
        provider(rack, clock).list_machines(deadline)


def test_authorities_that_cannot_be_read_are_said_to_be_missing(
    rack: RedfishRack, clock: ManualClock, deadline: Deadline
) -> None:
    """The setting names them, and no BMC is to blame."""

    def missing() -> bytes:
        raise SourceMissing("no such object")

    adapter = provider(rack, clock)
    adapter._read_ca = missing
    with pytest.raises(ProviderRefused, match="the CAs of the BMCs: no such object"):
        adapter.reboot(NAME, deadline)


def test_a_bmc_with_several_systems_needs_the_system_named(
    rack: RedfishRack, bmc: SimulatedBmc, clock: ManualClock, deadline: Deadline
) -> None:
    """Which one was meant cannot be guessed."""
    del rack.entries[0]["System"]
    members = [{"@odata.id": bmc.system}, {"@odata.id": f"{bmc.system}-2"}]
    bmc.faults.add(FakeAnswer(path="/redfish/v1/Systems", times=0, status=200, body={"Members": members}))
    with pytest.raises(ProviderRefused, match="2 systems; the entry in the list must name its System"):
        provider(rack, clock).reboot(NAME, deadline)
