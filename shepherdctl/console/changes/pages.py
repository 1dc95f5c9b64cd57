"""The pages that change something: a form, its dry run with the confirmation, and the outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.wire import server
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse
from starlette.routing import Route

from shepherdctl import actions
from shepherdctl.console import forms
from shepherdctl.console.changes.kinds import kind_of
from shepherdctl.console.forms import FormInvalid
from shepherdctl.descriptions.state import observe_machine
from shepherdctl.options import PROCESS_OF_LOOP, PROVIDERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.bmdb.connection import Connection
    from starlette.requests import Request
    from starlette.responses import Response

    from shepherdctl.console.bmdb_reader import BmdbReader
    from shepherdctl.console.changes.kinds import Kind
    from shepherdctl.console.changes.pending_changes import Change, PendingChanges
    from shepherdctl.console.guard import Access

_BACK = {"pause": "/work", "": "/work", "provider_id": "/differences"}


class ChangePages:
    """The pages of one operator's changes."""

    def __init__(
        self, pending: PendingChanges, bmdb: BmdbReader, access: Access, page: Callable[..., Response]
    ) -> None:
        """*page* renders a template."""
        self._pending = pending
        self._bmdb = bmdb
        self._access = access
        self._page = page

    def routes(self) -> list[Route]:
        """Return their addresses."""
        return [
            Route("/change", self._form),
            Route("/change", self._plan, methods=["POST"]),
            Route("/change/{name}", self._change),
            Route("/change/{name}", self._confirm, methods=["POST"]),
        ]

    def _form(self, request: Request) -> Response:
        """Return the form for the change that the address names; the address never fills in a reason."""
        kind = kind_of(request.query_params)
        subject = request.query_params.get(kind.subject, "")
        machine = None
        if kind.subject == "machine":
            machine_id = str(forms.required(request.query_params, "machine", forms.uuid))
            machine = self._bmdb.read(lambda connection: _described(connection, machine_id))
        return self._shown(
            kind,
            subject,
            machine=machine,
            drift_class=request.query_params.get("class"),
            choices={
                "loop": tuple(PROCESS_OF_LOOP),
                "provider": PROVIDERS,
                "class": actions.ADOPTABLE,
            },
        )

    async def _plan(self, request: Request) -> Response:
        form = await forms.read(request, self._access)
        change = await run_in_threadpool(self._pending.plan, form)
        return _see(change)

    def _change(self, request: Request) -> Response:
        change = self._pending.find(request.path_params["name"])
        return self._changed(change)

    async def _confirm(self, request: Request) -> Response:
        form = await forms.read(request, self._access)
        change = self._pending.find(request.path_params["name"])
        try:
            await run_in_threadpool(self._pending.confirm, change, form.get("typed", ""))
        except FormInvalid as error:
            return self._changed(change, status=400, wrong=str(error))
        return _see(change)

    def _changed(self, change: Change, **context: Any) -> Response:
        return self._shown(change.kind, change.subject, change=change, **context)

    def _shown(self, kind: Kind, subject: str, **context: Any) -> Response:
        given = {"change": None, "wrong": None, "machine": None, "drift_class": None}
        return self._page(
            "change.html",
            active="",
            now=self._bmdb.read(server.now),
            kind=kind,
            subject=subject,
            token=self._access.form_token,
            back=_BACK.get(kind.subject, f"/machines/{subject}"),
            **given | context,
        )


def _described(connection: Connection, machine_id: str) -> str:
    found, observer = observe_machine(connection, machine_id)
    return f"{found['provider_id'] or machine_id}: {observer.describe(found).plain}"


def _see(change: Change) -> Response:
    return RedirectResponse(f"/change/{change.name}", 303)
