"""A console of the test's fleet, and somebody who reads it."""

from collections.abc import Iterator

import pytest

from shepherdctl.console.guard import Access
from tests.support.bmdb.fleet import Fleet
from tests.support.console import Visitor, serving


@pytest.fixture
def operator() -> str | None:
    """Return who may change something there; None: nobody."""
    return None


@pytest.fixture
def access(fleet: Fleet, operator: str | None) -> Iterator[Access]:
    """Return what opens a console of the fleet."""
    with serving(fleet.settings, operator) as access:
        yield access


@pytest.fixture
def visitor(access: Access) -> Visitor:
    """Return somebody who entered."""
    return Visitor(access)
