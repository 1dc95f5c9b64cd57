"""The adapter of Scaleway's Elastic Metal, held to the contract of all providers."""

from typing import Any, ClassVar

import pytest
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors.provider import ProviderError, ProviderRefused, ProviderUnavailable
from shepherd_core.domain.machine import Availability, ProviderStatus
from shepherd_core.providers.kit.hosting import mark_of
from shepherd_core.providers.scaleway import ScalewayProvider
from shepherd_core.settings.providers.scaleway import ScalewaySettings

from simulator.environment.faults import FakeAnswer, SetValue
from simulator.providers.kit.machines import Options
from simulator.providers.scaleway.api import MONTHLY_OFFER, OFFER, OS, PROJECT, ZONE, ScalewayApi
from tests.conftest import ManualClock
from tests.integration.providers.contract.hosting_contract import OURS, HostingContract, SwitchedOn
from tests.integration.providers.contract.provider_contract import Places, Setup

SERVERS = f"/baremetal/v1/zones/{ZONE}/servers"


class TestScaleway(HostingContract, SwitchedOn):
    adapter = ScalewaySettings, ScalewayProvider
    tags: ClassVar = ["role=db", "gpu"]
    given: ClassVar = {
        "project": PROJECT,
        "fleet": "web",
        "location": ZONE,
        "os": OS,
        "machine_type": OFFER,
        "key_name": "shepherd",
    }
    off = "stopped"
    spoils = SetValue(path=SERVERS, times=0, at="total_count", value=99)
    places = Places(path=SERVERS, id="servers.*.id", address="servers.*.ips.*.address")

    simulator = ScalewayApi, {"options": Options(per_page_cap=2)}
    servers = (
        ("a", {"address": "192.0.2.1", "tags": ["red", mark_of("web/1", OURS)]}),
        ("b", {"address": "192.0.2.2", "tags": ["red"]}),
        ("c", {"address": "192.0.2.3", "tags": [mark_of("web2/2", OURS)]}),
        ("d", {"address": "192.0.2.4", "tags": [mark_of("web/2", OURS)], "project_id": "other"}),
    )

    def test_nothing_is_ordered_by_the_month_unasked(
        self, api: ScalewayApi, clock: ManualClock, deadline: Deadline
    ) -> None:
        """A monthly offer costs a commitment fee at once."""
        with pytest.raises(ProviderRefused, match="machine_type is not hourly"):
            self.create(self.provider(api, clock, machine_type=MONTHLY_OFFER), deadline)
        made = self.create(self.provider(api, clock, machine_type=MONTHLY_OFFER, billing="monthly"), deadline)
        assert api.machine(made.provider_id).fields["offer_id"] == MONTHLY_OFFER

    def test_a_server_that_is_being_deleted_is_not_ours(
        self, setup: Setup, api: ScalewayApi, deadline: Deadline
    ) -> None:
        """The deletion takes half an hour, in which nothing can be done with it; its slot is free."""
        ours = self.ours(setup, deadline)
        api.change(ours.provider_id, state="deleting")
        assert all(each.availability is Availability.KNOWN_UNUSED for each in setup.provider.list_machines(deadline))
        setup.provider.release(ours.provider_id, deadline)
        assert ("DELETE", f"{SERVERS}/{{id}}") not in api.calls

    @pytest.mark.parametrize(
        ("field", "says", "status", "raised"),
        [
            ("type", "transient_state", 409, ProviderUnavailable),
            ("type", "quotas_exceeded", 403, ProviderRefused),
            ("type", "out_of_stock", 503, ProviderRefused),
            ("message", "cloud-init is not supported on this offer", 503, ProviderRefused),  # recorded
        ],
    )
    def test_what_an_error_says_counts(
        self, setup: Setup, api: ScalewayApi, deadline: Deadline, field: str, says: str, status: int, raised: Any
    ) -> None:
        """A quota or an empty stock is no fault of the credential, and no reason to try again at once."""
        api.faults.add(FakeAnswer(method="POST", path=SERVERS, times=0, status=status, body={field: says}))
        with pytest.raises(ProviderError, match=says) as found:
            self.create(setup.provider, deadline)
        assert type(found.value) is raised

    @pytest.mark.parametrize(
        ("installing", "status"),
        [
            ("installing", ProviderStatus.PROVISIONING),
            ("error", ProviderStatus.PROVISIONING_FAILED_PERMANENT),
            ("completed", ProviderStatus.RUNNING),
            ("unheard of", ProviderStatus.RUNNING),
        ],
    )
    def test_a_delivered_server_runs_when_its_system_is_installed(
        self, setup: Setup, api: ScalewayApi, deadline: Deadline, installing: str, status: ProviderStatus
    ) -> None:
        """A server is ready long before its operating system is."""
        api.faults.add(SetValue(path=SERVERS, times=0, at="servers.*.install.status", value=installing))
        listed = setup.provider.list_machines(deadline)
        failure = "ready error" if installing == "error" else None
        assert [(each.status, each.failed, each.failure) for each in listed if each.token == OURS] == [
            (status, failure is not None, failure)
        ]
