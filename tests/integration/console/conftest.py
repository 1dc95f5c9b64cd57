"""A console of the test's fleet, and somebody who reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.console import Visitor, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shepherdctl.console.guard import Access
    from tests.support.bmdb.fleet import Fleet


@pytest.fixture
def access(fleet: Fleet) -> Iterator[Access]:
    """Return what opens a console of the fleet."""
    with serving(fleet.settings) as access:
        yield access


@pytest.fixture
def visitor(access: Access) -> Visitor:
    """Return somebody who may read it."""
    return Visitor(access)
