import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from shepherd_core.domain.pb.callback_pb2 import MetropolisInstallation, OSInstallationRequest

from agent.shepherd_agent.installation.installer import unsafe
from agent.shepherd_agent.installation.permit import NotPermitted, Permit
from agent.shepherd_agent.messages import InstallationRequest
from tests.support.agents.installation_key import KEY, NOW, PUBLIC, signed_request, taught

AGENT, STRANGER = 1000, 65534
OTHER = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
REQUEST = OSInstallationRequest(generation=7, metropolis=MetropolisInstallation(image_url="https://x/y"))
EVIL = OSInstallationRequest(generation=7, metropolis=MetropolisInstallation(image_url="https://evil/y"))


def checked(permit: Permit, request: OSInstallationRequest) -> bytes:
    return permit.check(InstallationRequest.decode(request.SerializeToString())).received


@pytest.fixture
def permit(tmp_path: Path) -> Permit:
    return Permit(taught(), str(tmp_path / "agent.generation"))


def test_what_was_signed_is_carried_out_and_nothing_else(permit: Permit) -> None:
    """The fields of Metropolis' protocol are not signed."""
    signed = signed_request(REQUEST)
    signed.metropolis.image_url = "https://evil/y"
    assert OSInstallationRequest.FromString(checked(permit, signed)) == REQUEST


def changed(request: OSInstallationRequest, **fields: Any) -> OSInstallationRequest:
    signed = signed_request(request)
    for name, value in fields.items():
        setattr(signed, name, value)
    return signed


UNKNOWN_KEY = "not signed with a key that this agent was started with: see "
EXPIRED = "the signature expired at"
UNREADABLE = KEY.sign(b"shepherd-installation-v1\n\xff")


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (REQUEST, "the request is not signed"),
        (changed(REQUEST, signature=b""), "the request is not signed"),
        (changed(EVIL, signature=signed_request(REQUEST).signature), UNKNOWN_KEY),
        (signed_request(REQUEST, key=OTHER), UNKNOWN_KEY),
        (signed_request(REQUEST, domain=b"shepherd-agent-v1\n"), UNKNOWN_KEY),
        (signed_request(REQUEST, machine_id="other"), "the request was signed for machine other"),
        (signed_request(REQUEST, machine_id=""), "the request was signed for machine "),
        (changed(REQUEST, generation=8), "the request was signed as generation 7"),
        (
            signed_request(REQUEST, expires_at=NOW - 1),
            f"{EXPIRED} 2027-01-15 07:59:59Z, and it is 2027-01-15 08:00:00Z",
        ),
        (signed_request(REQUEST, expires_at=-(2**63)), f"{EXPIRED} -292275055-05-16 "),
        (OSInstallationRequest(generation=7, signed=b"\xff", signature=UNREADABLE), "not a SignedInstallation"),
    ],
)
def test_a_request_is_for_one_machine_generation_and_time(
    permit: Permit, request_: OSInstallationRequest, why: str
) -> None:
    with pytest.raises(NotPermitted, match=why):
        checked(permit, request_)


def test_each_key_of_the_takeover_counts(tmp_path: Path) -> None:
    record = str(tmp_path / "agent.generation")
    both = Permit(taught("id", OTHER.public_key().public_bytes_raw(), PUBLIC), record)
    for key in (KEY, OTHER):
        assert checked(both, signed_request(REQUEST, key=key))
    with pytest.raises(NotPermitted, match="started while there was no installation key: see "):
        checked(Permit(replace(taught(), installation_keys=()), record), signed_request(REQUEST))


def test_time_goes_on_from_the_takeover(tmp_path: Path) -> None:
    """The machine's clock can be set by its network, and the endpoint's time is the endpoint's word."""
    seconds = [1000.0]
    permit = Permit(taught(), str(tmp_path / "agent.generation"), lambda: seconds[0])
    request = signed_request(REQUEST, expires_at=NOW + 60_000)
    seconds[0] += 60
    assert checked(permit, request)
    seconds[0] += 1
    with pytest.raises(NotPermitted, match="expired"):
        checked(permit, request)


@pytest.mark.parametrize("content", ["", "other 9\n", "id 6\n", "id 6" + " " * 300])
def test_a_generation_is_used_after_lower_and_foreign_ones(permit: Permit, tmp_path: Path, content: str) -> None:
    """The disk may come from another machine, or the machine have another id by now."""
    record = tmp_path / "agent.generation"
    record.write_text(content)
    permit.use(7)
    assert record.read_text().split() == ["id", "7"]
    with pytest.raises(NotPermitted, match="has started generation 7"):
        permit.use(7)


def test_a_damaged_record_permits_nothing(permit: Permit, tmp_path: Path) -> None:
    (tmp_path / "agent.generation").write_text("id seven")
    with pytest.raises(ValueError, match="seven"):
        permit.use(7)


@pytest.mark.parametrize(
    ("owner", "mode", "may_be_sticky", "fault"),
    [
        (0, 0o100755, False, None),
        (AGENT, 0o100700, False, None),
        (STRANGER, 0o100700, False, "belongs to user 65534, not to root"),
        (STRANGER, 0o41777, True, "belongs to user 65534, not to root"),
        (0, 0o100775, False, "is writable by others (mode 0775)"),
        (AGENT, 0o100702, False, "is writable by others (mode 0702)"),
        (0, 0o41777, False, "is writable by others (mode 1777)"),
        (0, 0o41777, True, None),
        (0, 0o40777, True, "is writable by others (mode 0777)"),
    ],
)
def test_only_root_and_agent_may_change_what_runs(
    owner: int, mode: int, may_be_sticky: bool, fault: str | None
) -> None:
    """It runs as root: anyone who can write it, or a directory above it, would be root."""
    assert unsafe(os.stat_result((mode, 1, 1, 1, owner, 0, 0, 0, 0, 0)), AGENT, may_be_sticky=may_be_sticky) == fault
