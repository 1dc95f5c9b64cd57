from typing import Any, ClassVar
from uuid import UUID

import pytest
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors.provider import ProviderError, ProviderRefused, ProviderUnavailable
from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.domain.provider import Provider
from shepherd_core.providers.cherryservers import CherryserversProvider
from shepherd_core.providers.kit.hosting import mark_of
from shepherd_core.providers.latitude import LatitudeProvider, name_of
from shepherd_core.providers.phoenixnap import PhoenixnapProvider
from shepherd_core.providers.scaleway import ScalewayProvider
from shepherd_core.providers.vultr import VultrProvider
from shepherd_core.settings.providers.cherryservers import CherryserversSettings
from shepherd_core.settings.providers.latitude import LatitudeSettings
from shepherd_core.settings.providers.phoenixnap import PhoenixnapSettings
from shepherd_core.settings.providers.scaleway import ScalewaySettings
from shepherd_core.settings.providers.vultr import VultrSettings

from simulator.environment.faults import FakeAnswer, SetValue
from simulator.providers.cherryservers import api as cherryservers
from simulator.providers.kit.machines import Options
from simulator.providers.latitude import api as latitude
from simulator.providers.phoenixnap.api import PhoenixnapApi
from simulator.providers.scaleway import api as scaleway
from simulator.providers.vultr.api import VultrApi
from tests.conftest import ManualClock
from tests.integration.providers.contract.hosting_contract import OURS, HostingContract
from tests.integration.providers.contract.provider_contract import Places, Setup

PROVISIONING, RUNNING = ProviderStatus.PROVISIONING, ProviderStatus.RUNNING
FAILED = ProviderStatus.PROVISIONING_FAILED_PERMANENT
PAGES = {"options": Options(per_page_cap=2)}


class TestCherryservers(HostingContract):
    """What a server's deployment says counts for more than its state."""

    adapter = CherryserversSettings, CherryserversProvider
    simulator = cherryservers.CherryserversApi, PAGES
    where: ClassVar = {"project": str(cherryservers.PROJECT), "location": "eu_nord_1"}
    given: ClassVar = {**where, "fleet": "web", "machine_type": "e5_1620v4", "key_name": "shepherd"}
    tags: ClassVar = {"role": "db", "gpu": ""}
    states: ClassVar = {
        "active deploying": (PROVISIONING, None),
        "active allocated": (RUNNING, None),
        "active never heard of": (RUNNING, None),
        "pending failed deployment": (FAILED, "failed deployment"),
        "terminating deployed": None,
    }
    path = f"/projects/{cherryservers.PROJECT}/servers"
    spoils = SetValue(path=path, times=0, at="*.id", value=7)
    places = Places(path=path, id="*.id", address="*.ip_addresses.*.address")
    servers = (
        ("a", {"address": "192.0.2.1", "tags": {"env": "dev", "shepherd": mark_of("web/1", OURS)}}),
        ("b", {"address": "192.0.2.2", "tags": {"env": "dev"}}),
        ("c", {"address": "192.0.2.3", "tags": {"shepherd": mark_of("web2/2", OURS)}}),
        ("d", {"address": "192.0.2.4", "tags": {"shepherd": mark_of("web/2", OURS)}, "project": 1}),
    )


class TestLatitude(HostingContract):
    """A new server is paid by the hour: the API's own default is a month, charged at once."""

    adapter = LatitudeSettings, LatitudeProvider
    simulator = latitude.LatitudeApi, PAGES
    fleet = latitude.PROJECT
    given: ClassVar = {"project": fleet, "location": "ASH", "machine_type": "c3-small-x86", "key_name": "shepherd"}
    ordered: ClassVar = {"billing": "hourly"}
    off = "off"
    states: ClassVar = {state: (FAILED, state) for state in ("failed_deployment", "failed_disk_erasing")}
    spoils = SetValue(path="/servers", times=0, at="meta.stats.total.count", value=99)
    places = Places(path="/servers", id="data.*.id", address="data.*.attributes.primary_ipv4")
    servers = (
        (name_of(OURS, "1"), {"address": "192.0.2.1"}),
        ("web-1", {"address": "192.0.2.2"}),
        (name_of(UUID(int=7), "2"), {"address": "192.0.2.3", "project": "proj_other"}),
    )

    def test_a_new_server_under_another_name_leaves_the_outcome_unknown(
        self, setup: Setup, api: latitude.LatitudeApi, deadline: Deadline
    ) -> None:
        """It is paid for. After a refusal, the Provisioner would forget it and make another one."""
        api.faults.add(SetValue(method="POST", path="/servers", at="data.attributes.hostname", value=None))
        with pytest.raises(ProviderUnavailable, match="not the one that was asked for"):
            self.create(setup.provider, deadline)
        self.create(setup.provider, deadline)
        assert api.calls["POST", "/servers"] == 1


class TestPhoenixnap(HostingContract):
    """A new server is paid by the hour: a reservation is paid for months. Keys are for the distribution's user only."""

    adapter = PhoenixnapSettings, PhoenixnapProvider
    simulator: ClassVar = (PhoenixnapApi, {})
    secret = "client:a-secret-that-nobody-may-see"
    fleet = "blue"
    given: ClassVar = {"fleet": fleet, "location": "PHX", "machine_type": "s1.c1.small"}
    ordered: ClassVar = {"pricingModel": "HOURLY"}
    off = "powered-off"
    tags: ClassVar = [
        {"id": "1", "isBillingTag": False, "name": "role", "value": "db"},
        {"id": "2", "isBillingTag": False, "name": "gpu"},
    ]
    states: ClassVar = {"resetting": (PROVISIONING, None), "rebooting": (RUNNING, None), "reserved": None}
    spoils = SetValue(path="/servers", times=0, at="*.id", value="the same")
    places = Places(path="/servers", id="*.id", address="*.publicIpAddresses.0")
    setup_facts: ClassVar = {"calls": "/servers**"}
    servers = (
        (mark_of("blue/1", OURS), {"address": "192.0.2.1"}),
        ("web-1", {"address": "192.0.2.2 - 192.0.2.6"}),
        (mark_of("green/2", UUID(int=7)), {"address": "192.0.2.9"}),
    )

    def provider(self, api: PhoenixnapApi, clock: ManualClock, **settings: Any) -> Provider:
        return super().provider(api, clock, auth_url=f"{api.url}/token", **settings)

    def test_a_released_server_takes_its_addresses_with_it(
        self, setup: Setup, api: PhoenixnapApi, deadline: Deadline
    ) -> None:
        """Otherwise they are paid for, for ever. A server with a reservation stays listed, and is not ours any more."""
        ours = self.ours(setup, deadline)
        api.machine(ours.provider_id).fields["pricingModel"] = "ONE_MONTH_RESERVATION"
        setup.provider.release(ours.provider_id, deadline)
        server = api.machine(ours.provider_id)
        assert (server.state, server.fields["deleteIpBlocks"]) == ("reserved", True)

    def test_the_first_address_of_a_range_is_the_server_s(
        self, setup: Setup, api: PhoenixnapApi, deadline: Deadline
    ) -> None:
        """The description writes ranges where a network has several addresses."""
        ours = self.ours(setup, deadline)
        api.change(ours.provider_id, address="192.0.2.17 - 192.0.2.21")
        assert str(setup.provider.get_machine(ours.provider_id, deadline).address) == "192.0.2.17"


class TestScaleway(HostingContract):
    """A server is ready long before its operating system is; its deletion takes half an hour."""

    adapter = ScalewaySettings, ScalewayProvider
    simulator = scaleway.ScalewayApi, PAGES
    what: ClassVar = {"os": scaleway.OS, "machine_type": scaleway.OFFER, "location": scaleway.ZONE}
    given: ClassVar = {**what, "project": scaleway.PROJECT, "fleet": "web", "key_name": "shepherd"}
    off = "stopped"
    tags: ClassVar = ["role=db", "gpu"]
    states: ClassVar = {
        "ready installing": (PROVISIONING, None),
        "ready error": (FAILED, "ready error"),
        "ready completed": (RUNNING, None),
        "ready unheard of": (RUNNING, None),
        "deleting": None,
    }
    path = f"/baremetal/v1/zones/{scaleway.ZONE}/servers"
    spoils = SetValue(path=path, times=0, at="total_count", value=99)
    places = Places(path=path, id="servers.*.id", address="servers.*.ips.*.address")
    servers = (
        ("a", {"address": "192.0.2.1", "tags": ["red", mark_of("web/1", OURS)]}),
        ("b", {"address": "192.0.2.2", "tags": ["red"]}),
        ("c", {"address": "192.0.2.3", "tags": [mark_of("web2/2", OURS)]}),
        ("d", {"address": "192.0.2.4", "tags": [mark_of("web/2", OURS)], "project_id": "other"}),
    )

    def test_nothing_is_ordered_by_the_month_unasked(
        self, api: scaleway.ScalewayApi, clock: ManualClock, deadline: Deadline
    ) -> None:
        """A monthly offer costs a commitment fee at once."""
        monthly = {"machine_type": scaleway.MONTHLY_OFFER}
        with pytest.raises(ProviderRefused, match="machine_type is not hourly"):
            self.create(self.provider(api, clock, **monthly), deadline)
        made = self.create(self.provider(api, clock, **monthly, billing="monthly"), deadline)
        assert api.machine(made.provider_id).fields["offer_id"] == scaleway.MONTHLY_OFFER

    @pytest.mark.parametrize(
        ("body", "status", "raised"),
        [
            ({"type": "transient_state"}, 409, ProviderUnavailable),
            ({"type": "quotas_exceeded"}, 403, ProviderRefused),
            ({"type": "out_of_stock"}, 503, ProviderRefused),
            ({"message": "cloud-init is not supported on this offer"}, 503, ProviderRefused),  # recorded
        ],
    )
    def test_what_an_error_says_counts(
        self, setup: Setup, api: scaleway.ScalewayApi, deadline: Deadline, body: Any, status: int, raised: Any
    ) -> None:
        """A quota or an empty stock is no fault of the credential, and no reason to try again at once."""
        api.faults.add(FakeAnswer(method="POST", path=self.path, times=0, status=status, body=body))
        with pytest.raises(ProviderError, match="|".join(body.values())) as found:
            self.create(setup.provider, deadline)
        assert type(found.value) is raised
        assert getattr(found.value, "retry_after", 60) == 60


class TestVultr(HostingContract):
    adapter = VultrSettings, VultrProvider
    simulator = VultrApi, PAGES
    what: ClassVar = {"os": 1743, "machine_type": "vbm-4c-32gb", "location": "ewr"}
    given: ClassVar = {**what, "fleet": "web", "key_name": "shepherd"}
    ordered: ClassVar = {"os_id": 1743}
    tags: ClassVar = ["role=db", "gpu"]
    states: ClassVar = {"pending": (PROVISIONING, None), "suspended": (ProviderStatus.UNKNOWN, None)}
    spoils = SetValue(path="/bare-metals", times=0, at="meta.total", value=99)
    places = Places(path="/bare-metals", id="bare_metals.*.id", address="bare_metals.*.main_ip")
    setup_facts: ClassVar = {"keyed": ("create",)}
    servers = (
        ("a", {"address": "192.0.2.1", "tags": ["red", mark_of("web/1", OURS)]}),
        ("b", {"address": "192.0.2.2", "tags": ["red"]}),
        ("c", {"address": "192.0.2.3", "tags": [mark_of("web2/2", OURS)]}),
    )
