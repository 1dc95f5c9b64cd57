"""What the tests that kill invocations have in common."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _abandoned_sockets() -> Iterator[None]:
    """Collect the sockets that killed threads left open, while their warning is ignored: it would fail a later test."""
    yield
    gc.collect()
