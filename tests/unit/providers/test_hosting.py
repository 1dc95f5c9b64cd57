"""The marks by which a fleet knows its rented servers."""

from uuid import UUID

import pytest
from shepherd_core.providers.kit.hosting import mark_of, read_mark

OURS = UUID(int=5)


@pytest.mark.parametrize("fleet", ["a", "a-1", "blue-", "x" * 20])
def test_a_mark_holds_fleet_slot_and_token_as_a_host_name(fleet: str) -> None:
    mark = mark_of(f"{fleet}/99999", OURS)
    assert len(mark) <= 63
    assert read_mark(fleet, mark) == (f"{fleet}/99999", OURS)


@pytest.mark.parametrize(
    "text",
    [
        "web-1",
        "",
        f"a-0-{OURS}",
        f"a--{OURS}",
        f"a-100000-{OURS}",
        f"a-{OURS}",
        f"a-1-{OURS} ",
        "a-1-x",
        f"a-1-2-{OURS}",
    ],
)
def test_other_texts_mark_other_servers(text: str) -> None:
    assert read_mark("a", text) is None
