"""What the tests of the simulated Equinix API share."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from simulator.environment.faults import Rule
from tests.support.providers.equinix_world import World


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    """Make worlds that end with the test, none of them with an error that is still in its API."""
    worlds: list[World] = []
    with ExitStack() as stack:

        def world(*faults: Rule, **settings: Any) -> World:
            worlds.append(World(stack, *faults, **settings))
            return worlds[-1]

        yield world
        assert [error for made in worlds for error in made.api.errors] == []
