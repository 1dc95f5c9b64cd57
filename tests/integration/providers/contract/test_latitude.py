"""The adapter of Latitude.sh, held to the contract of all providers."""

from typing import ClassVar
from uuid import UUID

import pytest
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors.provider import ProviderUnavailable
from shepherd_core.providers.latitude import LatitudeProvider, name_of, token_of
from shepherd_core.settings.providers.latitude import LatitudeSettings

from simulator.environment.faults import SetValue
from simulator.providers.kit.machines import Options
from simulator.providers.latitude.api import PROJECT, LatitudeApi
from tests.integration.providers.contract.hosting_contract import OURS, HostingContract, SwitchedOn
from tests.integration.providers.contract.provider_contract import Places, Setup


class TestLatitude(HostingContract, SwitchedOn):
    adapter = LatitudeSettings, LatitudeProvider
    fleet = PROJECT
    given: ClassVar = {
        "project": PROJECT,
        "location": "ASH",
        "machine_type": "c3-small-x86",
        "key_name": "shepherd",
    }
    off = "off"
    spoils = SetValue(path="/servers", times=0, at="meta.stats.total.count", value=99)
    places = Places(path="/servers", id="data.*.id", address="data.*.attributes.primary_ipv4")

    simulator = LatitudeApi, {"options": Options(per_page_cap=2)}
    servers = (
        (name_of(OURS, "1"), {"address": "192.0.2.1"}),
        ("web-1", {"address": "192.0.2.2"}),
        (name_of(UUID(int=7), "2"), {"address": "192.0.2.3", "project": "proj_other"}),
    )

    def test_a_new_server_is_hourly_and_stands_where_ordered(
        self, setup: Setup, api: LatitudeApi, deadline: Deadline
    ) -> None:
        """The API's own default is a month, charged at once; the answer to a creation names no region."""
        made = self.create(setup.provider, deadline)
        assert (api.machine(made.provider_id).fields["billing"], made.location) == ("hourly", "ASH")
        assert "ASH" in {each.location for each in setup.provider.list_machines(deadline)}

    def test_a_new_server_under_another_name_leaves_the_outcome_unknown(
        self, setup: Setup, api: LatitudeApi, deadline: Deadline
    ) -> None:
        """It is paid for. After a refusal, the Provisioner would forget it and make another one."""
        api.faults.add(SetValue(method="POST", path="/servers", at="data.attributes.hostname", value=None))
        with pytest.raises(ProviderUnavailable, match="not the one that was asked for"):
            self.create(setup.provider, deadline)
        self.create(setup.provider, deadline)
        assert api.calls["POST", "/servers"] == 1

    @pytest.mark.parametrize("state", ["failed_deployment", "failed_disk_erasing"])
    def test_a_failed_server_is_stranded(self, setup: Setup, api: LatitudeApi, deadline: Deadline, state: str) -> None:
        ours = self.ours(setup, deadline).provider_id
        api.change(ours, state=state)
        failed = setup.provider.get_machine(ours, deadline)
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
