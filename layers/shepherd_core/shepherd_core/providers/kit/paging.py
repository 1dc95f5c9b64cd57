"""Listings in pages, read completely or not at all: one class for each way in which APIs turn pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from shepherd_core.domain.errors.provider import ListingInvalid, ProviderRefused
from shepherd_core.providers.kit.dialect import at
from shepherd_core.providers.kit.fields import identifier

if TYPE_CHECKING:
    from shepherd_core.domain.clock import Deadline
    from shepherd_core.providers.kit.http import HttpApi, Params

    Entry = dict[str, Any]


MOST_ENTRIES = 200_000
"""In all pages of a listing together: twice the largest fleet. Each answer has its own limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageNumbers:
    """Pages with numbers, from 1. Places in the answer are those of ``at``."""

    entries: str
    """The place of the entries."""
    total: str = ""
    """The place of the number of all entries. Without one, pages are read until one is empty, and all of them twice:
    an entry that is deleted meanwhile moves another one to a page that was read before."""
    current: str = ""
    """The place of the number of the page, if the answer has it."""
    more: str = ""
    """The place of a value that every page but the last one has, if the answer has one."""
    number: str = "page"
    """The parameter with the number of a page."""
    size: str = "per_page"
    """The parameter with the number of entries in a page."""
    per_page: int = 100
    id: str = "id"
    """The place of the id in an entry."""

    def first(self) -> dict[str, str | int]:
        """Return the parameters of the first page."""
        return {self.number: 1, self.size: self.per_page}

    def after(self, answer: Any, page: dict[str, str | int], read: int, *, empty: bool) -> dict[str, str | int] | None:
        """Return the parameters of the page after *page*, None if that was the last one; *read* entries are read."""
        number = int(page[self.number])
        if self.current and (current := at(answer, self.current)) != number:
            raise ListingInvalid(f"the answer is page {current!r:.20} instead of page {number}")
        complete = self.total and read >= at(answer, self.total)
        last = empty or complete or (self.more and at(answer, self.more) is None)
        return None if last else {**page, self.number: number + 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets(PageNumbers):
    """Pages after a number of entries."""

    number: str = "offset"
    size: str = "limit"

    def first(self) -> dict[str, str | int]:
        """Return the parameters of the first page."""
        return {self.number: 0, self.size: self.per_page}

    def after(self, answer: Any, page: dict[str, str | int], read: int, *, empty: bool) -> dict[str, str | int] | None:  # noqa: ARG002 - see ``PageNumbers``
        """Return the parameters of the page after the *read* entries, None if there is none."""
        return None if empty else {**page, self.number: read}


@dataclass(frozen=True, slots=True, kw_only=True)
class NextLinks:
    """Pages that name the next one, by a cursor or a link. Entries do not move between pages."""

    entries: str
    next: str
    """The place of the link, of which only the query is used; none is there on the last page."""
    cursor: str = ""
    """The parameter that takes what is there, if that is no link."""
    total: str = ""
    size: str = "limit"
    per_page: int = 100
    id: str = "id"

    def first(self) -> dict[str, str | int]:
        """Return the parameters of the first page."""
        return {self.size: self.per_page}

    def after(self, answer: Any, page: dict[str, str | int], read: int, *, empty: bool) -> dict[str, str | int] | None:  # noqa: ARG002 - see ``PageNumbers``
        """Return the parameters of the next page, None if that was the last one."""
        link = at(answer, self.next)
        if empty or not isinstance(link, str) or not link:
            return None
        if self.cursor:
            return {**page, self.cursor: link}
        try:
            return dict(parse_qsl(urlsplit(link).query))
        except ValueError as error:
            raise ListingInvalid(f"the link to the next page is no URL: {link!r:.80}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class OnePage:
    """No pages: one answer has all entries."""

    entries: str = ""
    total: str = ""
    id: str = "id"

    def first(self) -> dict[str, str | int]:
        """Return no parameters."""
        return {}

    def after(self, answer: Any, page: dict[str, str | int], read: int, *, empty: bool) -> None:
        """Return None: there is no next page."""


Paging = PageNumbers | NextLinks | OnePage


def listed(api: HttpApi, path: str, deadline: Deadline, paging: Paging, params: Params | None = None) -> list[Entry]:
    """
    Return all entries of the listing at *path*; each is an object with an id of its own.

    Changes while the pages are read make them inconsistent, so it is tried twice.

    Raises:
        ListingInvalid: the pages were inconsistent twice in a row, or no listing.
    """
    try:
        return _agreed(api, path, deadline, paging, params or {})
    except ListingInvalid:
        return _agreed(api, path, deadline, paging, params or {})


def _agreed(api: HttpApi, path: str, deadline: Deadline, paging: Paging, params: Params) -> list[Entry]:
    entries, pages = _read(api, path, deadline, paging, params)
    # The page after the last one is empty.
    if isinstance(paging, PageNumbers) and not paging.total and pages > 2:  # noqa: PLR2004
        again, _ = _read(api, path, deadline, paging, params)
        if set(again) != set(entries):
            raise ListingInvalid(f"{path}: the entries changed while the pages were read")
    return list(entries.values())


def _read(api: HttpApi, path: str, deadline: Deadline, paging: Paging, params: Params) -> tuple[dict[str, Entry], int]:
    """Return the entries by id, and the number of pages."""
    found: dict[str, Entry] = {}
    total: object = None
    page: dict[str, str | int] | None = paging.first()
    pages = 0
    while page is not None:
        pages += 1
        where = f"{path}, page {pages}"
        # A later page answers 404 if the entry that its link names is gone.
        answer = api.get(path, deadline, {**params, **page}, ProviderRefused if pages == 1 else ListingInvalid)
        if paging.total:
            total = _total(answer, paging.total, total, where)
        if not isinstance(entries := at(answer, paging.entries), list):
            raise ListingInvalid(f"{where}, was not understood: {paging.entries or 'it'} must be a list")
        for entry in entries:
            entry_id = at(entry, paging.id)
            if identifier(str(entry_id) if type(entry_id) is int else entry_id) is None or str(entry_id) in found:
                raise ListingInvalid(f"{where}: the id {entry_id!r:.80} is not valid, or listed twice")
            found[str(entry_id)] = entry
        if len(found) > MOST_ENTRIES:
            raise ListingInvalid(f"{path} lists more than {MOST_ENTRIES:,} entries")
        try:
            page = paging.after(answer, page, len(found), empty=not entries)
        except ListingInvalid as error:
            raise ListingInvalid(f"{path}: {error}") from error
    if total not in {None, len(found)}:
        raise ListingInvalid(f"{path}: {len(found)} entries were listed, but the total is {total}")
    return found, pages


def _total(answer: Any, place: str, known: object, where: str) -> int:
    """Return the total in the answer, which must be *known*, that of the pages before (None: this is the first)."""
    count = at(answer, place)
    if not isinstance(count, int) or isinstance(count, bool):
        raise ListingInvalid(f"{where}, was not understood: the total {place} is {count!r:.80}")
    if known not in {None, count}:
        raise ListingInvalid(f"{where}: the total changed from {known} to {count}")
    return count
