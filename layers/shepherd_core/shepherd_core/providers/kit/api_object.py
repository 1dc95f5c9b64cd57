"""Objects in an API's answers: the fields that Shepherd uses, validated. Errors never quote their values."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AliasPath, BaseModel, Field, PlainValidator, ValidationError

from shepherd_core.domain.errors.provider import ProviderError, ProviderUnavailable
from shepherd_core.domain.machine import LONGEST_TEXT
from shepherd_core.providers.kit import fields

if TYPE_CHECKING:
    from collections.abc import Callable


def _checked(check: Callable[[object], object], valid: str) -> PlainValidator:
    def validate(value: Any) -> Any:
        if (found := check(value)) is None:
            message = f"must be {valid}"
            raise ValueError(message)
        return found

    return PlainValidator(validate)


Id = Annotated[str, _checked(fields.identifier, f"a text of 1 to {LONGEST_TEXT} printable characters")]
"""Names a machine or its capacity."""
NumberId = Annotated[str, _checked(lambda found: str(found) if type(found) is int and found > 0 else None, "a number")]
"""The same, where the API has a number."""
Text = Annotated[str, _checked(fields.text, f"a text of at most {LONGEST_TEXT} printable characters")]
MachineAddress = Annotated[IPv4Address | IPv6Address, _checked(fields.address, "the IP address of one machine")]


class ApiObject(BaseModel, hide_input_in_errors=True):
    """The fields of an object that Shepherd uses. Errors never quote the input, which may hold a machine's password."""


def found_at(place: str, default: Any = ...) -> Any:
    """Return the field that answers have at *place*, such as ``region.site``; without *default*, each answer."""
    return Field(default, validation_alias=AliasPath(*place.split(".")))


ObjectT = TypeVar("ObjectT", bound=ApiObject)


def parse(
    kind: type[ObjectT], raw: object, name: str, error_type: type[ProviderError] = ProviderUnavailable
) -> ObjectT:
    """Return *raw*, decoded JSON, as an object, or raise *error_type*; *name* stands for it in errors."""
    try:
        return kind.model_validate(raw)
    except RecursionError as error:
        raise error_type(f"{name} was not understood: it is nested too deeply") from error
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors(include_input=False)]
        raise error_type(f"{name} was not understood: {'; '.join(faults[:3])}") from error
