"""The pages as HTML: everything that a template prints is escaped, and control characters are made visible."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from shepherdctl.output.formats import iso, relative, span
from shepherdctl.output.printing import counted, visible

if TYPE_CHECKING:
    from collections.abc import Mapping

_INSTANT = timedelta(seconds=1)
"""A time that is ahead by less than this is now: another statement read it a moment later."""
_FOLDER = Path(__file__).parents[1]
STATIC_FOLDER = _FOLDER / "static"


def _printed(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return Markup('<time class="at" datetime="{}">{:%Y-%m-%d %H:%M:%S}</time>').format(iso(value), value)
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _figure(value: float) -> Markup:
    return Markup(f"{value:,.0f}".replace(",", "&#8239;"))  # noqa: S704 - a number, with narrow spaces


@jinja2.pass_context
def _ago(context: Mapping[str, Any], moment: datetime | None) -> str:
    """Return how far *moment* is from the page's time."""
    if moment is None:
        return ""
    now = context["now"]
    text = relative(min(moment, now) if moment - now < _INSTANT else moment, now)
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(iso(moment), text)


def _tab(number: int, more: object = None) -> str:
    """Return *number* for the title of a tab; *more*: there are more."""
    return f"({number}{'+' if more else ''}) " if number else ""


def _words(name: object) -> str:
    return str(name).replace("_", " ")


def environment() -> jinja2.Environment:
    """Return the environment that renders the templates."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printed,
    )
    made.filters.update(ago=_ago, counted=counted, figure=_figure, span=span, tab=_tab, words=_words)
    return made
