"""The answers of the simulated Equinix API: links between objects, includes and excludes, pages of a listing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from simulator.providers.equinix.records import EquinixRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Json = dict[str, Any]
T = TypeVar("T")

BASE = "/metal/v1"
_MAX_PAGE = 100_000
_MAX_PER_PAGE = 1_000


@dataclass(frozen=True, kw_only=True)
class ApiRequest:
    """A call of the API; *path* is below the base URL."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    body: object = None
    per_page_cap: int = 100
    hidden: int = 0
    """The number of entries that are missing at the start of a listing."""


class NestedObject(NamedTuple):
    """A nested object: ``{href}`` alone, unless it is included, or *shown* by default and not excluded."""

    href: str
    body: Callable[[], Json]
    shown: bool = False


def one(body: Json, request: ApiRequest) -> Json:
    """Return one object with the includes and excludes of *request*."""
    return present(body, _names(request, "include"), _names(request, "exclude"))


def listing(collection: str, items: Sequence[T], body: Callable[[T], Json], request: ApiRequest) -> Json:
    """
    Return the page of *items* that *request* asks for, each shown by *body*.

    Raises:
        Refused: ``page`` or ``per_page`` is out of range.
    """
    shown, meta = page(items, request)
    return {collection: [one(body(item), request) for item in shown], "meta": meta}


def present(body: Json, include: frozenset[str], exclude: frozenset[str]) -> Json:
    """Return *body* with its links expanded as the dotted names say, and without excluded plain fields."""
    result: Json = {}
    for name, value in body.items():
        included = name in include or any(item.startswith(f"{name}.") for item in include)
        below = (_below(name, include), _below(name, exclude))
        if isinstance(value, NestedObject):
            result[name] = _expand(value, included=included, excluded=name in exclude, below=below)
        elif isinstance(value, list) and value and isinstance(value[0], NestedObject):
            result[name] = [_expand(item, included=included, excluded=name in exclude, below=below) for item in value]
        elif name not in exclude:
            result[name] = value
    return result


def _expand(
    link: NestedObject, *, included: bool, excluded: bool, below: tuple[frozenset[str], frozenset[str]]
) -> Json:
    if excluded or not (included or link.shown):
        return {"href": link.href}
    return present(link.body(), *below)


def _below(name: str, names: frozenset[str]) -> frozenset[str]:
    return frozenset(item.removeprefix(f"{name}.") for item in names if item.startswith(f"{name}."))


def _names(request: ApiRequest, parameter: str) -> frozenset[str]:
    """Return the dotted names in a comma-joined query parameter."""
    return frozenset(name for name in request.query.get(parameter, "").split(",") if name)


def page(items: Sequence[T], request: ApiRequest) -> tuple[Sequence[T], Json]:
    """
    Return the page of *items* that *request* asks for, and its ``meta``.

    The hrefs in ``meta`` hold the page number alone: a client must send its
    other parameters again, as the vendor's own client does.

    Raises:
        Refused: ``page`` or ``per_page`` is out of range.
    """
    items = items[request.hidden :]
    number = _integer(request.query, "page", 1, _MAX_PAGE)
    size = min(_integer(request.query, "per_page", 10, _MAX_PER_PAGE), request.per_page_cap)
    last = max(1, -(-len(items) // size))

    def href(target: int) -> Json | None:
        return {"href": f"{BASE}{request.path}?page={target}"} if 1 <= target <= last else None

    meta = {
        "first": href(1),
        "last": href(last),
        "next": href(number + 1),
        "previous": href(number - 1),
        "self": {"href": f"{BASE}{request.path}?page={number}"},
        "total": len(items),
        "current_page": number,
        "last_page": last,
    }
    return items[(number - 1) * size : number * size], meta


def _integer(query: Mapping[str, str], name: str, default: int, maximum: int) -> int:
    text = query.get(name, str(default))
    if not text.isdecimal() or not 1 <= int(text) <= maximum:
        raise EquinixRefused(422, f"{name} must be an integer from 1 to {maximum}, not {text!r}")
    return int(text)
