"""The project that tests of listings share."""

from collections.abc import Iterator

import pytest

from simulator.providers.equinix.api import EquinixApi
from simulator.providers.kit.hardware import NoHardware
from tests.support.bmdb.capacity import API_KEY, PROJECT


@pytest.fixture
def api() -> Iterator[EquinixApi]:
    """Return a project with two free reservations."""
    with EquinixApi(NoHardware(), project_id=PROJECT, api_key=API_KEY, reservations=2) as api:
        yield api
        assert api.errors == []
