"""What the tests that kill invocations have in common."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _abandoned_sockets() -> Iterator[None]:
    """Collect the sockets that killed threads left open, while their warning is ignored: it would fail a later test."""
    yield
    gc.collect()
