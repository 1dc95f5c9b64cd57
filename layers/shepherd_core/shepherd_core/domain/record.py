"""A record: a row of the BMDB as a typed object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(row: type[T]) -> type[T]:
    """
    Return the class as a frozen dataclass for the rows of a statement, which ``Connection.fetch`` makes.

    A field has the name of its column; one with a default may be without a column. A field whose type is an enum of
    texts gets its member. The types are read at run time.
    """
    return dataclass(frozen=True, slots=True)(row)
