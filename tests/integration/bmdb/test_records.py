import builtins
import re
import types
from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import pytest
import shepherd_core.bmdb
from shepherd_core.bmdb.connection import read
from shepherd_core.bmdb.machines import lookup
from shepherd_core.bmdb.statements import statements
from shepherd_core.bmdb.wire import driver
from shepherd_core.domain.record import record

from tests.support.bmdb.fleet import Fleet

PACKAGE = Path(shepherd_core.bmdb.__file__).parent
NAMED_BY_CALLERS = {
    "decommissioning": ("decommission", "request_release", "cancel_release"),
    "work": ("finish_agent_start", "finish_recovery", "end_undone", "leave_alone", "quarantine"),
    "provisioning": ("create_intent", "provide", "delete_intent"),
}
TYPES = {
    16: bool,
    17: bytes,
    25: str,
    1043: str,
    701: float,
    1184: datetime,
    2950: UUID,
    3802: dict,
    **dict.fromkeys((20, 21, 23, 1700), int),
    **dict.fromkeys((1000, 1009, 1022, 2951), list),
}
"""The types that the driver returns, by the numbers of PostgreSQL's types."""


def fetched() -> Iterator[tuple[str, type]]:
    for file in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(("shepherd_core.bmdb", *file.relative_to(PACKAGE).with_suffix("").parts))
        for row, argument in re.findall(r"\bfetch(?:_once)?\(\s*((?!row|self)\w+),([^,)]+)", file.read_text()):
            for statement in re.findall(r'"(\w+)"', argument) or NAMED_BY_CALLERS[file.stem]:
                yield statement, vars(builtins).get(row) or getattr(import_module(name), row)


@pytest.mark.parametrize(("statement", "row"), sorted(set(fetched()), key=str))
def test_a_statements_columns_are_the_fields_of_its_record(fleet: Fleet, statement: str, row: type) -> None:
    """Otherwise it fails when it first runs, which for some is the day of a disaster."""
    connection = driver.connect(fleet.settings, None, None, driver.TimeLimits())
    try:
        columns = connection.prepare(statements()[statement]).cols
    finally:
        connection.close()
    names = tuple(column["name"] for column in columns)
    assert not list(read(row, statement, names, []))
    hints = get_type_hints(row) if names != ("?column?",) and hasattr(row, "__dataclass_fields__") else {}
    wanted = {name: base(hints.get(name, row)) for name in names}
    assert {column["name"]: TYPES[column["type_oid"]] for column in columns} == wanted


def base(hint: Any) -> Any:
    """Return the type of a value that is not None, as the driver makes it."""
    if get_origin(hint) in (types.UnionType, Union):
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    hint = getattr(hint, "__supertype__", hint) if isinstance(hint, NewType) else get_origin(hint) or hint
    return str if isinstance(hint, type) and issubclass(hint, StrEnum) else hint


class Colour(StrEnum):
    RED = "Red"


@record
class Thing:
    colour: Colour | None
    size: int
    name: str = "?"


@pytest.mark.parametrize(
    ("columns", "row", "made"),
    [
        (("colour", "size"), ["Red", 1], Thing(Colour.RED, 1)),
        (("size", "colour"), [1, None], Thing(None, 1)),
        (("name", "size", "colour"), ["x", 1, "Red"], Thing(Colour.RED, 1, "x")),
    ],
)
def test_a_row_becomes_a_record_by_column_names(columns: tuple[str, ...], row: list[object], made: Thing) -> None:
    (found,) = read(Thing, "things", columns, [row])
    assert found == made
    assert isinstance(found.colour, Colour | None)


@pytest.mark.parametrize(("columns", "named"), [(("colour",), "size"), (("colour", "size", "weight"), "weight")])
def test_a_superfluous_or_missing_column_is_named(columns: tuple[str, ...], named: str) -> None:
    with pytest.raises(TypeError, match=f"things and Thing differ in {named}"):
        list(read(Thing, "things", columns, []))


def test_text_is_stored_whatever_it_is(fleet: Fleet) -> None:
    """Half a character or NUL, from a shell or a provider, would end in an error of the driver."""
    fleet.bare_machine()
    for text in ("\udcff", "a\0b"):
        assert lookup.find_machines(fleet.connection, text, 1) == []
