"""The adapter of Latitude.sh, held to the contract of all providers."""

from collections.abc import Iterator
from uuid import UUID

import pytest
from shepherd_core.domain.clock import Deadline, Permission, SystemClock
from shepherd_core.domain.errors.provider import ProviderUnavailable
from shepherd_core.domain.machine import INVALID, Availability, Machine
from shepherd_core.providers.latitude import LatitudeProvider, name_of, token_of
from shepherd_core.settings.providers.latitude import LatitudeSettings

from simulator.environment.faults import SetValue
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.kit.machines import Options
from simulator.providers.latitude.api import PROJECT, LatitudeApi
from tests.conftest import ManualClock
from tests.support.providers.description import Description
from tests.support.providers.provider_contract import Places, ProviderContract, Setup, context
from tests.support.providers.provider_faults import ProviderFaults

TOKEN = "a-token-that-nobody-may-see"
COUNT = "meta.stats.total.count"
A = "a" * 26
OURS = UUID(int=2**127 + 5)


class TestLatitude(ProviderContract, ProviderFaults):
    lacks = frozenset({"power-cycle"})

    @pytest.fixture
    def api(self) -> Iterator[LatitudeApi]:
        """Return an account with a server of ours, one that somebody else made, and one of another project."""
        with LatitudeApi(NoHardware(), secret=TOKEN, options=Options(per_page_cap=2)) as api:
            api.add_active(name_of(OURS, "1"), address="192.0.2.1")
            api.add_active("web-1", address="192.0.2.2")
            api.add_active(name_of(UUID(int=7), "2"), address="192.0.2.3", project="proj_other")
            Description("latitude").hold(api)
            yield api
            assert api.errors == []

    @pytest.fixture
    def setup(self, clock: ManualClock, api: LatitudeApi) -> Setup:
        settings = LatitudeSettings(
            credential_parameter="/unused",
            project=PROJECT,
            limit=4,
            location="ASH",
            machine_type="c3-small-x86",
            key_name="shepherd",
            api_url=api.url,
        )
        return Setup.of(
            api,
            api.machines.hardware,
            SetValue(path="/servers", times=0, at="meta.stats.total.count", value=99),
            provider=LatitudeProvider(settings, context(clock, TOKEN)),
            capacity_ids=frozenset(f"{PROJECT}/{number}" for number in range(1, 5)),
            stores_tokens=True,
            remove_keys=api.keys.clear,
            keyed=("create", "reinstall"),
            confuse=lambda provider_id: api.change(provider_id, state="unheard of"),
            secret=TOKEN,
            places=Places(path="/servers", id="data.*.id", address="data.*.attributes.primary_ipv4"),
        )

    def test_a_server_that_is_off_is_switched_on(self, setup: Setup, api: LatitudeApi, deadline: Deadline) -> None:
        (ours,) = [each for each in setup.provider.list_machines(deadline) if each.token == OURS]
        api.change(ours.provider_id, state="off")
        setup.provider.reboot(ours.provider_id, Permission(deadline))
        assert api.machine(ours.provider_id).actions_taken == ["power_on"]

    def test_a_new_server_is_hourly_and_stands_where_ordered(self, setup: Setup, api: LatitudeApi) -> None:
        """The API's own default is a month, charged at once; the answer to a creation names no region."""
        capacity = Machine(provider_id=INVALID, availability=Availability.KNOWN_UNUSED, reservation_id=f"{PROJECT}/3")
        made = setup.provider.create_machine(capacity, UUID(int=9), Deadline(SystemClock(), 10))
        assert (api.machine(made.provider_id).fields["billing"], made.location) == ("hourly", "ASH")
        assert "ASH" in {each.location for each in setup.provider.list_machines(Deadline(SystemClock(), 10))}

    def test_a_new_server_under_another_name_leaves_the_outcome_unknown(self, setup: Setup, api: LatitudeApi) -> None:
        """It is paid for. After a refusal, the Provisioner would forget it and make another one."""
        capacity = Machine(provider_id=INVALID, availability=Availability.KNOWN_UNUSED, reservation_id=f"{PROJECT}/3")
        api.faults.add(SetValue(method="POST", path="/servers", at="data.attributes.hostname", value=None))
        with pytest.raises(ProviderUnavailable, match="not the one that was asked for"):
            setup.provider.create_machine(capacity, UUID(int=9), Deadline(SystemClock(), 10))
        setup.provider.create_machine(capacity, UUID(int=9), Deadline(SystemClock(), 10))
        assert api.calls["POST", "/servers"] == 1

    @pytest.mark.parametrize("state", ["failed_deployment", "failed_disk_erasing"])
    def test_a_failed_server_is_stranded(self, setup: Setup, api: LatitudeApi, state: str) -> None:
        deadline = Deadline(SystemClock(), 10)
        (ours,) = (each for each in setup.provider.list_machines(deadline) if each.token)
        api.change(ours.provider_id, state=state)
        failed = setup.provider.get_machine(ours.provider_id, deadline)
        assert (failed.failed, failed.failure) == (True, state)


@pytest.mark.parametrize("token", [UUID(int=0), UUID(int=2**128 - 1), OURS])
def test_a_host_name_holds_token_and_slot(token: UUID) -> None:
    """It is the only place for them, and has 32 characters."""
    name = name_of(token, "99999")
    assert len(name) == 32
    assert token_of(name) == token


@pytest.mark.parametrize(
    "name", ["web-1", "", f"{'a' * 26}-0", f"{'a' * 26}-100000", f"{'A' * 26}-1", f"{'a' * 26}-1 "]
)
def test_other_host_names_are_of_other_servers(name: str) -> None:
    assert token_of(name) is None
