"""The answers of the simulated Equinix API: links between objects, includes and excludes, pages of a listing."""

from collections.abc import Callable
from typing import Any, NamedTuple

from simulator.providers.kit.rest import Call, Page

Json = dict[str, Any]

BASE = "/metal/v1"


class NestedObject(NamedTuple):
    """A nested object: ``{href}`` alone, unless it is included, or *shown* by default and not excluded."""

    href: str
    body: Callable[[], Json]
    shown: bool = False


def one(body: Json, request: Call) -> Json:
    """Return one object with the includes and excludes of *request*."""
    return present(body, _names(request, "include"), _names(request, "exclude"))


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


def _names(request: Call, parameter: str) -> frozenset[str]:
    """Return the dotted names in a comma-joined query parameter."""
    return frozenset(name for name in request.query.get(parameter, "").split(",") if name)


def meta(path: str, page: Page) -> Json:
    """
    Return the position of a page of *path*.

    The hrefs hold the page number alone: a client must send its other
    parameters again, as the vendor's own client does.
    """

    def href(target: int) -> Json | None:
        return {"href": f"{BASE}{path}?page={target}"} if 1 <= target <= page.last else None

    return {
        "first": href(1),
        "last": href(page.last),
        "next": href(page.number + 1),
        "previous": href(page.number - 1),
        "self": {"href": f"{BASE}{path}?page={page.number}"},
        "total": page.total,
        "current_page": page.number,
        "last_page": page.last,
    }
