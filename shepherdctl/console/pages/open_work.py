"""The page of the work in progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.machines import lookup
from shepherd_core.bmdb.machines.pauses import pauses_in_force
from shepherd_core.bmdb.recovery import budget
from shepherd_core.bmdb.wire import server
from shepherd_core.bmdb.work import open_work
from shepherd_core.domain.budget import where

from shepherdctl.console.pages.fails import WAIT, query
from shepherdctl.descriptions.conditions import OLD_TRANSACTION_SECONDS, old_transaction, pace
from shepherdctl.output.formats import scope_in_words

if TYPE_CHECKING:
    from shepherd_core.bmdb.connection import Connection

LIMIT = 30
"""Rows of each table at most."""


def work(connection: Connection) -> dict[str, Any]:
    """Return the context of the page's template."""
    pauses = pauses_in_force(connection)
    budgets = budget.shown_budgets(connection)
    oldest = server.oldest_transaction(connection, OLD_TRANSACTION_SECONDS)
    sessions = open_work.open_sessions(connection, LIMIT)
    return {
        "now": server.now(connection),
        "limit": LIMIT,
        "sessions": sessions,
        "names": lookup.provider_ids(connection, (each for one in sessions for each in one.machine_ids)),
        "creations": open_work.open_creations(connection, LIMIT),
        "penalties": open_work.penalties(connection, LIMIT),
        "releases": open_work.open_releases(connection, LIMIT),
        "pauses": [
            (one, scope_in_words(None, one.process, one.provider, one.location, one.with_labels))
            for one in pauses[:LIMIT]
        ],
        "all_pauses": len(pauses),
        "budgets": [
            {
                "budget": one,
                "where": where(one.location),
                "pace": pace(one.per_hour),
                "query": query(WAIT, one.provider, one.location),
            }
            for one in budgets[:LIMIT]
        ],
        "all_budgets": len(budgets),
        "old_transaction": oldest and "; ".join(old_transaction(oldest)),
    }
