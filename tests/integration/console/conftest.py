from collections.abc import Iterator

import pytest
from shepherd_core.settings.functions.bmdb import BmdbSettings

from shepherdctl.console.guard import Access
from tests.support.bmdb.fleet import Fleet
from tests.support.console import Visitor, serving


@pytest.fixture(scope="module")
def console(shared_database: BmdbSettings) -> Iterator[Access]:
    """Return the access to a console that all tests of a file visit: a new one takes longer than most of them."""
    with serving(shared_database) as access:
        yield access


@pytest.fixture
def access(console: Access, fleet: Fleet) -> Access:
    return console


@pytest.fixture
def visitor(access: Access) -> Visitor:
    return Visitor(access)
