"""The adapter of Cherry Servers, held to the contract of all providers and to the API's description."""

from typing import ClassVar

import pytest
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.providers.cherryservers import CherryserversProvider
from shepherd_core.providers.kit.hosting import mark_of
from shepherd_core.settings.providers.cherryservers import CherryserversSettings

from simulator.environment.faults import SetValue
from simulator.providers.cherryservers.api import PROJECT, CherryserversApi
from simulator.providers.kit.machines import Options
from tests.integration.providers.contract.hosting_contract import OURS, HostingContract
from tests.integration.providers.contract.provider_contract import Places, Setup

SERVERS = f"/projects/{PROJECT}/servers"


class TestCherryservers(HostingContract):
    adapter = CherryserversSettings, CherryserversProvider
    tags: ClassVar = {"role": "db", "gpu": ""}
    given: ClassVar = {
        "project": str(PROJECT),
        "fleet": "web",
        "location": "eu_nord_1",
        "machine_type": "e5_1620v4",
        "key_name": "shepherd",
    }
    spoils = SetValue(path=SERVERS, times=0, at="*.id", value=7)
    places = Places(path=SERVERS, id="*.id", address="*.ip_addresses.*.address")

    simulator = CherryserversApi, {"options": Options(per_page_cap=2)}
    servers = (
        ("a", {"address": "192.0.2.1", "tags": {"env": "dev", "shepherd": mark_of("web/1", OURS)}}),
        ("b", {"address": "192.0.2.2", "tags": {"env": "dev"}}),
        ("c", {"address": "192.0.2.3", "tags": {"shepherd": mark_of("web2/2", OURS)}}),
        ("d", {"address": "192.0.2.4", "tags": {"shepherd": mark_of("web/2", OURS)}, "project": 1}),
    )

    @pytest.mark.parametrize(
        ("state", "status", "failure"),
        [
            ("active deploying", ProviderStatus.PROVISIONING, None),
            ("active allocated", ProviderStatus.RUNNING, None),
            ("active never heard of", ProviderStatus.RUNNING, None),
            ("pending failed deployment", ProviderStatus.PROVISIONING_FAILED_PERMANENT, "failed deployment"),
            ("terminating deployed", None, None),
        ],
    )
    def test_the_deployment_says_more_than_the_state(
        self,
        setup: Setup,
        api: CherryserversApi,
        deadline: Deadline,
        state: str,
        status: ProviderStatus | None,
        failure: str | None,
    ) -> None:
        api.change(self.ours(setup, deadline).provider_id, state=state)
        found = [(each.status, each.failure) for each in setup.provider.list_machines(deadline) if each.token == OURS]
        assert found == ([] if status is None else [(status, failure)])
