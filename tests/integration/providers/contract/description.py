"""
What an API takes and answers, as its public description has it: ``tests/data/descriptions/NAME.json``.

Each file says where its facts are from and of which date, and describes the
requests that an adapter may send, by method and path (``{number}`` stands for
digits, any other name in braces for any segment): the fields of the query, and
of the body, which is JSON, or of the ``form``. The simulated API is held to the
``answer``, which has the ``status`` 200 or another; where the file has a type
``error``, also to the ``errors`` of the request and of the file, by status and code.
``statuses`` are those that a machine may have; the adapter knows all of them.

A field with ``!`` is required; no others are allowed. Its type is an object (of
such fields), a list (of the type in it), or a text: ``string``, ``integer``,
``boolean``, ``object``, ``any``, the name of one of the ``types`` of the file, or
the values that are allowed, ``a|b``; with ``?`` at its end it may be null. Where a
field of an answer is known from follows it: ``string @recorded`` for one of the
``known`` of the file, ``string @assumed`` for none, nothing for its ``source``.

What an answer need not have, half of the simulated machines do not have.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from zlib import crc32

from simulator.providers.kit.http_server import HttpRequest, Reply
from simulator.providers.kit.rest import RestApi

_TYPES = {"string": str, "integer": int, "boolean": bool, "object": dict}
_FORM = "application/x-www-form-urlencoded"


class UndescribedError(Exception):
    """A request or an answer that the description does not have."""


class Description:
    def __init__(self, name: str) -> None:
        described = json.loads((Path(__file__).parents[3] / f"data/descriptions/{name}.json").read_text())
        self.requests: dict[str, dict[str, Any]] = described["requests"]
        self.statuses: list[str] = described.get("statuses", [])
        self.known: dict[str, str] = described.get("known", {})
        self._headers: dict[str, str] = described.get("headers", {})
        self._types: dict[str, Any] = described.get("types", {})
        self._errors: list[str] = described.get("errors", [])

    def hold(self, api: RestApi) -> None:
        """Let *api* leave out what is optional, and its ``errors`` name each request and answer not described."""
        api.check, api.check_answer = self.check, self.answer

    def fields(self) -> Iterator[tuple[str, str]]:
        """Yield the fields of all answers, such as ``attributes.region.site.slug``, and where each is known from."""
        for request in self.requests.values():
            yield from self._fields(request.get("answer", {}), "")

    def _fields(self, kind: Any, where: str) -> Iterator[tuple[str, str]]:
        kind, known = self._resolved(kind)
        if isinstance(kind, dict):
            for name, each in kind.items():
                yield from self._fields(each, f"{where}.{name.rstrip('!')}")
        elif isinstance(kind, list):
            yield from self._fields(kind[0], where)
        else:
            yield where.removeprefix("."), known

    def check(self, request: HttpRequest) -> None:
        """Raise UndescribedError if the description does not have this request."""
        described = self._described(request)
        where = f"{request.method} {request.path}"
        if any(request.headers.get(name) != value for name, value in self._headers.items()):
            raise UndescribedError(f"{where} must have the headers {self._headers}")
        query = {name: int(text) if text.isdecimal() else text for name, text in request.query.items()}
        self._check(described.get("query", {}), query, f"{where}: query")
        if "form" in described:
            pairs = parse_qsl(request.content.decode(), keep_blank_values=True)
            form = dict(pairs)
            sound = request.headers.get("Content-Type") in (None, _FORM) and len(form) == len(pairs)
            self._check(described["form"], form if sound else request.content, f"{where}: form")
        else:
            self._check(described.get("body", {}), {} if request.body is None else request.body, f"{where}: body")

    def answer(self, request: HttpRequest, reply: Reply) -> Reply:
        """Return the answer without some of what is optional; raise UndescribedError if the description has another."""
        described, body = self._described(request), reply.body
        where = f"{request.method} {request.path} answered {reply.status}"
        if "answer" in described and reply.status == described.get("status", 200):
            self._check(described["answer"], body, where)
            return replace(reply, body=self._thinned(described["answer"], body, ""))
        if "error" in self._types:
            self._check("error", body, where)
            if f"{reply.status} {body['error']['code']}" not in [*self._errors, *described["errors"]]:
                raise UndescribedError(f"{where} with {body!r}, which is not one of its errors")
        return reply

    def _thinned(self, kind: Any, value: Any, owner: str) -> Any:
        """Return *value* without every other optional field; the same ones each time for an object of the same id."""
        kind, _ = self._resolved(kind)
        if isinstance(kind, list) and isinstance(value, list):
            return [self._thinned(kind[0], each, owner) for each in value]
        if not isinstance(kind, dict) or not isinstance(value, dict):
            return value
        owner = str(value.get("id", owner))
        return {
            name: self._thinned(kind[f"{name}!" if f"{name}!" in kind else name], each, owner)
            for name, each in value.items()
            if f"{name}!" in kind or crc32(f"{owner} {name}".encode()) % 2
        }

    def _described(self, request: HttpRequest) -> dict[str, Any]:
        for key, described in self.requests.items():
            method, _, template = key.partition(" ")
            pattern = re.sub(r"\{[^/]*\}", "[^/]+", template.replace("{number}", r"\d+"))
            if method == request.method and re.fullmatch(pattern, request.path):
                return described
        raise UndescribedError(f"{request.method} {request.path} is not in the description")

    def _resolved(self, kind: Any) -> tuple[Any, str]:
        """Return a type that is no name of a type, and where it is known from."""
        if not isinstance(kind, str):
            return kind, ""
        name, _, known = kind.partition(" @")
        return self._types.get(name.rstrip("?"), name), known

    def _check(self, kind: Any, value: Any, where: str) -> None:
        if isinstance(kind, str) and kind.partition(" @")[0].endswith("?") and value is None:
            return
        kind, _ = self._resolved(kind)
        kind = kind.rstrip("?") if isinstance(kind, str) else kind
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
