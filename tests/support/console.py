"""The web console of a database, as a server of this process, and those who ask it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import requests

from shepherdctl.console.server import background

if TYPE_CHECKING:
    from shepherdctl.console.guard import Access

_SECONDS = 30


class Visitor:
    """A program that asks the console for pages."""

    def __init__(self, access: Access, *, enters: bool = True) -> None:
        """Enter with the token, or not at all."""
        self.access = access
        self.session = requests.Session()
        self.session.trust_env = False  # no proxy of this computer
        if enters:
            assert self.session.get(access.address_with_token, timeout=_SECONDS).status_code == 200

    def get(self, path: str, **headers: str) -> requests.Response:
        """Return the response to a GET of *path* with these *headers*, whose names have _ for -."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.session.get(
            self.access.address + path.lstrip("/"), headers=named, timeout=_SECONDS, allow_redirects=False
        )

    def post(self, path: str, **form: str) -> requests.Response:
        """Return the response to a POST of a form to *path*."""
        return self.session.post(
            self.access.address + path.lstrip("/"), data=form, timeout=_SECONDS, allow_redirects=False
        )

    def read(self, path: str) -> str:
        """Return the page at *path*, when all is well."""
        response = self.get(path)
        assert response.status_code == 200, response.text
        return response.text

    def text(self, path: str) -> str:
        """Return what the page at *path* says, without its tags, on one line."""
        return said(self.read(path))


def said(page: str) -> str:
    """Return what a page says, without its tags, on one line."""
    return " ".join(re.sub(r"<[^>]*>", " ", page).replace("&#8239;", "").split())


serving = background
