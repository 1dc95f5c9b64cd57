"""The objects in the answers of an API: the fields that Shepherd uses, validated, and never quoted in errors."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from shepherd_core.domain.errors import ProviderError, ProviderUnavailable


class ApiObject(BaseModel, hide_input_in_errors=True):
    """The fields of an object that Shepherd uses. Errors never quote the input, which may hold a machine's password."""


ObjectT = TypeVar("ObjectT", bound=ApiObject)


def parse(
    kind: type[ObjectT], raw: object, what: str, error_type: type[ProviderError] = ProviderUnavailable
) -> ObjectT:
    """Return *raw*, decoded JSON, as an object, or raise *error_type*; errors call it *what*."""
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors(include_input=False)]
        raise error_type(f"{what} was not understood: {'; '.join(faults[:3])}") from error
