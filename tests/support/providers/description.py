"""
What an API takes, as its public description has it: ``tests/data/descriptions/NAME.json``.

Each file says where its facts are from and of which date, and describes the
requests that an adapter may send, by method and path: the fields of the query
and of the body. A field with ``!`` is required; no others are allowed. Its type
is an object (of such fields), a list (of the type in it), or a text: ``string``,
``integer``, ``boolean``, ``object``, or the values that are allowed, ``a|b``.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from simulator.providers.kit.http_server import HttpRequest

_FOLDER = Path(__file__).parents[2] / "data/descriptions"
_TYPES = {"string": str, "integer": int, "boolean": bool, "object": dict}


class UndescribedError(Exception):
    """A request that the description does not have."""


class Description:
    """The description of one API. Its ``check`` is for ``RestApi.check``."""

    def __init__(self, name: str) -> None:
        self._requests: dict[str, dict[str, Any]] = json.loads((_FOLDER / f"{name}.json").read_text())["requests"]

    def check(self, request: HttpRequest) -> None:
        """
        Check one request.

        Raises:
            UndescribedError: the description does not have it.
        """
        described = self._described(request)
        body = request.body
        if isinstance(body, bytes):  # a form
            body = dict(parse_qsl(body.decode()))
        where = f"{request.method} {request.path}"
        _check(
            described.get("query", {}), {name: _value(text) for name, text in request.query.items()}, f"{where}: query"
        )
        _check(described.get("body", {}), {} if body is None else body, f"{where}: body")

    def _described(self, request: HttpRequest) -> Mapping[str, Any]:
        for key, described in self._requests.items():
            method, _, template = key.partition(" ")
            if method == request.method and re.fullmatch(re.sub(r"\{[^/]*\}", "[^/]+", template), request.path):
                return described
        raise UndescribedError(f"{request.method} {request.path} is not in the description")


def _value(text: str) -> Any:
    return int(text) if text.isdecimal() else text


def _check(kind: Any, value: Any, where: str) -> None:
    if isinstance(kind, dict):
        names = {name.rstrip("!"): each for name, each in kind.items()}
        required = {name[:-1] for name in kind if name.endswith("!")}
        if not isinstance(value, dict) or not required <= value.keys() <= names.keys():
            raise UndescribedError(f"{where} must have {sorted(required)} and may have {sorted(names)}, not {value!r}")
        for name, each in value.items():
            _check(names[name], each, f"{where}.{name}")
    elif isinstance(kind, list):
        if not isinstance(value, list):
            raise UndescribedError(f"{where} must be a list, not {value!r}")
        for each in value:
            _check(kind[0], each, f"{where}[]")
    elif not (type(value) is _TYPES[kind] if kind in _TYPES else value in kind.split("|")):
        raise UndescribedError(f"{where} must be {kind}, not {value!r}")
