"""
What an API takes and answers, as its public description has it: ``tests/data/descriptions/NAME.json``.

Each file says where its facts are from and of which date, and describes the
requests that an adapter may send, by method and path (``{number}`` stands for
digits, any other name in braces for any segment): the fields of the query, and
of the body, which is JSON, or of the ``form``. If it describes the ``answer``
too, which has the ``status`` 200 or another, the simulated API is held to that, and
to its ``errors``: those of the request and of the file, by status and code.

A field with ``!`` is required; no others are allowed. Its type is an object (of
such fields), a list (of the type in it), or a text: ``string``, ``integer``,
``boolean``, ``object``, ``any``, the name of one of the ``types`` of the file, or
the values that are allowed, ``a|b``; with ``?`` at its end it may be null.
"""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from simulator.providers.kit.http_server import HttpRequest, Reply
from simulator.providers.kit.rest import RestApi

_FOLDER = Path(__file__).parents[2] / "data/descriptions"
_TYPES = {"string": str, "integer": int, "boolean": bool, "object": dict}
_FORM = "application/x-www-form-urlencoded"


class UndescribedError(Exception):
    """A request or an answer that the description does not have."""


class Description:
    """The description of one API."""

    def __init__(self, name: str) -> None:
        described = json.loads((_FOLDER / f"{name}.json").read_text())
        self.requests: dict[str, dict[str, Any]] = described["requests"]
        self._types: dict[str, Any] = described.get("types", {})
        self._errors: list[str] = described.get("errors", [])

    def hold(self, api: RestApi) -> None:
        """Let the ``errors`` of *api* name every request and every answer that is not described."""
        api.check, api.check_answer = self.check, self.check_answer

    def check(self, request: HttpRequest) -> None:
        """
        Check one request.

        Raises:
            UndescribedError: the description does not have it.
        """
        described = self._described(request)
        where = f"{request.method} {request.path}"
        query = {name: int(text) if text.isdecimal() else text for name, text in request.query.items()}
        self._check(described.get("query", {}), query, f"{where}: query")
        if "form" in described:
            pairs = parse_qsl(request.content.decode(), keep_blank_values=True)
            form = dict(pairs)
            sound = request.headers.get("Content-Type") in (None, _FORM) and len(form) == len(pairs)
            self._check(described["form"], form if sound else request.content, f"{where}: form")
        else:
            self._check(described.get("body", {}), {} if request.body is None else request.body, f"{where}: body")

    def check_answer(self, request: HttpRequest, reply: Reply) -> None:
        """
        Check the answer to one request.

        Raises:
            UndescribedError: the description has another one.
        """
        described, body = self._described(request), reply.body
        if "answer" not in described:
            return
        where = f"{request.method} {request.path} answered {reply.status}"
        if reply.status == described.get("status", 200):
            self._check(described["answer"], body, where)
            return
        self._check("error", body, where)
        if f"{reply.status} {body['error']['code']}" not in [*self._errors, *described["errors"]]:
            raise UndescribedError(f"{where} with {body!r}, which is not one of its errors")

    def _described(self, request: HttpRequest) -> dict[str, Any]:
        for key, described in self.requests.items():
            method, _, template = key.partition(" ")
            pattern = re.sub(r"\{[^/]*\}", "[^/]+", template.replace("{number}", r"\d+"))
            if method == request.method and re.fullmatch(pattern, request.path):
                return described
        raise UndescribedError(f"{request.method} {request.path} is not in the description")

    def _check(self, kind: Any, value: Any, where: str) -> None:
        if isinstance(kind, str) and kind.endswith("?"):
            if value is None:
                return
            kind = kind[:-1]
        kind = self._types.get(kind, kind) if isinstance(kind, str) else kind
        if isinstance(kind, dict):
            names = {name.rstrip("!"): each for name, each in kind.items()}
            required = {name[:-1] for name in kind if name.endswith("!")}
            if not isinstance(value, dict) or not required <= value.keys() <= names.keys():
                wanted = f"must have {sorted(required)} and may have {sorted(names)}"
                raise UndescribedError(f"{where} {wanted}, not {value!r}")
            for name, each in value.items():
                self._check(names[name], each, f"{where}.{name}")
        elif isinstance(kind, list):
            if not isinstance(value, list):
                raise UndescribedError(f"{where} must be a list, not {value!r}")
            for each in value:
                self._check(kind[0], each, f"{where}[]")
        elif kind != "any" and not (type(value) is _TYPES[kind] if kind in _TYPES else value in kind.split("|")):
            raise UndescribedError(f"{where} must be {kind}, not {value!r}")
