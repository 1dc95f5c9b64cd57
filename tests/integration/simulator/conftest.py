"""What the tests of the simulated Equinix API share."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from simulator.environment.faults import Rule
from tests.support.providers.equinix_client import EquinixClient, Make


@pytest.fixture
def make() -> Iterator[Make]:
    """Make clients with an API each, which end with the test; no API may have an error."""
    clients: list[EquinixClient] = []
    with ExitStack() as stack:

        def client(*faults: Rule, **settings: Any) -> EquinixClient:
            clients.append(EquinixClient(stack, *faults, **settings))
            return clients[-1]

        yield client
        assert [error for made in clients for error in made.api.errors] == []
