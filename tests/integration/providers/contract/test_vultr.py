"""The adapter of Vultr's bare metal, held to the contract of all providers and to the API's description."""

from typing import ClassVar

from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.providers.kit.hosting import mark_of
from shepherd_core.providers.vultr import VultrProvider
from shepherd_core.settings.providers.vultr import VultrSettings

from simulator.environment.faults import SetValue
from simulator.providers.kit.machines import Options
from simulator.providers.vultr.api import VultrApi
from tests.integration.providers.contract.hosting_contract import NEW, OURS, HostingContract
from tests.integration.providers.contract.provider_contract import Places, Setup


class TestVultr(HostingContract):
    adapter = VultrSettings, VultrProvider
    tags: ClassVar = ["role=db", "gpu"]
    given: ClassVar = {
        "fleet": "web",
        "location": "ewr",
        "machine_type": "vbm-4c-32gb",
        "os": 1743,
        "key_name": "shepherd",
    }
    spoils = SetValue(path="/bare-metals", times=0, at="meta.total", value=99)
    places = Places(path="/bare-metals", id="bare_metals.*.id", address="bare_metals.*.main_ip")
    setup_facts: ClassVar = {"keyed": ("create",)}

    simulator = VultrApi, {"options": Options(per_page_cap=2)}
    servers = (
        ("a", {"address": "192.0.2.1", "tags": ["red", mark_of("web/1", OURS)]}),
        ("b", {"address": "192.0.2.2", "tags": ["red"]}),
        ("c", {"address": "192.0.2.3", "tags": [mark_of("web2/2", OURS)]}),
    )

    def test_a_new_server_is_marked_and_has_no_address_yet(
        self, setup: Setup, api: VultrApi, deadline: Deadline
    ) -> None:
        made = self.create(setup.provider, deadline)
        assert (made.status, made.address, made.location) == (ProviderStatus.PROVISIONING, None, "ewr")
        ordered = api.machine(made.provider_id)
        assert (ordered.name, ordered.fields["os_id"]) == (mark_of("web/3", NEW), 1743)
