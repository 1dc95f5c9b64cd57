"""The console's pages by address, and the pages for everything that goes wrong."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import UUID

from shepherd_core.bmdb.machines import lookup
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.bmdb import BmdbError, MachineUnknown, SchemaMismatch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from shepherdctl.console.guard import STATIC, ConsoleGuard
from shepherdctl.console.pages import fails, fleet, machine, machines, open_work, rendering
from shepherdctl.console.pages.machines import FilterInvalid, PageEmpty, Query
from shepherdctl.descriptions import commands

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.bmdb.connection import Connection
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from shepherdctl.console.bmdb_reader import BmdbReader
    from shepherdctl.console.guard import Access

_AWAY = 503
_RETRY_SECONDS = 5
"""After which the page of a temporary error is loaded again, and the other pages are updated."""
_FAILURES: tuple[tuple[type[Exception], int, str, str], ...] = (
    (
        FilterInvalid,
        400,
        "This address asks for something that does not exist.",
        "Correct the address, or use the links above.",
    ),
    (
        PageEmpty,
        404,
        "There are no machines on this page.",
        "The list ends before it: machines may have gone since. Go back to the first page.",
    ),
    (MachineUnknown, 404, "There is no such machine.", "Search for it in the list: the id may belong to another BMDB."),
    (
        SchemaMismatch,
        _AWAY,
        "The BMDB and this console are of different versions.",
        "Use the deployed version; “shepherdctl db status” shows both. This page is loaded again by itself.",
    ),
    (
        BmdbError,
        _AWAY,
        "The BMDB does not answer.",
        "Check that the database runs and that this computer reaches it. This page is loaded again by itself.",
    ),
    (ShepherdError, 502, "That did not work.", "See the reason above; “shepherdctl --debug” shows more."),
)


class Console:
    """The pages of the console."""

    def __init__(self, bmdb: BmdbReader, access: Access) -> None:
        """Show *bmdb* to browsers with *access*."""
        self._bmdb = bmdb
        self._access = access
        self._templates = rendering.environment()

    def application(self) -> ASGIApp:
        """Return the application, guarded."""
        routes = [
            Route("/", self._fleet),
            Route("/fails", self._fails),
            Route("/machines", self._machines),
            Route("/machines.csv", partial(self._download, "csv")),
            Route("/machines.json", partial(self._download, "json")),
            Route("/machines/{name}", self._machine),
            Route("/work", self._work),
            Mount(STATIC.rstrip("/"), StaticFiles(directory=rendering.STATIC_FOLDER)),
        ]
        handlers: dict[Any, Any] = {kind: self._failed for kind, *_ in _FAILURES}
        handlers |= {HTTPException: self._wrong_address, Exception: self._broken}
        return ConsoleGuard(Starlette(routes=routes, exception_handlers=handlers), self._access, self.message)

    def message(
        self, status: int, title: str, advice: str, reason: str = "", *, again: bool = False, known: bool = False
    ) -> Response:
        """Return a page that says what is wrong and what to do; without *title*, one that goes on to *advice*."""
        headers = {"Retry-After": str(_RETRY_SECONDS)} if again else None
        context = {"title": title, "advice": advice, "reason": reason, "again": again, "known": known, "code": status}
        return self._page("message.html" if title else "enter.html", status, headers, active="", **context)

    def _page(
        self, template: str, status: int = 200, headers: dict[str, str] | None = None, **context: Any
    ) -> Response:
        ours = {"bmdb": self._bmdb.name, "every": _RETRY_SECONDS, "known": True}
        text = self._templates.get_template(template).render(ours | context)
        return HTMLResponse(text, status, headers)

    def _shown(self, request: Request, active: str, template: str, reader: Callable[[Connection], Any]) -> Response:
        """Return a page that *reader* reads from the BMDB; *active* is its name in the navigation."""
        asked = request.scope["query_string"].decode("latin-1")
        send = commands.line("console", quote(request.scope["path"]) + (asked and f"?{asked}"))
        return self._page(template, active=active, send=send, **self._bmdb.read(reader))

    def _fleet(self, request: Request) -> Response:
        return self._shown(request, "fleet", "fleet.html", fleet.fleet)

    def _fails(self, request: Request) -> Response:
        return self._shown(request, "fails", "fails.html", fails.fails)

    def _machines(self, request: Request) -> Response:
        query = Query.parse(request.query_params.multi_items())
        return self._shown(request, "machines", "machines.html", lambda connection: machines.page(connection, query))

    def _download(self, kind: str, request: Request) -> Response:
        query = Query.parse(request.query_params.multi_items())
        name = self._bmdb.read(lambda connection: machines.file_name(connection, kind))
        rows, media = {"csv": (machines.csv, "text/csv"), "json": (machines.json_lines, "application/json")}[kind]
        attachment = {"Content-Disposition": f'attachment; filename="{name}"'}
        return StreamingResponse(rows(self._bmdb, query), media_type=media, headers=attachment)

    def _machine(self, request: Request) -> Response:
        name, days = request.path_params["name"], request.query_params.get("days")
        if days is not None and days not in machine.DAYS:
            message = f"days must be one of {', '.join(machine.DAYS)}, not {days!r}"
            raise FilterInvalid(message)
        with suppress(ValueError, MachineUnknown):  # a name, or the id of another: finding those reads all machines
            reader = partial(machine.machine, machine_id=UUID(name), days=days)
            return self._shown(request, "machines", "machine.html", reader)
        machine_id = self._bmdb.read(lambda connection: lookup.find_machine(connection, name))
        return RedirectResponse(f"/machines/{machine_id}", 303)

    def _work(self, request: Request) -> Response:
        return self._shown(request, "work", "work.html", open_work.work)

    def _failed(self, _request: Request, error: Exception) -> Response:
        _, status, title, advice = next(each for each in _FAILURES if isinstance(error, each[0]))
        return self.message(status, title, advice, str(error), again=status == _AWAY, known=True)

    def _wrong_address(self, _request: Request, error: HTTPException) -> Response:
        return self.message(error.status_code, f"{error.detail}.", "Use the links above.", known=True)

    def _broken(self, _request: Request, _error: Exception) -> Response:
        advice = "This is a defect of the console: the terminal in which it runs shows where. The other pages may work."
        return self.message(500, "This page failed.", advice, known=True)
