"""A provider that releases machines: the simulated project, whose devices can be deleted."""

import requests
from shepherd_core.bmdb.listings.decommissioning import RemovalRequest
from shepherd_core.domain.clock import Clock, Deadline
from shepherd_core.domain.errors.provider import ProviderRefused, ProviderUnavailable
from shepherd_core.domain.machine import ProviderId
from shepherd_core.domain.provider import Capability
from shepherd_core.providers.equinix.adapter import EquinixProvider
from shepherd_core.rules.drift import FRESH_SECONDS

from simulator.providers.equinix.api import EquinixApi
from tests.support.bmdb.capacity import API_KEY, PUBLIC_KEY, Edge, equinix_settings
from tests.support.waiting import eventually

ORDER = RemovalRequest("me", "it is slow", FRESH_SECONDS)


class Deleting(EquinixProvider):
    """The adapter with a release method: machines are released as the API does it."""

    capabilities = EquinixProvider.capabilities | {Capability.RELEASE}

    def __init__(self, api: EquinixApi, clock: Clock) -> None:
        super().__init__(equinix_settings(api), lambda: API_KEY, lambda: PUBLIC_KEY, clock)
        self._api_server = api

    def release(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """Delete the device, and return when it is gone; a device that is gone, or going, counts as released."""
        try:
            url = f"{self._api_server.url}/devices/{provider_id}"
            answer = requests.delete(url, headers={"X-Auth-Token": API_KEY}, timeout=deadline.left(10))
        except requests.RequestException as error:
            raise ProviderUnavailable(str(error)) from error
        if answer.status_code >= 500:
            raise ProviderUnavailable(str(answer.status_code))
        going = answer.status_code == 422 and "deprovisioning" in answer.text
        if answer.status_code not in (204, 404) and not going:
            raise ProviderRefused(str(answer.status_code))
        eventually(lambda: provider_id not in {device.id for device in self._api_server.devices()})


def deleting(api: EquinixApi, clock: Clock) -> Edge:
    """Return it with hooks."""
    return Edge(Deleting(api, clock))
